"""The tensor-parallel degree does not change a bit: logits of ranks against those of one process."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from karat.ops.native import supported_isas, unavailable_reason

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

from karat import LLM
from karat.checkpoint.safetensors import read_header
from karat.config import embedded_model_path
from karat.engine.ranks.rank_model import ParallelModel
from karat.errors import CheckpointError, NumericsError, UsageError
from karat.models.families import FAMILIES
from karat.models.opening import open_model
from karat.models.registry import read_config
from karat.quant import FORMATS
from tests.engine import tiny
from tests.support import parallel
from tests.support.seed import SEED
from tests.support.thread_group import ThreadGroup, on_all_ranks

STORED = ("F32", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "MXFP4")
# Their experts and delta nets are cut by other rules, or their layers have heads of other sizes.
OTHER_RULES = (
    "gemma4_text",
    "gemma4_unified_text",
    "gpt_oss",
    "lfm2",
    "lfm2_moe",
    "mixtral",
    "olmoe",
    "qwen2_moe",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_next",
)
DEGREES = (2, 4, 8)


class Teams:
    """Ranks of each degree, started once for all tests: they load one model after the other."""

    def __init__(self) -> None:
        self._by_size: dict[int, ParallelModel] = {}

    def __getitem__(self, size: int) -> ParallelModel:
        if size not in self._by_size:
            self._by_size[size] = ParallelModel(size)
        return self._by_size[size]

    def close(self) -> None:
        for team in self._by_size.values():
            team.close()


@pytest.fixture(scope="module")
def teams() -> Iterator[Teams]:
    made = Teams()
    yield made
    made.close()


def texts_for(vocab_size: int, seed: str) -> list[list[int]]:
    rng = random.Random(f"{SEED}-{seed}")
    return [[rng.randrange(vocab_size) for _ in range(n)] for n in (41, 1, 7)]


def assert_same(got: list[np.ndarray], want: list[np.ndarray], what: object) -> None:
    for a, b in zip(got, want, strict=True):
        assert np.isfinite(b).all() and b.std() > 0.1, "logits that say nothing"
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32), err_msg=str(what))


@pytest.mark.drawn(1, each=("family", "stored"))
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_in_every_type(family: str, stored: str, teams: Teams, tmp_path: Path) -> None:
    extra: dict[str, Any] = (
        {"attention_bias": True, "mlp_bias": True} if family == "llama" and stored in ("F32", "BF16") else {}
    )
    if stored in FORMATS and FORMATS[stored].block_size == 256:
        if family.startswith("lfm2"):
            extra = {"hidden_size": 2048}  # eight blocks for eight ranks, which share the channels of convolutions
        elif family == "olmoe":  # whose heads share hidden_size
            extra = {"hidden_size": 2048, "head_dim": 128, "intermediate_size": 256}
    config = parallel.config_of(family, tie_word_embeddings=stored != "F32", **extra)
    path = parallel.write(tmp_path, config, stored)
    texts = texts_for(config["vocab_size"], f"{family}-{stored}")
    want = parallel.single(path, texts, chunk=512, threads=2)
    rng = random.Random(f"{SEED}-{family}-{stored}-how")
    for size in DEGREES:
        chunk, together = rng.choice([1, 7, 64, 512]), rng.random() < 0.5
        threads = rng.choice([n for n in (1, 2, 3) if n * size <= 8])
        got = parallel.parallel(teams[size], path, texts, chunk=chunk, together=together, threads=threads)
        assert_same(got, want, (size, chunk, together, threads))


@pytest.mark.drawn(1, each="family")
@pytest.mark.parametrize("stored", ["F32", "Q8_0", "Q4_K"])
@pytest.mark.parametrize(("family", "experts"), [("mixtral", 2), ("gpt_oss", 4), ("qwen2_moe", 3)])
def test_ranks_without_an_expert(family: str, experts: int, stored: str, teams: Teams, tmp_path: Path) -> None:
    """Merged models have 2 or 4. Ranks whose ranges are empty add zeros, with biases and shared experts too.

    Experts of 7 blocks, or one, are in ranges.
    """
    inner = 256 if stored == "Q4_K" else 224
    sizes = (
        {"num_experts": experts, "moe_intermediate_size": inner}
        if family == "qwen2_moe"
        else {"num_local_experts": experts, "intermediate_size": inner}
    )
    config = parallel.config_of(family, num_experts_per_tok=2, **sizes)
    path = parallel.write(tmp_path, config, stored)
    texts = texts_for(config["vocab_size"], f"{family}-{stored}")
    want = parallel.single(path, texts, chunk=512, threads=2)
    for size, chunk in zip(DEGREES, (512, 7, 1), strict=True):
        assert_same(parallel.parallel(teams[size], path, texts, chunk=chunk), want, size)
    assert_same(parallel.parallel(teams[8], path, texts, chunk=64, guard=True), want, "op by op")


@pytest.mark.drawn(2)
@pytest.mark.parametrize("stored", STORED)
def test_the_shapes_of_qwen25_05b(stored: str, teams: Teams, tmp_path: Path) -> None:
    """14 heads over 4 ranks are 3, 4, 3, 4; in blocks of 256, 19 of the MLP over 8 are 2, 2, 3, 2, 2, 3, 2, 3.

    Rows of 896 are no whole blocks of 256: llama.cpp takes Q5_0 and Q8_0 for them.
    """
    config = parallel.config_of(
        "qwen2",
        hidden_size=896,
        intermediate_size=4864,
        num_attention_heads=14,
        num_key_value_heads=2,
        head_dim=64,
        rope_theta=1e6,
        vocab_size=301,
    )
    path = parallel.write(tmp_path, config, stored, odd={"Q4_K": "Q5_0", "Q6_K": "Q8_0"}.get(stored, "F32"))
    texts = texts_for(config["vocab_size"], stored)
    want = parallel.single(path, texts, chunk=512)
    for size in DEGREES:
        assert_same(parallel.parallel(teams[size], path, texts, chunk=16), want, size)


@pytest.mark.parametrize("stored", ["F32", "Q4_K"])
def test_panels_that_are_cut_by_tokens(stored: str, teams: Teams, tmp_path: Path) -> None:
    """Two threads cut the few panels of 300 tokens, also where the sum goes to the others; a thread alone cuts none."""
    config = parallel.config_of("llama", vocab_size=301)
    path = parallel.write(tmp_path, config, stored)
    texts = [[random.Random(f"{SEED}-{stored}").randrange(301) for _ in range(300)]]
    want = parallel.single(path, texts, chunk=512, threads=1)
    for size in DEGREES[:2]:
        assert_same(parallel.parallel(teams[size], path, texts, chunk=512, threads=2), want, size)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "stored"),
    [(28, 4, 128, "Q6_K"), (28, 4, 64, "F32"), (14, 2, 64, "Q8_0"), (15, 3, 32, "BF16"), (9, 3, 16, "F32")],
)
@pytest.mark.parametrize("family", ["qwen3", "olmo2"])
def test_groups_of_heads_that_are_cut_unevenly(
    family: str, heads: int, kv_heads: int, head_dim: int, stored: str, teams: Teams, tmp_path: Path
) -> None:
    """Ranks whose heads are unequal parts of two groups, with prompts, single tokens and both in a step.

    In olmo2 ranks add the squares of all heads, a KV head that two of them have once.
    """
    config = parallel.config_of(
        family,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        num_hidden_layers=2,
        vocab_size=300,
    )
    path = parallel.write(tmp_path, config, stored)
    texts = texts_for(300, f"{family}-{heads}-{kv_heads}")
    want = parallel.single(path, texts, chunk=512)
    for size, chunk in ((2, 9), (4, 512), (8, 5)):
        assert_same(parallel.parallel(teams[size], path, texts, chunk=chunk), want, (size, chunk))
    assert_same(parallel.parallel(teams[4], path, texts, chunk=1, together=False), want, "token by token")
    assert_same(parallel.parallel(teams[2], path, texts, chunk=64, guard=True), want, "op by op")


def test_random_configurations_work_exactly_or_are_refused_with_the_right_list(teams: Teams, tmp_path: Path) -> None:
    """What works is counted here by the words of docs/tensor-parallel.md; what works has the bits of one process."""
    rng = random.Random(f"{SEED}-configurations")
    worked = refused = 0
    for number in range(24):
        num_kv_heads = rng.choice([1, 1, 2, 3, 5])
        config = parallel.config_of(
            rng.choice([family for family in FAMILIES if family not in OTHER_RULES]),
            hidden_size=rng.choice([24, 40, 64, 96]),
            intermediate_size=rng.choice([5, 17, 77, 96, 130, 288, 512, 768]),
            num_hidden_layers=rng.choice([1, 2]),
            num_key_value_heads=num_kv_heads,
            num_attention_heads=num_kv_heads * rng.choice([1, 2, 3, 4]),
            head_dim=rng.choice([6, 8, 12, 16, 20, 32, 64]),
            vocab_size=rng.choice([7, 61, 127, 509, 700]),
            tie_word_embeddings=rng.random() < 0.5,
        )
        stored = rng.choice(["F32", "BF16", "Q8_0", "NVFP4", "Q4_K", "Q6_K"])
        path = parallel.write(tmp_path / str(number), config, stored, seed=number)
        texts = texts_for(config["vocab_size"], str(number))
        working = [size for size in DEGREES if _possible(config, stored, size)]
        want = parallel.single(path, texts, chunk=64) if working else []
        for size in DEGREES:
            if size in working:
                got = parallel.parallel(
                    teams[size], path, texts, chunk=rng.choice([5, 64]), together=rng.random() < 0.5
                )
                assert_same(got, want, (config, stored, size))
                worked += 1
            else:
                listed = ", ".join(map(str, [1, *working]))
                with pytest.raises(UsageError, match=rf"tensor_parallel_size={size}: .* works with {listed}$"):
                    parallel.parallel(teams[size], path, texts, chunk=64)
                refused += 1
    assert worked >= 10 and refused >= 10, (worked, refused)


def _possible(config: dict[str, Any], stored: str, size: int) -> bool:
    """Whether each of `size` ranks gets a head, a block of the MLP and a row of the vocabulary.

    Column by column: a cut is legal where no head and no block is in two parts, and leaf i of 8 has the pieces between
    two legal cuts up to the (i + 1) / 8 of them. What this tree cannot do, no other choice of legal cuts could.
    """
    possible = config["vocab_size"] >= size
    for columns, head_dim in (
        (config["num_attention_heads"] * config["head_dim"], config["head_dim"]),
        (config["intermediate_size"], 1),
    ):
        block = 32 if columns % 32 == 0 else 1
        if stored in FORMATS and columns % FORMATS[stored].block_size == 0:
            block = FORMATS[stored].block_size
        legal = [end for end in range(1, columns + 1) if end % head_dim == 0 and end % block == 0]
        leaf, holders = 0, set()
        for piece in range(1, len(legal) + 1):
            while piece * 8 > (leaf + 1) * len(legal):
                leaf += 1
            holders.add(leaf * size // 8)
        assert (len(holders) == size) == (len(legal) >= size), "another tree could do better"
        possible = possible and len(holders) == size
    return possible


def test_the_embedded_model_runs_on_ranks(teams: Teams) -> None:
    """Rows of 256 and 704 numbers in bfloat16: nothing asks for blocks of 256."""
    path = Path(embedded_model_path())
    texts = texts_for(4096, "embedded")
    want = parallel.single(path, texts, chunk=512)
    for size in DEGREES:
        assert_same(parallel.parallel(teams[size], path, texts, chunk=16), want, size)


@pytest.mark.parametrize("stored", ["F32", "Q4_0"])
def test_the_reference_executor_shares_out_too(stored: str, teams: Teams, tmp_path: Path) -> None:
    """Not the same bits: NumPy sums as it likes. In float64 the difference is of its roundings."""
    path = parallel.write(tmp_path, parallel.config_of("qwen3"), stored)
    texts = texts_for(601, "reference")
    how: dict[str, Any] = {"executor": "reference", "dtype": "float64", "kv_dtype": "float64", "chunk": 16}
    want = parallel.single(path, texts, **how)
    got = parallel.parallel(teams[4], path, texts, **how)
    for a, b in zip(got, want, strict=True):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()  # the logits are kept as float32 here


def test_op_by_op_has_the_same_bits(teams: Teams, tmp_path: Path) -> None:
    path = parallel.write(tmp_path, parallel.config_of("qwen2"), "Q4_K")
    texts = texts_for(601, "guard")
    want = parallel.single(path, texts, chunk=512)
    assert_same(parallel.parallel(teams[2], path, texts, chunk=9, guard=True), want, "guard")


@pytest.mark.parametrize("isa", supported_isas())
def test_every_kernel_build_has_the_same_bits(isa: str, teams: Teams, tmp_path: Path) -> None:
    path = parallel.write(tmp_path, parallel.config_of("llama"), "Q6_K")
    texts = texts_for(601, "isa")
    want = parallel.single(path, texts, chunk=512)
    assert_same(parallel.parallel(teams[2], path, texts, chunk=512, isa=isa), want, isa)


def test_a_number_that_one_rank_cannot_store_ends_the_step_and_not_the_ranks(teams: Teams, tmp_path: Path) -> None:
    """A V beyond float16 in the second rank's head: its error is raised, with the rank; then all goes on."""
    config = parallel.config_of("llama", attention_bias=True)
    path = parallel.write(tmp_path, config, "F32")
    spoil(path / "model.safetensors", "model.layers.0.self_attn.v_proj.bias", 128 + 3, 1e6)
    with pytest.raises(
        NumericsError, match=r"rank 1: V of layer 0, KV head 0, token 0 of the step: 1e\+06 does not fit"
    ):
        parallel.parallel(teams[2], path, [[5, 6, 7]], chunk=512)
    want = parallel.single(path, [[5, 6, 7]], chunk=512, kv_dtype="float32")
    assert_same(parallel.parallel(teams[2], path, [[5, 6, 7]], chunk=512, kv_dtype="float32"), want, "float32")


def test_a_rank_that_stops_at_a_number_lets_the_others_give_up(teams: Teams, tmp_path: Path) -> None:
    """With --guard a rank raises in the middle of a step, and the others wait for its part in vain."""
    config = parallel.config_of("llama", attention_bias=True, num_hidden_layers=2)
    path = parallel.write(tmp_path, config, "F32")
    spoil(path / "model.safetensors", "model.layers.1.self_attn.q_proj.bias", 9 * 128, np.nan)
    with pytest.raises(NumericsError, match=r"rank 2: model\.layers\.1\.self_attn\.q_proj\[0, 1, 0\]: nan"):
        parallel.parallel(teams[4], path, [[5, 6, 7]], chunk=512, guard=True)
    fine = parallel.write(tmp_path / "fine", config, "F32", seed=1)
    want = parallel.single(fine, [[5, 6, 7]], chunk=512)
    assert_same(parallel.parallel(teams[4], fine, [[5, 6, 7]], chunk=512), want, "after a step that was given up")


def spoil(file: Path, tensor: str, index: int, value: float) -> None:
    """Overwrite one number of a float32 tensor in a safetensors file."""
    begin = read_header(file).entries[tensor].begin
    data = bytearray(file.read_bytes())
    data[begin + 4 * index : begin + 4 * index + 4] = np.float32(value).tobytes()
    file.write_bytes(data)


def test_a_rank_that_cannot_load_is_told_and_another_model_loads(teams: Teams, tmp_path: Path) -> None:
    path = parallel.write(tmp_path, parallel.config_of("qwen2"), "F32")
    texts = [[1, 2, 3]]
    file = path / "model.safetensors"
    whole = file.read_bytes()
    config = read_config(open_model(path).config)
    file.write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match="truncated"):
        teams[2].load(parallel.load_of(path, texts, chunk=8), config)
    file.write_bytes(whole)
    assert_same(parallel.parallel(teams[2], path, texts, chunk=8), parallel.single(path, texts, chunk=8), "repaired")


@pytest.mark.drawn(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_agree_with_transformers(family: str, teams: Teams, tmp_path: Path) -> None:
    """Within 1e-4 of the logits' deviation, as one process does (tests/models/test_exactness.py)."""
    torch = pytest.importorskip("torch", reason="transformers needs torch")
    transformers = pytest.importorskip("transformers")
    config = parallel.config_of(family, num_hidden_layers=2, vocab_size=300, tie_word_embeddings=False)
    path = parallel.write(tmp_path, config, "F32")
    if family == "muse_glimmer_text":
        from karat.check.record import hf_muse_glimmer

        hf_muse_glimmer.register()
    hf = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    text = texts_for(300, family)[0]
    with torch.no_grad():
        want = hf.eval()(torch.tensor([text])).logits[0].numpy()
    (got,) = parallel.parallel(teams[4], path, [text], chunk=16, kv_dtype="float32")
    assert want.std() > 0.5 and np.abs(got - want).max() <= 1e-4 * want.std()


def test_what_comes_through_the_python_interface(tmp_path: Path) -> None:
    """LLM on ranks: the answers, logprobs and logits of LLM on one process, also after a preemption."""
    folder = tiny.write_model(tmp_path, hidden_size=72, num_attention_heads=12, intermediate_size=50)
    found = []
    for size in (1, 4):
        llm = LLM(folder, tensor_parallel_size=size, threads=1, num_blocks=9)
        outputs = llm.generate(tiny.PROMPTS[:3], [tiny.GREEDY, tiny.SAMPLED, tiny.SAMPLED])
        found.append(([o.outputs for o in outputs], llm.logits(list(range(60))).tobytes(), llm.executor, llm.kv_dtype))
        llm.close()
    assert found[0] == found[1]


@pytest.mark.drawn(1, each=("stored", "size"))
@pytest.mark.parametrize("stored", ["F32", "Q4_K"])
@pytest.mark.parametrize("size", [2, 8])
def test_a_transport_that_needs_the_host_has_the_same_bits(stored: str, size: int, tmp_path: Path) -> None:
    """Ranks that are threads, which exchange NumPy arrays: nothing but the group is another."""
    path = parallel.write(tmp_path, parallel.config_of("llama", attention_bias=stored == "F32"), stored)
    texts = texts_for(601, "threads")
    want = parallel.single(path, texts, chunk=512)

    def on_rank(group: ThreadGroup) -> list[NDArray[np.floating]]:
        return parallel.single(path, texts, chunk=16, group=group)

    for got in on_all_ranks(size, on_rank):
        assert_same(got, want, size)


@pytest.mark.parametrize("quantize", ["q8_0", "q4_0"])
def test_ranks_quantise_what_one_process_does(quantize: Any, tmp_path: Path) -> None:
    """Of 65 columns, which are no whole blocks, a rank has 32, which would be one: it keeps them all the same."""
    path = parallel.write(
        tmp_path, parallel.config_of("llama", hidden_size=96, intermediate_size=65, head_dim=8), "F32"
    )
    digests = set()
    for size in (1, 2):
        llm = LLM(
            path,
            tokenizer=parallel.placeholder_tokenizer(601),
            quantize=quantize,
            tensor_parallel_size=size,
            threads=1,
            max_model_len=64,
        )
        digests.add(llm.logits(list(range(40))).tobytes())
        llm.close()
    plain = LLM(path, tokenizer=parallel.placeholder_tokenizer(601), threads=1, max_model_len=64)
    assert len(digests) == 1 and plain.logits(list(range(40))).tobytes() not in digests


def test_the_progress_of_all_ranks_is_told(tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path, hidden_size=72, num_attention_heads=12, intermediate_size=50)
    seen: list[tuple[int, int]] = []
    LLM(folder, tensor_parallel_size=2, threads=1, progress=lambda done, total: seen.append((done, total))).close()
    stored = (folder / "model.safetensors").stat().st_size
    (total,) = {total for _, total in seen}
    assert 0.9 * stored < total < stored and seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)

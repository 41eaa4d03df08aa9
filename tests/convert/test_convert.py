"""What `convert` writes: the gguf package reads it, it is the same model, and a failure leaves nothing.

Covers: karat.checkpoint.gguf.writer, karat.convert.conversion, karat.convert.metadata, karat.convert.tokenizer.
"""

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from karat.checkpoint.gguf import read_header
from karat.checkpoint.gguf.writer import numbers, scalar
from karat.config import LayerShape, ModelConfig, embedded_model_path
from karat.convert import MIXES, convert
from karat.convert.metadata import model_pairs
from karat.engine.llm import LLM
from karat.errors import ConfigError, TokenizerError, UsageError
from karat.models.opening import open_gguf, open_model
from karat.models.registry import find_weights, read_config
from karat.ops.native import native, unavailable_reason
from karat.request import SamplingParams
from karat.text import Tokenizer
from karat.text.pre_tokenizers import PRE_TOKENIZERS
from tests.checkpoint.gguf.builders import write_model
from tests.convert.comparing import tensors_of
from tests.convert.folders import FAMILIES, folder_of
from tests.models.test_config import raw_config
from tests.support.composite import NUM_UNUSED, with_vision
from tests.support.seed import SEED
from tests.text.test_gguf_tokenizer import random_strings

F32 = np.dtype(np.float32)


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_is_the_same_model(family: str, tmp_path: Path) -> None:
    """Config and every weight, bit for bit; so are logits, then."""
    source = open_model(folder_of(tmp_path / "model", **FAMILIES[family]))
    convert(source, tmp_path / "model.gguf", MIXES["F32"])
    back = open_model(tmp_path / "model.gguf")
    expected, got = read_config(source.config), read_config(back.config)
    assert got.rope == expected.rope and got.shapes == tuple(_within_the_context(expected))
    for name in (
        "vocab_size",
        "hidden_size",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "rms_norm_eps",
        "tie_word_embeddings",
        "bos_token_id",
        "max_position_embeddings",
    ):
        assert getattr(got, name) == getattr(expected, name), name
    assert set(got.eos_token_ids) == set(expected.eos_token_ids)
    weights = find_weights(got, back)
    plus_one = {"gemma2": "norm", "gemma3_text": "norm", "muse_glimmer_text": "layernorm"}  # to these files add 1
    for name, weight in find_weights(expected, source).items():
        is_more = plus_one.get(expected.model_type, "-") in name
        of_folder = weight.to_array(F32) + np.float32(is_more) if is_more else weight.to_array(F32)
        np.testing.assert_array_equal(weights[name].to_array(F32), of_folder, err_msg=name)


def _within_the_context(config: ModelConfig) -> Iterator[LayerShape]:
    """The layers' shapes without windows that hold every context, which a file does not state."""
    for shape in config.shapes:
        covers = shape.window is not None and shape.window >= config.max_position_embeddings
        yield replace(shape, window=None) if covers else shape


def test_a_model_without_a_tokenizer_is_converted_without_one(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", **FAMILIES["qwen2"])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6, 9999999]}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
    source = open_model(folder)
    done = convert(source, tmp_path / "model.gguf", MIXES["F32"])
    assert any("the file has no tokenizer" in warning for warning in done.warnings)
    back = open_gguf(tmp_path / "model.gguf")
    assert back.metadata.values["tokenizer.ggml.model"] == "none" and back.config["eos_token_id"] == [5, 6]
    assert read_config(back.config).vocab_size == read_config(source.config).vocab_size
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError):
        convert(open_model(folder), tmp_path / "damaged.gguf", MIXES["F32"])


@pytest.mark.drawn(1, each=("family",))
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "family",
    ["gemma2", "gemma3_text", "gemma4_text", "gemma4_unified_text", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"],
)
def test_what_is_stored_otherwise_is_what_the_gguf_package_writes(family: str, seed: int, tmp_path: Path) -> None:
    """Bit for bit: tiled value heads, 1 + weight, rates. What is read from such a file is written as it lies."""
    pytest.importorskip("torch", reason="transformers needs torch")
    from tests.support import random_models

    rng = random.Random(f"{SEED} {family} {seed}")
    if family.startswith("gemma"):
        raw = random_models.draw_gemma_of_gguf(rng, family)
        raw |= {key: 4100 for key in ("vocab_size", "vocab_size_per_layer_input") if key in raw}
    else:
        raw = random_models.draw_config(rng, family, "default") | {"vocab_size": 4100, "full_attention_interval": 2}
        raw = {key: raw[key] for key in raw.keys() - {"mlp_only_layers", "decoder_sparse_step"}}
        raw["layer_types"] = rng.choice([None, raw.get("layer_types")])  # the places of attention: every second, or any
        raw |= {"norm_topk_prob": True} if family == "qwen3_next" else {}
        raw["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    tensors = random_models.build(raw, rng.randrange(2**31)).state_dict()
    weights = {name: np.array(each) for name, each in tensors.items()}
    if raw["tie_word_embeddings"]:
        del weights["lm_head.weight"]
    write_model(tmp_path / "theirs.gguf", raw, weights)
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(embedded_model_path() / name, folder / name)
    (folder / "config.json").write_text(json.dumps(raw))
    save_file(weights, folder / "model.safetensors")
    convert(open_model(folder), tmp_path / "ours.gguf", MIXES["F32"])
    convert(open_model(tmp_path / "ours.gguf"), tmp_path / "again.gguf", MIXES["F32"])
    found, expected = tensors_of(tmp_path / "ours.gguf"), tensors_of(tmp_path / "theirs.gguf")
    assert tensors_of(tmp_path / "again.gguf") == found
    for path in (tmp_path / "ours.gguf", tmp_path / "again.gguf"):
        assert getattr(read_config(open_gguf(path).config), "hybrid", None) == getattr(
            read_config(open_gguf(tmp_path / "theirs.gguf").config), "hybrid", None
        )
    apart = {name: each for name, each in found.items() if not name.endswith(("gate_exps.weight", "up_exps.weight"))}
    assert apart == {name: each for name, each in expected.items() if "gate_up_exps" not in name}


@pytest.mark.parametrize(
    ("types", "stated", "sections"),
    [
        ("LLLALLLA", {"full_attention_interval": 4}, None),
        ("LLLL", {"full_attention_interval": 5}, None),
        ("ALLA", {"attention.recurrent_layers": [False, True, True, False]}, [1, 2, 1]),
    ],
)
def test_places_of_attention_and_sections_of_rope(
    types: str, stated: dict[str, Any], sections: list[int] | None, tmp_path: Path
) -> None:
    """llama.cpp asks for the sections, which change nothing for texts. Places that are not even are a list."""
    kinds = {"L": "linear_attention", "A": "full_attention"}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
    shape = {"head_dim": 16, "partial_rotary_factor": 0.5, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    raw = raw_config("qwen3_5_text", **shape, num_hidden_layers=len(types), rope_parameters=rope)
    raw |= {"layer_types": [kinds[each] for each in types], "full_attention_interval": None}
    arch, keys = "qwen35", ("full_attention_interval", "attention.recurrent_layers")
    pairs = dict(model_pairs(read_config(raw), "it"))
    assert {key: pairs[f"{arch}.{key}"] for key in keys if f"{arch}.{key}" in pairs} == {
        key: numbers("BOOL", each) if isinstance(each, list) else scalar("UINT32", each) for key, each in stated.items()
    }
    assert pairs[f"{arch}.rope.dimension_sections"] == numbers("INT32", [*(sections or [2, 1, 1]), 0])
    raw["rope_parameters"]["mrope_section"] = [1, "a"]
    with pytest.raises(ConfigError, match=r"mrope_section=.* expected at most 4 numbers"):
        read_config(raw)


def test_a_text_model_beside_a_vision_encoder_is_a_plain_llama(tmp_path: Path) -> None:
    """Without the encoder, of which a warning tells; the logits are those of the folder."""
    folder = with_vision(folder_of(tmp_path / "model", **FAMILIES["mistral"]))
    source = open_model(folder)
    done = convert(source, tmp_path / "model.gguf", MIXES["F32"])
    told = f"tensors that are not used: {NUM_UNUSED} of vision (Karat reads no images)"
    assert source.warnings == (told,) and told in done.warnings
    back = open_gguf(tmp_path / "model.gguf")
    assert back.metadata.values["general.architecture"] == "llama" and back.warnings == ()
    ids = np.random.default_rng(0).integers(3, 4000, 100).tolist()
    expected, got = (LLM(path, kv_dtype="float32").logits(ids) for path in (folder, tmp_path / "model.gguf"))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("window", "told"), [(24, 24), (None, 0), (128, 0)])
def test_mistrals_window(window: int | None, told: int, tmp_path: Path) -> None:
    """It is stated, also that there is none, so that nothing is warned of; the logits beyond it are the folder's."""
    folder = folder_of(tmp_path / "Mistral", model_type="mistral", sliding_window=window)
    done = convert(open_model(folder), tmp_path / "model.gguf", MIXES["F32"])
    assert any(f"without the model's window of {told} tokens" in warning for warning in done.warnings) == bool(told)
    back = open_gguf(tmp_path / "model.gguf")
    assert back.metadata.values["llama.attention.sliding_window"] == told and back.warnings == ()
    ids = np.random.default_rng(0).integers(3, 4000, 100).tolist()
    expected, got = (LLM(path, kv_dtype="float32").logits(ids) for path in (folder, tmp_path / "model.gguf"))
    np.testing.assert_array_equal(got, expected)


def test_the_rows_of_q_and_k_are_paired_as_llama_cpp_has_them(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    convert(open_model(folder), tmp_path / "model.gguf", MIXES["F32"])
    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    q = load_file(folder / "model.safetensors")["model.layers.1.self_attn.q_proj.weight"]
    expected = q.reshape(4, 2, 8, 64).swapaxes(1, 2).reshape(64, 64)  # heads, halves, pairs
    np.testing.assert_array_equal(stored["blk.1.attn_q.weight"], expected)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("mix", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16"])
def test_blocks_are_those_of_the_gguf_package(mix: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    done = convert(open_model(folder), tmp_path / "model.gguf", MIXES[mix], pure=True)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    values = load_file(folder / "model.safetensors")
    kind = gguf.GGMLQuantizationType[mix]
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, own in (
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
        ("output.weight", "lm_head.weight"),
        ("token_embd.weight", "model.embed_tokens.weight"),
    ):
        assert tensors[name].tensor_type == kind
        assert tensors[name].data.tobytes() == gguf.quants.quantize(values[own], kind).tobytes()
    for tensor in reader.tensors:
        if len(tensor.shape) == 1:
            assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
    for report in done.tensors:
        array = values[report.name]
        exact = array.astype(np.float64)
        if report.dtype in ("F32",):
            assert report.error == 0
        else:
            encoded = gguf.quants.dequantize(gguf.quants.quantize(array, kind), kind)
            error = np.sqrt(((encoded - exact) ** 2).sum() / (exact**2).sum())
            assert report.error == pytest.approx(error, rel=1e-6)


@pytest.mark.parametrize("mix", ["Q8_0", "Q5_1"])
def test_experts_are_one_tensor_of_which_one_line_tells(mix: str, tmp_path: Path) -> None:
    """In order of their ids, each quantised as it would be alone; converted back to F32 they are these blocks."""
    folder = folder_of(tmp_path / "model", hidden_size=64, **(FAMILIES["qwen3_moe"] | {"moe_intermediate_size": 32}))
    done = convert(open_model(folder), tmp_path / "model.gguf", MIXES[mix], pure=True)
    values, kind = load_file(folder / "model.safetensors"), gguf.GGMLQuantizationType[mix]
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    for stored, part in (("gate", "gate_proj"), ("up", "up_proj"), ("down", "down_proj")):
        whole = np.stack([values[f"model.layers.1.mlp.experts.{expert}.{part}.weight"] for expert in range(6)])
        blocks = gguf.quants.quantize(whole, kind)
        tensor = tensors[f"blk.1.ffn_{stored}_exps.weight"]
        assert (tensor.tensor_type, tensor.data.tobytes()) == (kind, blocks.tobytes())
        (report,) = (report for report in done.tensors if report.name == f"model.layers.1.mlp.experts.{part}.weight")
        assert report.shape == whole.shape == tuple(tensor.shape.tolist()[::-1])
        error = np.linalg.norm(gguf.quants.dequantize(blocks, kind) - whole) / np.linalg.norm(whole)
        assert report.error == pytest.approx(error, rel=1e-6)
    assert tensors["blk.1.ffn_gate_inp.weight"].tensor_type == gguf.GGMLQuantizationType.F32
    convert(open_gguf(tmp_path / "model.gguf"), tmp_path / "back.gguf", MIXES["F32"])
    quantised, plain = open_gguf(tmp_path / "model.gguf"), open_gguf(tmp_path / "back.gguf")
    for name, weight in find_weights(read_config(plain.config), plain).items():
        expected = find_weights(read_config(quantised.config), quantised)[name]
        np.testing.assert_array_equal(weight.to_array(F32), expected.to_array(F32), err_msg=name)


@pytest.mark.parametrize("quantize", ["q8_0", "q4_0"])
def test_pure_is_what_quantising_at_load_makes(quantize: str, tmp_path: Path) -> None:
    """Also where rows are no whole blocks: the same logits, bit for bit."""
    folder = folder_of(tmp_path / "model", intermediate_size=44)
    done = convert(open_model(folder), tmp_path / "model.gguf", MIXES[quantize.upper()], pure=True)
    told = {report.name: (report.dtype, report.reason) for report in done.tensors}
    reason = f"rows of 44 are no whole blocks of {quantize.upper()}"
    assert told["model.layers.0.mlp.down_proj.weight"] == ("F32", reason)
    loaded, converted = (
        LLM(path, max_model_len=64, quantize=how).logits(list(range(3, 40)))
        for path, how in ((folder, quantize), (tmp_path / "model.gguf", None))
    )
    np.testing.assert_array_equal(loaded, converted)


def test_a_mix_and_what_is_told(tmp_path: Path) -> None:
    done = convert(open_model(folder_of(tmp_path / "model")), tmp_path / "model.gguf", MIXES["Q4_K_M"])
    told = {report.name: (report.dtype, report.reason) for report in done.tensors}
    assert told["lm_head.weight"] == ("Q8_0", "rows of 64 are no whole blocks of Q4_K")
    assert told["model.layers.0.self_attn.q_proj.weight"] == ("Q5_0", "rows of 64 are no whole blocks of Q4_K")
    assert told["model.norm.weight"] == ("F32", None)
    metadata = read_header(tmp_path / "model.gguf").metadata
    assert metadata.values["general.file_type"] == 15
    assert metadata.values["general.quantization_version"] == 2


class TestTokenizers:
    def same(self, folder: Path, path: Path, num: int) -> None:
        convert(open_model(folder), path, MIXES["F16"])
        checkpoint = open_model(path)
        ours, expected = Tokenizer.of(checkpoint), Tokenizer.from_folder(folder)
        for text in random_strings(num):
            assert ours.encode(text) == expected.encode(text), ascii(text)
        for token_id in range(expected.vocab_size):
            assert ours.id_to_token(token_id) == expected.id_to_token(token_id)
        assert ours.special_ids == expected.special_ids
        assert ours.special_tokens.items() >= expected.special_tokens.items()

    def test_byte_level(self, tmp_path: Path) -> None:
        self.same(embedded_model_path(), tmp_path / "a.gguf", 2000)
        messages = [{"role": "user", "content": "Hello"}]
        ours = Tokenizer.of(open_model(tmp_path / "a.gguf"))
        assert ours.render_chat(messages) == Tokenizer.from_folder(embedded_model_path()).render_chat(messages)

    def test_sentence_piece(self, data_dir: Path, tmp_path: Path) -> None:
        self.same(data_dir / "stories260k", tmp_path / "a.gguf", 2000)

    @pytest.mark.parametrize("split", [True, False])
    @pytest.mark.parametrize("scheme", ["always", "first", "never"])
    def test_metaspace(self, scheme: str, split: bool, data_dir: Path, tmp_path: Path) -> None:
        """Of Mistral's folders and Llama 2's newer ones; other engines put one space more before what begins so."""
        folder = self.with_metaspace(data_dir, tmp_path, prepend_scheme=scheme, split=split)
        self.same(folder, tmp_path / "a.gguf", 500)
        ours, expected = Tokenizer.of(open_model(tmp_path / "a.gguf")), Tokenizer.from_folder(folder)
        for text in ("", " ", "  a", " a", "a", "</s>a", "a</s> b</s>c</s>", "▁a", "<s> <s>a  b "):
            assert ours.encode(text) == expected.encode(text), text
            assert ours.decode(ours.encode(text)) == expected.decode(expected.encode(text))
        done = convert(open_model(folder), tmp_path / "b.gguf", MIXES["F16"])
        assert any("no word for Metaspace" in warning for warning in done.warnings) == (scheme != "never")
        assert open_model(tmp_path / "a.gguf").warnings == ()

    def test_metaspace_that_cuts_what_its_merges_join(self, data_dir: Path, tmp_path: Path) -> None:
        folder = self.with_metaspace(data_dir, tmp_path, prepend_scheme="always", split=True)
        state = json.loads((folder / "tokenizer.json").read_text())
        state["model"]["merges"].append(["s", "▁"])
        state["model"]["vocab"]["s▁"] = state["model"]["vocab"].pop("z")
        state["model"]["merges"] = [m for m in state["model"]["merges"] if "z" not in "".join(m)]
        (folder / "tokenizer.json").write_text(json.dumps(state))
        with pytest.raises(TokenizerError, match="cuts at spaces, and merges over them"):
            convert(open_model(folder), tmp_path / "a.gguf", MIXES["F16"])

    def with_metaspace(self, data_dir: Path, tmp_path: Path, **options: Any) -> Path:
        folder = Path(shutil.copytree(data_dir / "stories260k", tmp_path / "folder"))
        state = json.loads((folder / "tokenizer.json").read_text())
        state["normalizer"] = None
        state["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", **options}
        if options["prepend_scheme"] == "never":
            state["decoder"]["decoders"] = [step for step in state["decoder"]["decoders"] if step["type"] != "Strip"]
        (folder / "tokenizer.json").write_text(json.dumps(state))
        return folder

    def test_rows_without_a_token_are_unused(self, tmp_path: Path) -> None:
        convert(open_model(folder_of(tmp_path / "model")), tmp_path / "a.gguf", MIXES["F32"])
        metadata = read_header(tmp_path / "a.gguf").metadata
        tokens = metadata.array("tokenizer.ggml.tokens", "STRING")
        types = metadata.array("tokenizer.ggml.token_type", "INT32")
        assert tokens is not None and types is not None
        assert tokens.strings()[4096:] == ["[PAD4096]", "[PAD4097]", "[PAD4098]", "[PAD4099]"]
        assert types.numbers()[4096:].tolist() == [5] * 4

    @pytest.mark.parametrize("reached", [True, False])
    def test_pieces_taken_whole(self, reached: bool, tmp_path: Path) -> None:
        """Merging every piece is the same as taking tokens whole, as gpt-oss' file does, if merges reach them all."""
        folder = folder_of(tmp_path / "model")
        state = json.loads((folder / "tokenizer.json").read_text())
        assert not state["model"]["ignore_merges"]
        cut = {"type": "Split", "pattern": {"Regex": PRE_TOKENIZERS["gpt-4o"].patterns[0]}}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        steps = [{**cut, "behavior": "Isolated", "invert": False}, level]
        state |= {"normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
        if not reached:
            state["model"]["merges"].pop()
        (folder / "tokenizer.json").write_text(json.dumps(state))
        if not reached:
            with pytest.raises(TokenizerError, match="a pre-tokenizer without a name in GGUF"):
                convert(open_model(folder), tmp_path / "a.gguf", MIXES["F32"])
            return
        convert(open_model(folder), tmp_path / "a.gguf", MIXES["F32"])
        assert read_header(tmp_path / "a.gguf").metadata.optional(str, "tokenizer.ggml.pre") == "gpt-4o"
        ours, expected = Tokenizer.of(open_model(tmp_path / "a.gguf")), Tokenizer.from_folder(folder)
        for text in random_strings(500):
            assert ours.encode(text) == expected.encode(text), text

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            ({"pre_tokenizer": {"type": "Whitespace"}}, "text without a token would be lost"),
            ({"pre_tokenizer": None}, "text without a token would be lost"),
            ({"normalizer": {"type": "Lowercase"}}, "the normalizer Lowercase"),
            (
                {
                    "pre_tokenizer": {
                        "type": "ByteLevel",
                        "add_prefix_space": False,
                        "trim_offsets": True,
                        "use_regex": False,
                    }
                },
                "a pre-tokenizer without a name in GGUF",
            ),
        ],
    )
    def test_what_gguf_cannot_describe(self, change: dict[str, Any], expected: str, tmp_path: Path) -> None:
        folder = folder_of(tmp_path / "model")
        state = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(state | change))
        with pytest.raises(Exception, match=expected):
            convert(open_model(folder), tmp_path / "a.gguf", MIXES["F32"])
        assert not (tmp_path / "a.gguf").exists()


def test_greedy_text_is_the_same(tmp_path: Path) -> None:
    """Of the embedded model and its F32 file, on the reference executor."""
    convert(open_model(embedded_model_path()), tmp_path / "a.gguf", MIXES["F32"])
    params = SamplingParams(temperature=0, max_tokens=24)
    texts = [
        LLM(model, executor="reference").generate("One day a fox", params)[0].outputs[0].token_ids
        for model in (None, tmp_path / "a.gguf")
    ]
    assert texts[0] == texts[1]


class TestLogits:
    """Of a quantised file, on each executor, with a cache of float32 or wider."""

    def logits(self, path: Path, **options: Any) -> NDArray[np.floating]:
        llm = LLM(path, max_model_len=64, **options)
        return llm.logits(llm.tokenizer.encode("Once upon a time, a fox found a lantern in the snow."))

    @pytest.mark.drawn(6)
    @pytest.mark.parametrize("mix", MIXES)
    def test_native_is_close_to_float64(self, mix: str, tmp_path: Path) -> None:
        if (reason := unavailable_reason()) is not None:
            pytest.skip(reason)
        done = convert(open_model(embedded_model_path()), tmp_path / "a.gguf", MIXES[mix], pure=True)
        if missing := {tensor.dtype for tensor in done.tensors} - set(native().formats()):
            pytest.skip(f"no native kernels for {', '.join(sorted(missing))}")
        exact = self.logits(tmp_path / "a.gguf", executor="reference", dtype="float64")
        for activations, bound in (
            ("int24", 1e-4),
            ("int16", 5e-3),
        ):  # as tests/models/test_llama_cpp_files.py has it
            got = self.logits(tmp_path / "a.gguf", executor="native", kv_dtype="float32", activations=activations)
            print(mix, activations, np.abs(got - exact).max() / exact.std())
            assert np.abs(got - exact).max() <= bound * exact.std()
        if mix in ("F16", "BF16"):  # of blocks activations are rounded (docs/determinism.md)
            convert(open_model(tmp_path / "a.gguf"), tmp_path / "b.gguf", MIXES["F32"])
            same = self.logits(tmp_path / "b.gguf", executor="native", kv_dtype="float32")
            np.testing.assert_array_equal(same, got)

    @pytest.mark.parametrize("mix", ["Q4_K_M", "Q5_K_M", "Q6_K", "Q4_1", "Q5_0", "Q5_1"])
    def test_reference_is_close_to_float64(self, mix: str, tmp_path: Path) -> None:
        convert(open_model(embedded_model_path()), tmp_path / "a.gguf", MIXES[mix])
        exact = self.logits(tmp_path / "a.gguf", executor="reference", dtype="float64")
        got = self.logits(tmp_path / "a.gguf", executor="reference")
        assert np.abs(got - exact).max() <= 1e-4 * exact.std()


class TestFromGguf:
    def test_metadata_are_taken_over(self, data_dir: Path, tmp_path: Path) -> None:
        path = data_dir / "stories260k" / "stories260k-f32.gguf"
        convert(open_model(path), tmp_path / "a.gguf", MIXES["Q8_0"])
        source, written = read_header(path), read_header(tmp_path / "a.gguf")
        assert written.metadata.values["general.file_type"] == 7
        for key in source.metadata.values:
            if key != "general.file_type":
                assert written.metadata.stored(key) == source.metadata.stored(key)
        stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
        kind = gguf.GGMLQuantizationType.Q8_0
        for tensor in gguf.GGUFReader(path).tensors:
            if tensor.name.endswith(("attn_q.weight", "ffn_gate.weight")):  # Q in the order that the file has
                assert stored[tensor.name].data.tobytes() == gguf.quants.quantize(tensor.data, kind).tobytes()

    def test_quantised_sources(self, tmp_path: Path) -> None:
        convert(open_model(folder_of(tmp_path / "model")), tmp_path / "a.gguf", MIXES["Q8_0"])
        with pytest.raises(UsageError, match="is quantised already, to Q8_0"):
            convert(open_model(tmp_path / "a.gguf"), tmp_path / "b.gguf", MIXES["Q4_0"])
        convert(open_model(tmp_path / "a.gguf"), tmp_path / "b.gguf", MIXES["Q4_0"], requantize=True)
        convert(open_model(tmp_path / "a.gguf"), tmp_path / "c.gguf", MIXES["F32"])
        exact, same = open_model(tmp_path / "c.gguf").weights, open_model(tmp_path / "a.gguf").weights
        for name, weight in same.items():
            np.testing.assert_array_equal(exact[name].to_array(F32), weight.to_array(F32))
        convert(open_model(tmp_path / "a.gguf"), tmp_path / "d.gguf", MIXES["Q8_0"])
        assert (
            open_model(tmp_path / "d.gguf").weights["lm_head.weight"].data.tobytes()
            == same["lm_head.weight"].data.tobytes()
        )

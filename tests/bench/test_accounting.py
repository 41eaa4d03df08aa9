"""The count of bytes and FLOPs, against loops that count one by one and against torch's own counter."""

import random
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.batch import ForwardBatch
from karat.bench.accounting import Account, TokenWork
from karat.bench.shape_configs import shape_config
from karat.config import FLOAT_BYTES, RopeConfig
from karat.kv.groups import bytes_per_token
from karat.models.decoder import outline, weight_specs
from karat.models.qwen2 import Qwen2Config
from karat.models.registry import read_config
from tests.support.uneven import uneven_config

CONFIG = Qwen2Config(
    model_type="qwen2",
    vocab_size=50,
    hidden_size=12,
    intermediate_size=20,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_dim=4,
    rms_norm_eps=1e-6,
    max_position_embeddings=64,
    rope=RopeConfig(theta=10000.0),
    tie_word_embeddings=True,
    layer_windows=(None, None, None),
)


QWEN35 = {
    "model_type": "qwen3_5_moe_text",
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "vocab_size": 50,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
}


def batch_of(seqs: list[tuple[int, int]], logit_rows: list[int]) -> ForwardBatch:
    """Sequences as (tokens in the cache, new tokens)."""
    counts = [new for _, new in seqs]
    positions = [p for start, new in seqs for p in range(start, start + new)]
    ids = [0] * len(positions)
    return ForwardBatch.of(
        64,
        token_ids=ids,
        positions=positions,
        query_starts=[0, *accumulate(counts)],
        context_lens=[start + new for start, new in seqs],
        logit_rows=logit_rows,
        slots=[ids],
        block_tables=[[[0]] * len(seqs)],
    )


@given(
    seqs=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=4),
    windows=st.tuples(*[st.one_of(st.none(), st.integers(1, 12))] * 3),
    tied=st.booleans(),
    data=st.data(),
)
def test_every_byte_and_operation_counted_by_hand(
    seqs: list[tuple[int, int]], windows: tuple[int | None, ...], tied: bool, data: st.DataObject
) -> None:
    config = replace(CONFIG, layer_windows=windows, tie_word_embeddings=tied)
    num_tokens = sum(new for _, new in seqs)
    rows = data.draw(st.lists(st.integers(0, num_tokens - 1), unique=True).map(sorted))
    sizes = {spec.source: 1000 * i + 50 * 7 for i, spec in enumerate(weight_specs(config))}
    work = Account(config, sizes, "float16").of(batch_of(seqs, rows))

    weights = sum(size for name, size in sizes.items() if name.startswith(("model.layers", "model.norm")))
    head, table = "lm_head.weight", "model.embed_tokens.weight"
    if rows:
        weights += sizes[table if tied else head]
    if not (rows and tied):  # the table is not read as a whole
        weights += num_tokens * (sizes[table] // 50)
    assert work.weight_bytes == weights

    keys_read = pairs = 0
    for window in windows:
        for start, new in seqs:
            seen = set()
            for position in range(start, start + new):
                keys = [key for key in range(position + 1) if window is None or position - key < window]
                pairs += len(keys)
                seen |= set(keys)
            keys_read += len(seen)
    assert work.cache_bytes == keys_read * 2 * 2 * 4 * 2  # K and V, KV heads, head_dim, float16
    assert work.attention_flops == pairs * 6 * (2 * 4 + 2 * 4)  # heads; a dot product and a weighted sum
    layer = 12 * 24 + 2 * 12 * 8 + 24 * 12 + 3 * 12 * 20  # q; k and v; o; gate, up and down
    assert work.linear_flops == 2 * (3 * layer * num_tokens + 12 * 50 * len(rows))
    assert work.bytes == work.weight_bytes + work.cache_bytes
    assert work.flops == work.linear_flops + work.attention_flops


def test_layers_of_different_sizes_are_counted_each() -> None:
    config = uneven_config()
    sizes = {spec.source: 50 for spec in weight_specs(config)}
    work = Account(config, sizes, "float32").of(batch_of([(9, 1)], [0]))
    # Two layers with a window of 5, 4 KV heads of 6 and 8 query heads; one that sees all, 2 KV heads of 10 and 8.
    assert work.cache_bytes == 4 * (2 * 5 * 4 * 2 * 6 + 10 * 2 * 2 * 10)
    assert work.attention_flops == 2 * 5 * 8 * 4 * 6 + 10 * 8 * 4 * 10
    layer = [24 * (2 * 48 + 2 * 24 + 3 * 40), 24 * (2 * 80 + 2 * 20 + 3 * 72)]
    assert work.linear_flops == 2 * (2 * layer[0] + layer[1] + 24 * 50)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_cache_counts_in_its_own_type(dtype: str) -> None:
    sizes = {spec.source: 50 for spec in weight_specs(CONFIG)}
    work = Account(CONFIG, sizes, dtype).of(batch_of([(9, 1)], [0]))  # type: ignore[arg-type]
    assert work.cache_bytes == 10 * bytes_per_token(outline(CONFIG).keeps, dtype)  # type: ignore[arg-type]
    assert FLOAT_BYTES[dtype] * 10 * 3 * 2 * 2 * 4 == work.cache_bytes  # type: ignore[index]


def test_of_experts_those_are_read_that_tokens_choose() -> None:
    """One token reads its own; of many, simulated, as many as choose at random meet."""
    config = read_config(shape_config("gpt-oss-20b-cut") | {"num_hidden_layers": 1, "layer_types": ["full_attention"]})
    sizes = {spec.source: 100 for spec in weight_specs(config)}
    others = sum(size for name, size in sizes.items() if name.startswith("model.") and ".experts." not in name)
    others += 100 - sizes["model.embed_tokens.weight"]  # the head, and no whole table
    one = Account(config, sizes, "float32").of(batch_of([(9, 1)], [0]))
    assert one.weight_bytes == others + 4 * 6 * 100  # three matrices and three biases of each
    many = Account(config, sizes, "float32").of(batch_of([(9, 1)] * 10, [0]))
    rng = np.random.default_rng(1)
    met = [len({*rng.permuted(np.tile(np.arange(32), (10, 1)), axis=1)[:, :4].flat}) for _ in range(2000)]
    assert many.weight_bytes == pytest.approx(others + np.mean(met) * 600, rel=0.01)


def test_work_adds_up() -> None:
    assert TokenWork(1, 2, 3, 4, 5, 6) + TokenWork(10, 20, 30, 40, 50, 60) == TokenWork(11, 22, 33, 44, 55, 66)


def test_states_are_read_and_written_by_each_sequence() -> None:
    """Of Qwen3.5-35B-A3B 63 MB a sequence, counted from the numbers of its config.json; one that begins reads none."""
    config = read_config(QWEN35)
    sizes = {spec.source: 10 for spec in weight_specs(config)}
    account = Account(config, sizes, "float16")
    state = 30 * (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128)) * 4
    decode = account.of(batch_of([(9, 1), (70, 1)], [0, 1]))
    assert decode.state_bytes == 2 * 2 * state and 63e6 < state < 66e6
    assert account.of(batch_of([(0, 5), (9, 1)], [4, 5])).state_bytes == 3 * state
    assert decode.recurrent_flops == 2 * 30 * 2 * (3 * 32 * 128 * 128 + 4 * (2 * 16 * 128 + 32 * 128))
    assert decode.bytes == decode.weight_bytes + decode.cache_bytes + decode.state_bytes
    assert decode.flops == decode.linear_flops + decode.attention_flops + decode.recurrent_flops
    assert Account(config, sizes, "float16", "float64").of(batch_of([(9, 1)], [0])).state_bytes == 4 * state


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3_moe", "qwen2_moe"])
def test_flops_are_those_that_torch_counts(family: str) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from tests.support.random_models import build, draw_config

    raw = draw_config(random.Random(family), family)
    raw.pop("layer_types", None)
    if family != "llama":
        raw |= {"use_sliding_window": False, "sliding_window": None}  # torch counts all keys
    config, num_tokens, num_logits = read_config(raw), 17, 3
    model = build(raw, seed=0)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.arange(num_tokens)[None], logits_to_keep=num_logits)
    counts = {str(op): count for op, count in counter.get_flop_counts()["Global"].items()}
    batched = counts.pop("aten.bmm")  # scores and sums over all keys, the hidden half included
    sizes = {spec.source: 1 for spec in weight_specs(config)}
    work = Account(config, sizes, "float32").of(batch_of([(0, num_tokens)], [14, 15, 16]))
    assert work.linear_flops == sum(counts.values())
    assert work.attention_flops * 2 * num_tokens == batched * (num_tokens + 1)

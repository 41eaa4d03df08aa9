"""A GGUF file gives the config and the weights that the Hugging Face folder of the same model gives.

Covers: karat.checkpoint.gguf.config, karat.checkpoint.gguf.rope.
"""

import math
import random
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat.checkpoint.gguf import read_header
from karat.checkpoint.gguf.config import warnings as gguf_warnings
from karat.checkpoint.gguf.form import paired_rows
from karat.checkpoint.gguf.rope import llama3_factors, read_rope_factors
from karat.errors import CheckpointError, ConfigError
from karat.models.decoder import weight_specs
from karat.models.families import FAMILIES
from karat.models.opening import open_gguf, open_model, passed_over
from karat.models.registry import build as build_model
from karat.models.registry import find_weights, read_config
from karat.ops.reference import ReferenceOps
from karat.ops.rope_table import cos_sin_table, inverse_frequencies
from tests.checkpoint.gguf.builders import (
    ARRAY,
    BOOL,
    F32,
    F64,
    FORMS,
    I32,
    STRING,
    U16,
    U32,
    build,
    kv,
    pair,
    pairs,
    tensors,
    tiny,
    write_model,
)
from tests.support.calls import count_calls
from tests.support.drawn import examples

HYBRIDS = ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
STORED_OTHERWISE = (  # files do not store what folders do
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "gemma4_unified_text",
    "muse_glimmer_text",
    *HYBRIDS,
)
REWRITTEN = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
F32_TYPE = np.dtype(np.float32)


def opened(path: Path, content: bytes) -> Any:
    path.write_bytes(content)
    return open_gguf(path)


class TestHeader:
    @REWRITTEN
    @given(data=st.data(), version=st.sampled_from([2, 3]), alignment=st.sampled_from([8, 32, 64]))
    def test_every_kind_of_value(self, tmp_path: Path, data: st.DataObject, version: int, alignment: int) -> None:
        """Numbers at their limits, arrays of every kind and of arrays, read back as they were written."""
        floats = st.floats(width=32, allow_nan=False)
        kinds = {kind: st.integers(*_limits(form)) for kind, form in FORMS.items() if form[1] not in "fd"}
        kinds |= {BOOL: st.booleans(), F32: floats, F64: st.floats(allow_nan=False), STRING: st.text(max_size=20)}
        expected: list[tuple[str, int, Any]] = [("general.alignment", U32, alignment)]
        for number in range(data.draw(st.integers(0, 8))):
            kind = data.draw(st.sampled_from(sorted(kinds)))
            if data.draw(st.booleans()):
                expected.append((f"x.{number}", ARRAY, (kind, data.draw(st.lists(kinds[kind], max_size=5)))))
            else:
                expected.append((f"x.{number}", kind, data.draw(kinds[kind])))
        expected.append(("nested", ARRAY, (ARRAY, [(U32, [1, 2]), (STRING, ["a"])])))
        path = tmp_path / "a.gguf"
        path.write_bytes(build(expected, tensors(), version=version, alignment=alignment))
        head = read_header(path)
        assert (head.version, head.alignment, list(head.metadata.values)) == (
            version,
            alignment,
            [k for k, *_ in expected],
        )
        for key, kind, content in expected:
            got = head.metadata.values[key]
            if kind == ARRAY:
                item_kind, items = content
                assert got.len == len(items)
                if item_kind == STRING:
                    assert got.strings() == items
                elif item_kind != ARRAY:
                    assert got.numbers().tolist() == items
            elif kind == F32:
                assert np.float32(got) == np.float32(content) and len(str(got)) <= len(str(float(np.float32(content))))
            else:
                assert got == content and type(got) is type(content)
        for name, dims, _, stored in tensors():
            found = head.tensors[name]
            assert found.shape == tuple(reversed(dims))
            assert bytes(head.buffer[found.begin : found.end]) == stored

    def test_the_gguf_package_reads_the_same(self, data_dir: Path) -> None:
        path = data_dir / "tokenizers" / "ggml-vocab-phi-3.gguf"
        head, other = read_header(path), gguf.GGUFReader(path)
        keys = [key for key in other.fields if not key.startswith("GGUF.")]
        assert list(head.metadata.values) == keys
        for key in keys:
            got, expected = head.metadata.values[key], other.fields[key].contents()
            if isinstance(expected, list):
                assert (got.strings() if got.kind == "STRING" else got.numbers().tolist()) == expected
            else:
                assert got == pytest.approx(expected, rel=1e-7) if isinstance(expected, float) else got == expected


def _limits(form: str) -> tuple[int, int]:
    bits = 8 * np.dtype(form).itemsize
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if form[1].islower() else (0, (1 << bits) - 1)


def _hybrid(rng: random.Random, family: str, seed: int) -> dict[str, Any]:
    """A config.json with delta nets that a GGUF file can state; for every second seed it states which layers are."""
    from tests.support import random_models

    raw = random_models.draw_config(rng, family, "default")
    raw |= {"full_attention_interval": rng.choice([1, 2, 3])}
    for key in ("layer_types", "mlp_only_layers", "decoder_sparse_step"):
        raw.pop(key, None)
    if seed % 2 == 0:
        kinds = ["full_attention", "linear_attention", "full_attention"]
        raw |= {"num_hidden_layers": len(kinds), "layer_types": kinds}
    if "norm_topk_prob" in raw:
        raw["norm_topk_prob"] = True
    raw["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4} | {
        key: raw["rope_parameters"][key] for key in ("partial_rotary_factor",) if key in raw["rope_parameters"]
    }
    return raw


class TestSameModel:
    @pytest.mark.drawn(20)
    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("family", [family for family in FAMILIES if family not in STORED_OTHERWISE])
    def test_config_and_weights(self, family: str, seed: int, tmp_path: Path) -> None:
        """Of a random model that the gguf package wrote; in parts for every second one."""
        pytest.importorskip("torch", exc_type=ImportError)
        from tests.support import random_models

        rng = random.Random(f"{family} {seed}")
        raw = random_models.draw_config(rng, family) | {"use_sliding_window": False, "sliding_window": None}
        for key in ("layer_types", "max_window_layers", "no_rope_layers", "no_rope_layer_interval"):
            if "conv_L_cache" not in raw:
                raw.pop(key, None)
        raw["tie_word_embeddings"] |= family == "lfm2_moe"  # of which the gguf package knows no head
        if "block_auto_adjust_ff_dim" in raw:
            raw["block_auto_adjust_ff_dim"] = False
        for key in ("decoder_sparse_step", "mlp_only_layers"):
            raw.pop(key, None)
        if "norm_topk_prob" in raw:
            raw["norm_topk_prob"] = family in ("lfm2_moe", "qwen3_moe")
        if family not in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"):
            raw.pop("use_sliding_window")
        if family == "gpt_oss":
            raw |= {"sliding_window": 20, "swiglu_limit": 7.0, "swiglu_alpha": 1.702}
        elif family not in ("exaone4", "mistral", "phi3"):
            raw.pop("sliding_window")
        if family == "olmo3" or (family == "exaone4" and seed % 3):  # of which a file states the layers with a window
            kinds = ["full_attention", "sliding_attention"]
            types = ["sliding_attention", *rng.choices(kinds, k=raw["num_hidden_layers"])]
            raw |= {"sliding_window": 20, "layer_types": types, "num_hidden_layers": len(types)}
        if family == "olmo3":  # whose layers have one base, and no scaling behind a window
            raw["rope_parameters"] |= {"sliding_attention": {"rope_type": "default", "rope_theta": 5e5}}
            raw["rope_parameters"]["full_attention"]["rope_theta"] = 5e5
        ropes = raw["rope_parameters"]
        rope = ropes.get("full_attention", ropes)
        if rope["rope_type"] == "yarn":  # what else it may state, GGUF does not carry
            kept = {"rope_type", "rope_theta", "factor", "original_max_position_embeddings"}
            kept |= {"mscale", "mscale_all_dim", "llama_4_scaling_beta"} if family == "ministral3" else set()
            for key in rope.keys() - kept:
                del rope[key]
            rope |= {"truncate": False} if family == "gpt_oss" else {}
        expected = read_config(raw)
        weights = random_weights(raw, expected, seed)
        path = tmp_path / "model.gguf"
        write_model(path, raw, weights, split=5 if seed % 2 else None)
        if seed % 2:
            path = min(tmp_path.glob("model-00001-of-*.gguf"))
        checkpoint = open_model(path)
        config = read_config(checkpoint.config)
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "rms_norm_eps",
            "max_position_embeddings",
            "tie_word_embeddings",
            "layer_windows",
            "bos_token_id",
            "eos_token_ids",
        ):
            assert getattr(config, name) == getattr(expected, name), name
        assert weight_specs(config) == weight_specs(expected)
        for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"):
            assert getattr(config, name, None) == getattr(expected, name, None), name
        for name in ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"):
            assert getattr(config, name, 1) == pytest.approx(getattr(expected, name, 1), rel=1e-7)
        assert [shape.rope is None for shape in config.shapes] == [shape.rope is None for shape in expected.shapes]
        assert config.model_type == ("llama" if family == "mistral" else family)
        tables = [
            cos_sin_table(c.rope, head_dim=c.head_dim, num_positions=300, dtype=F32_TYPE) for c in (config, expected)
        ]
        np.testing.assert_array_equal(tables[0].cos, tables[1].cos)
        np.testing.assert_array_equal(tables[0].sin, tables[1].sin)
        found = find_weights(config, checkpoint)
        assert {*found} == {*weights}
        for name, weight in found.items():
            np.testing.assert_array_equal(weight.to_array(F32_TYPE), weights[name].reshape(weight.shape), err_msg=name)

    @pytest.mark.drawn(2)
    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("family", STORED_OTHERWISE)
    def test_logits_where_weights_are_stored_otherwise(self, family: str, seed: int, tmp_path: Path) -> None:
        """Tiled value heads, norms with 1 + weight, rates without logarithm: in float64 the folder's model.

        Some files state which layers are delta nets, the others every how many layers there is another.

        Rates and sums are rounded to float32 in the file: 6e-8 each, of which some hundred add up.
        """
        pytest.importorskip("torch", exc_type=ImportError)
        from tests.support import forward, random_models

        rng = random.Random(f"{family} {seed}")
        if family == "muse_glimmer_text":
            raw = random_models.draw_muse_glimmer_of_gguf(rng)
        elif family.startswith("gemma"):
            raw = random_models.draw_gemma_of_gguf(rng, family)
        else:
            raw = _hybrid(rng, family, seed)
        hf = random_models.build(raw, seed)
        weights = {name: each.detach().numpy() for name, each in hf.state_dict().items()}
        if raw["tie_word_embeddings"]:
            del weights["lm_head.weight"]
        write_model(tmp_path / "model.gguf", raw, weights)
        checkpoint = open_model(tmp_path / "model.gguf")
        ops = ReferenceOps("float64")
        ids = [rng.randrange(raw["vocab_size"]) for _ in range(70)]
        of_file = build_model(read_config(checkpoint.config), ops, checkpoint, num_positions=100)
        (got,), (want,) = (forward.run(model, [ids]) for model in (of_file, forward.from_transformers(raw, hf, ops)))
        assert want.std() >= 1
        assert np.abs(got - want).max() <= 3e-5 * want.std()

    def test_the_size_of_experts_in_old_files(self, tmp_path: Path) -> None:
        """They state that of all chosen experts together."""
        pytest.importorskip("torch", exc_type=ImportError)
        from tests.support.parallel import config_of

        raw = config_of("qwen3_moe", hidden_size=32, head_dim=8, num_attention_heads=4, vocab_size=60)
        raw |= {"moe_intermediate_size": 12, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
        weights = random_weights(raw, read_config(raw), 0)
        write_model(tmp_path / "new.gguf", raw, weights)
        old = {**raw, "intermediate_size": 36, "moe_intermediate_size": 0}  # of 3 chosen ones; 0 is not written
        write_model(tmp_path / "old.gguf", old, weights)
        for name in ("new", "old"):
            assert read_config(open_gguf(tmp_path / f"{name}.gguf").config).moe_intermediate_size == 12

    def test_stories(self, data_dir: Path) -> None:
        """The folder and the GGUF file of one trained model, which other programs converted."""
        folder = data_dir / "stories260k"
        checkpoints = [open_model(folder), open_model(folder / "stories260k-f32.gguf")]
        configs = [read_config({**c.config, "torch_dtype": None, "dtype": None}) for c in checkpoints]
        assert configs[0] == configs[1]
        found = [find_weights(c, checkpoint) for c, checkpoint in zip(configs, checkpoints, strict=True)]
        assert found[0].keys() == found[1].keys()
        for name, weight in found[0].items():
            np.testing.assert_array_equal(weight.to_array(F32_TYPE), found[1][name].to_array(F32_TYPE))

    @pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
    def test_paired_rows_of_blocks_are_moved_whole(self, name: str, tmp_path: Path) -> None:
        kind = gguf.GGMLQuantizationType[name]
        weight = np.random.default_rng(7).standard_normal((8, 64)).astype(np.float32)
        blocks = gguf.quants.quantize(weight, kind)
        changed = [
            ("blk.0.attn_q.weight", (64, 8), int(kind), blocks.tobytes()) if item[0] == "blk.0.attn_q.weight" else item
            for item in tensors()
        ]
        checkpoint = opened(tmp_path / "a.gguf", build(pairs(), changed))
        got = checkpoint.weights["model.layers.0.self_attn.q_proj.weight"]
        assert (got.dtype, got.shape, got.num_bytes) == (name, (8, 64), blocks.nbytes)
        rows = paired_rows(8, 4)
        assert got.data.tobytes() == blocks[rows].tobytes()
        np.testing.assert_array_equal(got.to_array(F32_TYPE), gguf.quants.dequantize(blocks, kind)[rows])


def random_weights(raw: dict[str, Any], config: Any, seed: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    names = {spec.source: (spec.stored or (spec.shape,))[0] for spec in weight_specs(config)}
    if raw["tie_word_embeddings"]:
        names.pop("lm_head.weight", None)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in names.items()}


class TestLlama3:
    @given(
        theta=st.sampled_from([10000.0, 500000.0, 1e6]),
        head_dim=st.sampled_from([64, 80, 128]),
        factor=st.sampled_from([2.0, 8.0, 16.0, 32.0]),
        length=st.sampled_from([512, 2048, 8192, 16384, 100_000]),
    )
    def test_found_again(self, theta: float, head_dim: int, factor: float, length: int) -> None:
        factors = llama3_factors(theta, head_dim, factor, 1, 4, length).astype(np.float32)
        found = read_rope_factors(factors, theta, head_dim)
        if factors.max() == 1:
            assert found is None
            return
        assert found is not None
        again = llama3_factors(theta, head_dim, found["factor"], 1, 4, found["original_max_position_embeddings"])
        np.testing.assert_allclose(again, factors, rtol=1e-5)
        if ((factors > 1.01) & (factors < factor * 0.99)).any() and factors.max() > factor * 0.9999:
            assert (found["factor"], found["original_max_position_embeddings"]) == (factor, length)

    @pytest.mark.parametrize("factor", [3.7, 2.1, 12.3])
    def test_a_factor_that_is_no_whole_number(self, factor: float) -> None:
        """GGUF has what float32 makes of it: the shortest decimal is meant."""
        factors = llama3_factors(10000.0, 128, factor, 1, 4, 2048).astype(np.float32)
        found = read_rope_factors(factors, 10000.0, 128)
        assert found is not None and found["factor"] == factor

    @pytest.mark.parametrize("other", [[1, 2, 1, 1], [1, 3, 5, 8], [8, 1, 8, 1]])
    def test_other_factors_divide_the_frequencies(self, other: list[float], tmp_path: Path) -> None:
        """In float32, as llama.cpp does."""
        assert read_rope_factors(np.array(other, np.float32), 10000.0, 8) == {"rope_type": "factors", "factors": other}
        content = build(pairs(), [*tensors(), ("rope_freqs.weight", [2], 0, struct.pack("<ff", 7.3, 1.1))])
        rope = read_config(opened(tmp_path / "a.gguf", content).config).rope
        expected = np.array([1, 0.01], np.float32) / np.array([7.3, 1.1], np.float32)
        np.testing.assert_array_equal(inverse_frequencies(rope, 4), expected)

    @given(
        factors=st.lists(st.floats(1, width=32, allow_infinity=False), min_size=1, max_size=40),
        theta=st.floats(1, 3e38, exclude_min=True),
    )
    def test_any_factors_are_kept(self, factors: list[float], theta: float) -> None:
        found = read_rope_factors(np.array(factors, np.float32), theta, 2 * len(factors))
        if found is None:
            assert max(factors) < 1 + 1e-5
        elif found["rope_type"] == "factors":
            assert found["factors"] == factors
        else:
            assert found["rope_type"] == "llama3"
            numbers = (found["factor"], 1, 4, found["original_max_position_embeddings"])
            np.testing.assert_allclose(llama3_factors(theta, 2 * len(factors), *numbers), factors, rtol=1e-5)

    @pytest.mark.parametrize("wrong", [[1, 1, 1, 0.5], [1, 1, math.nan, 8], [1, 1, 1, math.inf], [-1, 1, 1, 1]])
    def test_what_divides_nothing_is_refused(self, wrong: list[float]) -> None:
        with pytest.raises(ConfigError, match=r"rope_freqs\.weight"):
            read_rope_factors(np.array(wrong, np.float32), 10000.0, 8)


NEUTRAL: dict[str, tuple[int, Any]] = {
    "nextn_predict_layers": (U32, 0),
    "residual_scale": (F32, 1.0),
    "embedding_scale": (F32, 1.0),
    "logit_scale": (F32, 0.0),
    "attn_logit_softcapping": (F32, 0.0),
    "final_logit_softcapping": (F32, 0.0),
    "leading_dense_block_count": (U32, 0),
    "expert_count": (U16, 0),
    "attention.scale": (F32, 0.5),  # of heads of 4
    "attention.causal": (BOOL, True),
    "tensor_data_layout": (STRING, "Meta AI original pth"),
    "rope.scaling.finetuned": (BOOL, True),
    "rope.scaling.factor": (F32, 0.0),
    "rope.scaling.yarn_ext_factor": (F32, -1.0),
    "rope.scaling.attn_factor": (F32, 1.0),
    "attention.sliding_window": (U32, 0),
}


class TestKeys:
    def test_what_changes_nothing_is_no_key(self, tmp_path: Path) -> None:
        expected = opened(tmp_path / "a.gguf", tiny())
        for key, value in NEUTRAL.items():
            found = opened(tmp_path / "b.gguf", tiny({f"llama.{key}": value}))
            assert (found.config, found.warnings) == (expected.config, ()), key
        everything = {f"llama.{key}": value for key, value in NEUTRAL.items()}
        assert opened(tmp_path / "b.gguf", tiny(everything)).config == expected.config

    def test_what_has_no_effect_is_named(self, tmp_path: Path) -> None:
        expected = opened(tmp_path / "a.gguf", tiny()).config
        for changes, words in [
            ({"llama.attention.layer_norm_epsilon": (F32, 1e-6)}, "layer_norm_epsilon=1e-06 has no effect"),
            (
                {"llama.rope.scaling.type": (STRING, "none"), "llama.rope.scaling.factor": (F32, 4.0)},
                "RoPE's factor 4.0 has no effect, because llama.rope.scaling.type is none",
            ),
        ]:
            found = opened(tmp_path / "b.gguf", tiny(changes))
            assert found.config == expected
            assert len(found.warnings) == 1 and words in found.warnings[0]

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("nextn_predict_layers", (U32, 1)),
            ("residual_scale", (F32, 0.22)),
            ("attention.scale", (F32, 0.25)),
            ("attn_logit_softcapping", (F32, 50.0)),
            ("attention.causal", (U32, 1)),
            ("tensor_data_layout", (STRING, "transposed")),
            ("rope.scaling.alpha", (F32, 2.0)),
        ],
    )
    def test_what_changes_the_answer_is_refused_by_name(self, key: str, value: Any, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=rf"llama\.{key}="):
            opened(tmp_path / "a.gguf", tiny({f"llama.{key}": value}))


class TestRopeKeys:
    """Defaults are the format's, as llama.cpp has them: its type is linear, its factor 0, and 0 is none."""

    @settings(REWRITTEN, max_examples=examples(200))
    @given(
        kind=st.sampled_from([None, "none", "linear", "yarn"]),
        factor=st.sampled_from([None, 0.0, 1.0, 2.5, 8.0]),
        old=st.sampled_from([None, 4.0]),
        attention=st.sampled_from([None, 1.0, 1.5]),
    )
    def test_as_the_format_has_them(
        self, kind: str | None, factor: float | None, old: float | None, attention: float | None, tmp_path: Path
    ) -> None:
        changes: dict[str, tuple[int, Any] | None] = {
            "llama.rope.scaling.type": None if kind is None else (STRING, kind),
            "llama.rope.scaling.factor": None if factor is None else (F32, factor),
            "llama.rope.scale_linear": None if old is None else (F32, old),
            "llama.rope.scaling.yarn_attn_factor": None if attention is None else (F32, attention),
        }
        content = tiny(changes)
        if None not in (factor, old):
            with pytest.raises(ConfigError, match="disagree"):
                opened(tmp_path / "a.gguf", content)
            return
        scale = factor if factor is not None else old if old is not None else 0.0
        rope = read_config(opened(tmp_path / "a.gguf", content).config).rope
        if kind == "none" or scale == 0 or (scale == 1 and kind != "yarn"):
            assert rope.rope_type == "default"
        else:
            assert (rope.rope_type, rope.factor) == (kind or "linear", scale)
        if rope.rope_type == "yarn":
            usual = 0.1 * math.log(scale) + 1
            assert rope.attention_factor == pytest.approx(usual if attention is None else attention, abs=1e-15)

    def test_an_attention_factor_as_the_converter_writes_it(self, tmp_path: Path) -> None:
        """That of yarn itself, rounded to float32, is yarn's own; another one is the model's, and is told."""
        yarn = {"llama.rope.scaling.type": (STRING, "yarn"), "llama.rope.scaling.factor": (F32, 8.0)}
        expected = opened(tmp_path / "a.gguf", tiny(yarn))
        usual = {"llama.rope.scaling.yarn_attn_factor": (F32, 0.1 * math.log(8) + 1)}
        same = opened(tmp_path / "b.gguf", tiny({**yarn, **usual, "llama.rope.scaling.yarn_ext_factor": (F32, 1.0)}))
        assert (same.config, same.warnings) == (expected.config, ())
        other = opened(tmp_path / "c.gguf", tiny({**yarn, "llama.rope.scaling.yarn_attn_factor": (F32, 1.5)}))
        assert read_config(other.config).rope.attention_factor == 1.5
        assert "yarn_attn_factor=1.5 is taken for the attention_factor" in other.warnings[0]
        with pytest.raises(ConfigError, match=r"yarn_ext_factor=0\.5 is not supported"):
            opened(tmp_path / "d.gguf", tiny({**yarn, "llama.rope.scaling.yarn_ext_factor": (F32, 0.5)}))
        linear = {"llama.rope.scaling.factor": (F32, 4.0)}
        with pytest.raises(ConfigError, match=r"yarn_ext_factor=0\.5 is not supported with .*linear.*; expected 0"):
            opened(tmp_path / "e.gguf", tiny({**linear, "llama.rope.scaling.yarn_ext_factor": (F32, 0.5)}))
        without = opened(tmp_path / "f.gguf", tiny({**linear, "llama.rope.scaling.yarn_ext_factor": (F32, 0.0)}))
        assert without.config == opened(tmp_path / "g.gguf", tiny(linear)).config


class TestBiases:
    """llama.cpp loads any of q, k, v and output with or without its bias; Hugging Face's llama has all or none."""

    @staticmethod
    def biases(names: str) -> list[Any]:
        sizes = {"q": 8, "k": 4, "v": 4, "output": 8}
        rng = np.random.default_rng(3)
        return [
            (f"blk.0.attn_{name}.bias", (sizes[name],), 0, rng.standard_normal(sizes[name], np.float32).tobytes())
            for name in names.split()
        ]

    def test_on_q_k_and_v_alone(self, tmp_path: Path) -> None:
        """They are qwen2's, with rows of q and k in pairs, as llama's files have them."""
        checkpoint = opened(tmp_path / "a.gguf", build(pairs(), [*tensors(), *self.biases("q k v")]))
        config = read_config(checkpoint.config)
        assert config.model_type == "qwen2"
        found = find_weights(config, checkpoint)
        for name, rows in (("q", paired_rows(8, 4)), ("k", paired_rows(4, 4)), ("v", np.arange(4))):
            stored = np.frombuffer(self.biases("q k v")[["q", "k", "v"].index(name)][3], "<f4")
            weight = found[f"model.layers.0.self_attn.{name}_proj.bias"]
            np.testing.assert_array_equal(weight.to_array(F32_TYPE), stored[rows])

    def test_on_all_four(self, tmp_path: Path) -> None:
        checkpoint = opened(tmp_path / "a.gguf", build(pairs(), [*tensors(), *self.biases("q k v output")]))
        assert read_config(checkpoint.config).model_type == "llama"

    @pytest.mark.parametrize("names", ["q", "q k", "output", "q k output"])
    def test_on_some_it_says_what_is_there(self, names: str, tmp_path: Path) -> None:
        checkpoint = opened(tmp_path / "a.gguf", build(pairs(), [*tensors(), *self.biases(names)]))
        with pytest.raises(CheckpointError) as caught:
            find_weights(read_config(checkpoint.config), checkpoint)
        assert "the file has biases on some matrices of a kind and not on the others" in str(caught.value)
        assert "config.json" not in str(caught.value)


class TestWarnings:
    def test_mistral_and_doubles(self, tmp_path: Path) -> None:
        doubles = [
            (name, dims, 28, np.frombuffer(data, "<f4").astype("<f8").tobytes())
            if "ffn_down" in name
            else (name, dims, kind, data)
            for name, dims, kind, data in tensors()
        ]
        content = build(pairs({"general.name": (STRING, "Mistral 7B")}), doubles)
        checkpoint = opened(tmp_path / "a.gguf", content)
        assert "sliding window" in checkpoint.warnings[0]
        assert "1 F64 tensors are rounded to float32: model.layers.0.mlp.down_proj.weight" in checkpoint.warnings[1]
        weight = checkpoint.weights["model.layers.0.mlp.down_proj.weight"]
        expected = np.frombuffer({t[0]: t[3] for t in tensors()}["blk.0.ffn_down.weight"], "<f4").reshape(8, 32)
        for dtype in (np.float32, np.float64):
            np.testing.assert_array_equal(weight.to_array(np.dtype(dtype)), expected)
        assert opened(tmp_path / "b.gguf", tiny()).warnings == ()

    def test_a_mistral_under_another_name(self, tmp_path: Path) -> None:
        """What its origin or its sizes give away; Llama 3 8B and later Mistrals differ in the base of RoPE."""
        sizes: dict[str, tuple[int, Any]] = {
            "general.name": (STRING, "Zephyr"),
            "llama.block_count": (U32, 32),
            "llama.embedding_length": (U32, 4096),
            "llama.feed_forward_length": (U32, 14336),
            "llama.attention.head_count": (U32, 32),
            "llama.attention.head_count_kv": (U32, 8),
            "llama.rope.freq_base": (F32, 10000.0),
        }
        origin = {"general.base_model.0.repo_url": (STRING, "https://huggingface.co/mistralai/Mistral-7B-v0.1")}
        forms = {name: family.gguf for name, family in FAMILIES.items()}
        for changes, warned in [
            (sizes, True),
            ({**sizes, "llama.rope.freq_base": (F32, 500000.0)}, False),
            ({**sizes, "llama.feed_forward_length": (U32, 11008)}, False),
            (origin, True),
            ({**origin, "llama.rope.freq_base": (F32, 1e9)}, False),
            ({"general.name": (STRING, "Ministral 8B Instruct 2410")}, True),
            ({"general.name": (STRING, "Ministral 8B"), "llama.rope.freq_base": (F32, 1e8)}, True),
            ({**origin, "llama.attention.sliding_window": (U32, 0)}, False),
            ({}, False),
        ]:
            path = tmp_path / "a.gguf"
            path.write_bytes(kv(*(pair(key, *value) for key, value in changes.items())))
            told = gguf_warnings(read_header(path).metadata, "llama", forms, [])
            assert ["sliding window" in text for text in told] == [True] * warned


def test_an_end_of_texts_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.ggml\.eos_token_id=6: expected an id below 6"):
        opened(tmp_path / "a.gguf", tiny({"tokenizer.ggml.eos_token_id": (U32, 6)}))


@pytest.mark.parametrize("key", ["eot", "eom"])
def test_other_ends_beyond_the_vocabulary_end_nothing(key: str, tmp_path: Path) -> None:
    plain = opened(tmp_path / "a.gguf", tiny())
    found = opened(tmp_path / "b.gguf", tiny({f"tokenizer.ggml.{key}_token_id": (U32, 99999)}))
    assert found.config == plain.config
    assert found.warnings == (
        f"tokenizer.ggml.{key}_token_id=99999 names no token (there are 6): nothing ends with it",
    )


UNKNOWN: dict[str, tuple[int, Any]] = {
    "deepstack_layers": (U32, 0),
    "ssm.conv_kernel": (U32, 0),
    "frob.names": (ARRAY, (STRING, [])),
    "frob.enabled": (BOOL, False),
    "frob.kind": (STRING, ""),
    "frob_scale": (F32, 1.0),
    "rotate.factor": (U32, 1),
}


def test_unknown_keys_that_say_nothing_are_named(tmp_path: Path) -> None:
    plain = opened(tmp_path / "a.gguf", tiny())
    for number, (key, value) in enumerate(UNKNOWN.items()):
        found = opened(tmp_path / f"{number}.gguf", tiny({f"llama.{key}": value}))
        assert found.config == plain.config and found.warnings == plain.warnings
        (told,) = found.passed_over
        assert told.startswith(f"llama.{key}=") and told in str(passed_over(found))
    assert passed_over(plain) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("frob_scale", (F32, 0.5)),
        ("frob.count", (U32, 1)),
        ("frob.enabled", (BOOL, True)),
        ("use_rope", (BOOL, False)),
        ("attention.frob_scale", (F32, 1.0)),
        ("residual_scale", (F32, 2.0)),
    ],
)
def test_unknown_keys_that_say_something_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"llama\.{key}=") as caught:
        opened(tmp_path / "a.gguf", tiny({f"llama.{key}": value}))
    assert key != "residual_scale" or "expected 0 or 1, or no such key" in str(caught.value)


def test_a_share_of_yarn_changes_nothing_where_nothing_is_scaled(tmp_path: Path) -> None:
    plain = opened(tmp_path / "a.gguf", tiny())
    for number, scaling in enumerate(({}, {"factor": (F32, 1.0)}, {"type": (STRING, "none"), "factor": (F32, 4.0)})):
        changes: Any = {f"llama.rope.scaling.{key}": value for key, value in scaling.items()}
        changes["llama.rope.scaling.yarn_ext_factor"] = (F32, 1.0)
        assert opened(tmp_path / f"{number}.gguf", tiny(changes)).config == plain.config
    linear = {"llama.rope.scaling.factor": (F32, 4.0), "llama.rope.scaling.yarn_ext_factor": (F32, 1.0)}
    with pytest.raises(ConfigError, match=r"yarn_ext_factor=1\.0 is not supported"):
        opened(tmp_path / "linear.gguf", tiny(linear))


def test_opening_a_large_vocabulary_steps_over_its_strings(data_dir: Path) -> None:
    """One call a string, of 151,936 tokens and 151,387 merges, and no more: what that is in seconds, and what fits
    into the 0.3 s that opening may take, is measured by `benchmarks.cold_start --open`.
    """
    path = data_dir / "tokenizers" / "ggml-vocab-qwen2.gguf"
    calls = count_calls(lambda: read_header(path))
    assert 303_323 < calls < 1.05 * 303_323


def test_a_vocabulary_is_no_model(data_dir: Path) -> None:
    with pytest.raises(CheckpointError, match="has no tensors: it is a vocabulary"):
        open_gguf(data_dir / "tokenizers" / "ggml-vocab-qwen2.gguf")


class TestSplits:
    @pytest.fixture
    def parts(self, tmp_path: Path) -> list[Path]:
        """A tiny model in three parts, as a split of the gguf package names and numbers them."""
        groups = [tensors()[:4], tensors()[4:8], tensors()[8:]]
        paths = [tmp_path / f"fox-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
        for number, (path, group) in enumerate(zip(paths, groups, strict=True)):
            split = {"split.no": (U16, number), "split.count": (U16, 3), "split.tensors.count": (I32, len(tensors()))}
            path.write_bytes(build(pairs(split), group))
        return paths

    def refused(self, path: Path) -> str:
        with pytest.raises(CheckpointError) as caught:
            open_gguf(path)
        return str(caught.value)

    def test_all_parts(self, parts: list[Path]) -> None:
        weights = open_gguf(parts[0]).weights
        assert len(weights) == len(tensors())
        assert {weight.file for weight in weights.values()} == set(parts)

    def test_another_part_than_the_first(self, parts: list[Path]) -> None:
        assert "is part 2 of 3 of a split; expected the first part" in self.refused(parts[1])

    def test_a_missing_part(self, parts: list[Path]) -> None:
        parts[2].unlink()
        message = self.refused(parts[0])
        assert "is the first of 3 parts; expected 'fox-00003-of-00003.gguf' beside it" in message

    def test_parts_in_the_wrong_order(self, parts: list[Path]) -> None:
        content = parts[1].read_bytes()
        parts[1].write_bytes(parts[2].read_bytes())
        parts[2].write_bytes(content)
        assert "states split.no and split.count (2, 3); expected (1, 3)" in self.refused(parts[0])

    def test_a_tensor_in_two_parts(self, parts: list[Path]) -> None:
        split = {"split.no": (U16, 2), "split.count": (U16, 3)}
        parts[2].write_bytes(build(pairs(split), tensors()[7:]))
        assert "which fox-00002-of-00003.gguf has already" in self.refused(parts[0])

    def test_a_part_of_another_split(self, parts: list[Path]) -> None:
        split = {"split.no": (U16, 2), "split.count": (U16, 3)}
        parts[2].write_bytes(build(pairs(split), tensors()[9:]))
        assert "states 11 tensors in all parts, which have 10" in self.refused(parts[0])

    @pytest.mark.parametrize(
        ("states", "words"),
        [
            ({"general.architecture": (STRING, "qwen2")}, "general.architecture='qwen2'; expected 'llama'"),
            ({"split.tensors.count": (I32, 12)}, "split.tensors.count=12; expected 11"),
        ],
    )
    def test_a_part_that_states_another_model(self, states: Any, words: str, parts: list[Path]) -> None:
        split = {"split.no": (U16, 2), "split.count": (U16, 3)} | states
        parts[2].write_bytes(build(pairs(split), tensors()[8:]))
        assert f"fox-00003-of-00003.gguf: states {words}, as fox-00001-of-00003.gguf has it" in self.refused(parts[0])

    def test_under_another_name(self, parts: list[Path]) -> None:
        parts[0].rename(parts[0].with_name("fox.gguf"))
        assert "under the name that the split gave it" in self.refused(parts[0].with_name("fox.gguf"))

    def test_a_link_to_the_first_part(self, parts: list[Path], tmp_path_factory: Any) -> None:
        link = tmp_path_factory.mktemp("work") / parts[0].name
        link.symlink_to(parts[0])
        assert len(open_gguf(link).weights) == len(tensors())

    def test_a_part_that_is_a_link_out_of_the_folder(self, parts: list[Path], tmp_path_factory: Any) -> None:
        elsewhere = tmp_path_factory.mktemp("elsewhere") / "part.gguf"
        parts[1].rename(elsewhere)
        parts[1].symlink_to(elsewhere)
        assert len(open_gguf(parts[0]).weights) == len(tensors())

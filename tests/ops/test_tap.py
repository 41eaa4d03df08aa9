"""A tap sees every op under its canonical name and changes nothing."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from karat.checkpoint.joins import renamed
from karat.ops.reference import ReferenceOps
from karat.ops.tap import Tap
from tests.support.conformance import load


@dataclass
class TwoRanks:
    """A group in which the other rank has the same part."""

    def all_gather(self, part: Any) -> list[Any]:
        return [part, part]


def test_a_sum_over_ranks_has_this_ranks_part_beside_it() -> None:
    """Of linear layers without the bias, which is added once; of experts too. Only where it is kept."""
    ops, rng = ReferenceOps("float32"), np.random.default_rng(5)
    group: Any = TwoRanks()
    x, bias = rng.standard_normal((3, 8), np.float32), rng.standard_normal(8, np.float32)
    matrices = [load(ops, rng.standard_normal((8, 8), np.float32)) for _ in range(3)]
    experts = tuple((matrix, matrix) for matrix in matrices)
    ids, weights = np.array([[0, 1]] * 3, np.int32), np.full((3, 2), 0.5, np.float32)
    for keep, kept in ((lambda _: True, {"a", "a.partial", "b", "b.partial"}), (lambda name: name == "b", {"b"})):
        tap = Tap(ops, keep)
        tap.linear(x, matrices[0], bias, leaves=(8,), group=group, name="a")
        tap.experts(x, ids, weights, *experts, leaves=(1, 2), group=group, name="b")
        assert tap.records.keys() == kept
        if len(kept) > 2:
            (whole,), (part,) = tap.records["b"], tap.records["b.partial"]
            np.testing.assert_array_equal(whole, part + part)
            (whole,), (part,) = tap.records["a"], tap.records["a.partial"]
            np.testing.assert_array_equal(whole, part + part + bias)


torch = pytest.importorskip("torch", reason="transformers needs torch")
from tests.support import forward, random_models  # noqa: E402


@pytest.mark.parametrize("family", random_models.FAMILIES)
def test_records_are_what_transformers_modules_return(family: str) -> None:
    """Every tapped name that is a module of transformers' model has that module's output (float32, loose: 1e-3)."""
    rng = random.Random(f"tap-{family}")
    config = random_models.draw_config(rng, family) | {"num_hidden_layers": 2}
    for key in ("layer_types", "layer_rope_theta", "decoder_sparse_step", "mlp_only_layers"):
        config.pop(key, None)
    if family.startswith("gemma4"):
        config |= {"num_kv_shared_layers": 0, "attention_k_eq_v": False}
    if family == "exaone4":  # which layers have a window follows from the window
        config["sliding_window"] = 7
    recurrent: list[str] = []  # modules of the first layer, where it has no attention
    if "linear_num_key_heads" in config:
        config["full_attention_interval"] = 2
        parts = ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "norm", "out_proj")
        parts = ("in_proj_ba", "norm", "out_proj") if family == "qwen3_next" else parts
        recurrent = [f"linear_attn.{part}" for part in parts]
    if "conv_L_cache" in config:
        config["layer_types"] = ["conv", "full_attention"]
        config |= {"num_dense_layers": 0} if "num_experts" in config else {}
        recurrent = ["conv.in_proj", "conv.out_proj"]
    hf = random_models.build(config, 7)
    ids = [rng.randrange(config["vocab_size"]) for _ in range(50)]
    theirs: dict[str, torch.Tensor] = {}
    for name, module in hf.named_modules():
        module.register_forward_hook(
            lambda _module, _args, out, name=name: theirs.update(
                {renamed(name): out[0] if isinstance(out, tuple) else out}
            )
        )
    with torch.no_grad():
        theirs["lm_head"] = hf(torch.tensor([ids])).logits  # which granite divides
    embedding = "model.embed_tokens"
    for name, module in hf.named_modules():
        if hasattr(module, "embed_scale"):  # by which the module multiplies
            theirs[f"{name}_scaled"] = theirs.pop(name)
    if embedding not in theirs:
        embedding = "model.embed_tokens_scaled"
    if family == "muse_glimmer_text":  # which normalises
        embedding, theirs["model.embed_tokens_normed"] = "model.embed_tokens_normed", theirs.pop("model.embed_tokens")

    model = forward.from_transformers(config, hf, ReferenceOps("float32"))
    tap = Tap(model.ops)
    (plain,) = forward.run(model, [ids])
    (tapped,) = forward.run(model, [ids], ops=tap)
    np.testing.assert_array_equal(plain, tapped)
    shared = {name for name in tap.records if name in theirs}
    heads, inner = ("o", ("down",)) if family == "phi3" else ("qkvo", ("gate", "up", "down"))  # others are rows of one
    has_first_norm = "model.layers.0.input_layernorm" in theirs  # norms may stand after the parts alone
    expected = {embedding, "model.norm", "lm_head"} | {
        f"model.layers.{i}{part}"
        for i in range(2)
        for part in (
            "",
            *([".input_layernorm"] if has_first_norm else []),
            *([f".{part}" for part in recurrent] if recurrent and i == 0 else [f".self_attn.{p}_proj" for p in heads]),
            ".post_attention_layernorm",
            *(
                [".mlp", ".mlp.router" if family == "gpt_oss" else ".mlp.gate"]
                if "num_experts_per_tok" in config
                else [f".mlp.{p}_proj" for p in inner]
            ),
        )
    }
    assert expected <= shared
    if family == "qwen3":
        assert "model.layers.1.self_attn.q_norm" in shared
    for name in shared:
        (ours,) = tap.records[name]
        turned = theirs[name].detach()
        if family in ("exaone4", "gemma3_text") and name.endswith(
            ("q_norm", "k_norm")
        ):  # whose heads come before tokens
            turned = turned.transpose(1, 2)
        other = turned.numpy().reshape(ours.shape)
        assert np.abs(ours - other).max() <= 1e-3 * np.abs(other).max(), name
    (weights,) = tap.records[f"model.layers.{int(bool(recurrent))}.self_attn.weights"]
    sums = weights.sum(axis=-1)
    assert (sums <= 1 + 1e-5).all() and (family == "gpt_oss" or (sums >= 1 - 1e-5).all())  # sinks have the rest
    assert weights.shape == (config["num_attention_heads"], 50, 50)
    assert not np.triu(weights[0], 1).any()


def test_keep_chooses() -> None:
    config = random_models.draw_config(random.Random(3), "qwen2")
    model = forward.from_transformers(config, random_models.build(config, 1), ReferenceOps("float64"))
    tap = Tap(model.ops, keep=lambda name: name.endswith("q_rope"))
    forward.run(model, [[1, 2, 3]], chunk=2, ops=tap)
    assert set(tap.records) == {f"model.layers.{i}.self_attn.q_rope" for i in range(config["num_hidden_layers"])}
    assert [len(x) for x in tap.records["model.layers.0.self_attn.q_rope"]] == [2, 1]

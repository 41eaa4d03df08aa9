"""llama.cpp's rules for mixed types, written out for models whose tensors can be listed by hand."""

import dataclasses

import pytest

from karat.config import ModelConfig, RopeConfig
from karat.convert.mix import MIXES, type_of
from karat.models.mixtures import MixtureConfig

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def config(*, num_layers: int = 24, hidden: int = 1024, tied: bool = False, **changes: object) -> ModelConfig:
    fields = {
        "model_type": "qwen2",
        "vocab_size": 1000,
        "hidden_size": hidden,
        "intermediate_size": 4096,
        "num_heads": 16,
        "num_kv_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "rope": RopeConfig(theta=1e4),
        **changes,
    }
    return ModelConfig(**fields, num_layers=num_layers, tie_word_embeddings=tied, layer_windows=(None,) * num_layers)  # type: ignore[arg-type]


def chosen(mix: str, name: str, model: ModelConfig, row_len: int | None = None, *, pure: bool = False) -> list[str]:
    """The types of this tensor in all layers, or of the one tensor of this name."""
    if name in (HEAD, EMBEDDING):
        return [type_of(MIXES[mix], name, (1000, row_len or model.hidden_size), None, model, pure=pure)]
    return [
        type_of(MIXES[mix], f"model.layers.{layer}.{name}.weight", (64, row_len or 1024), layer, model, pure=pure)
        for layer in range(model.num_layers)
    ]


def layers(types: list[str], dtype: str) -> list[int]:
    return [layer for layer, found in enumerate(types) if found == dtype]


# The first eighth, the last eighth, and every third between: of 24, and of 28 layers.
SENSITIVE_24 = [0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23]
SENSITIVE_28 = [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]


@pytest.mark.parametrize(("mix", "base"), [("Q4_K_M", "Q4_K"), ("Q5_K_M", "Q5_K")])
@pytest.mark.parametrize(("num_layers", "sensitive"), [(24, SENSITIVE_24), (28, SENSITIVE_28)])
def test_medium_mixes(mix: str, base: str, num_layers: int, sensitive: list[int]) -> None:
    model = config(num_layers=num_layers)
    for name in ("self_attn.v_proj", "mlp.down_proj"):
        types = chosen(mix, name, model)
        assert layers(types, "Q6_K") == sensitive
        assert set(types) == {base, "Q6_K"}
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj"):
        assert set(chosen(mix, name, model)) == {base}
    assert chosen(mix, HEAD, model) == ["Q6_K"]
    assert chosen(mix, EMBEDDING, model) == [base]
    assert chosen(mix, EMBEDDING, config(tied=True)) == ["Q6_K"]


def test_small_mixes() -> None:
    model = config(num_layers=32)
    assert layers(chosen("Q4_K_S", "self_attn.v_proj", model), "Q5_K") == [0, 1, 2, 3]
    assert layers(chosen("Q4_K_S", "mlp.down_proj", model), "Q5_K") == [0, 1, 2, 3]
    assert set(chosen("Q5_K_S", "mlp.down_proj", model)) == {"Q5_K"}
    assert set(chosen("Q6_K", "mlp.down_proj", model)) == {"Q6_K"}


@pytest.mark.parametrize(("num_heads", "value"), [(4, "Q3_K"), (6, "Q3_K"), (8, "Q4_K"), (14, "Q4_K")])
def test_with_two_bits_v_is_larger_the_more_heads_share_it(num_heads: int, value: str) -> None:
    """From four heads on; there are two of V."""
    model = config(num_heads=num_heads)
    assert set(chosen("Q2_K", "self_attn.v_proj", model)) == {value}
    for name in ("mlp.down_proj", "self_attn.o_proj"):
        assert set(chosen("Q2_K", name, model)) == {"Q3_K"}
    for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj", "mlp.up_proj"):
        assert set(chosen("Q2_K", name, model)) == {"Q2_K"}
    assert chosen("Q2_K", HEAD, model) == ["Q6_K"]
    assert chosen("Q2_K", EMBEDDING, model) == ["Q2_K"]


def test_mixes_of_three_bits() -> None:
    model = config(num_layers=33)
    parts = ("self_attn.v_proj", "mlp.down_proj", "self_attn.o_proj")
    assert [set(chosen("Q3_K_L", name, model)) for name in parts] == [{"Q5_K"}] * 3
    assert [set(chosen("Q3_K_S", name, model)) for name in parts] == [{"Q3_K"}] * 3
    for name in parts[:2]:
        types = chosen("Q3_K_M", name, model)
        assert layers(types, "Q5_K") == [0, 1]
        assert set(types) == {"Q4_K", "Q5_K"}
    assert set(chosen("Q3_K_M", "self_attn.o_proj", model)) == {"Q4_K"}
    few = config(num_layers=15)
    assert layers(chosen("Q3_K_M", "self_attn.v_proj", few), "Q5_K") == [0, 1]  # two layers of any number
    assert set(chosen("Q3_K_M", "mlp.down_proj", few)) == {"Q4_K"}  # the first sixteenth
    for name in ("Q3_K_S", "Q3_K_M", "Q3_K_L"):
        assert set(chosen(name, "self_attn.q_proj", model)) == {"Q3_K"}


@pytest.mark.parametrize("mix", ["IQ4_NL", "IQ4_XS"])
def test_mixes_of_uneven_levels(mix: str) -> None:
    shared, own = config(), config(num_heads=6)
    assert set(chosen(mix, "self_attn.v_proj", shared)) == {"Q5_K"}
    assert set(chosen(mix, "self_attn.v_proj", own)) == {mix}
    for model in (shared, own):
        assert layers(chosen(mix, "mlp.down_proj", model), "Q5_K") == [0, 1, 2]
        assert set(chosen(mix, "self_attn.o_proj", model)) == {mix}
        assert chosen(mix, HEAD, model) == ["Q6_K"]


def test_of_70b_models_v_is_larger() -> None:
    for model_type, heads in (("qwen2", 16), ("llama", 16)):
        model = config(num_layers=80, model_type=model_type, num_heads=heads)
        types = chosen("Q4_K_M", "self_attn.v_proj", model)
        assert set(types) == {"Q5_K", "Q6_K"}
        for mix in ("Q2_K", "Q3_K_S", "Q3_K_M"):
            assert set(chosen(mix, "self_attn.v_proj", model)) == {"Q5_K"}
    model = config(num_layers=80, model_type="llama", num_kv_heads=16)  # 65B
    assert set(chosen("Q4_K_M", "self_attn.v_proj", model)) == {"Q4_K", "Q6_K"}
    assert set(chosen("Q3_K_S", "self_attn.v_proj", model)) == {"Q3_K"}


@pytest.mark.parametrize(
    ("mix", "row_len", "matrix", "head"),
    [
        ("Q4_K_M", 896, "Q5_0", "Q8_0"),  # no multiple of 256: Qwen2.5 0.5B
        ("Q5_K_M", 896, "Q5_1", "Q8_0"),
        ("Q6_K", 896, "Q8_0", "Q8_0"),
        ("Q2_K", 896, "Q4_0", "Q8_0"),
        ("Q3_K_M", 896, "Q4_0", "Q8_0"),
        ("IQ4_XS", 896, "IQ4_NL", "Q8_0"),
        ("IQ4_NL", 896, "IQ4_NL", "Q8_0"),
        ("Q4_0", 896, "Q4_0", "Q8_0"),  # Q6_K was meant for the head
        ("Q8_0", 896, "Q8_0", "Q8_0"),
        ("Q4_K_M", 100, "F16", "F16"),  # no multiple of 32 either
        ("Q4_0", 100, "F16", "F16"),
        ("Q2_K", 100, "F16", "F16"),
        ("IQ4_XS", 100, "F16", "F16"),
        ("Q4_0", 1024, "Q4_0", "Q6_K"),
        ("Q8_0", 1024, "Q8_0", "Q8_0"),
        ("F16", 100, "F16", "F16"),
        ("BF16", 100, "BF16", "BF16"),
        ("F32", 100, "F32", "F32"),
    ],
)
def test_rows_that_do_not_divide(mix: str, row_len: int, matrix: str, head: str) -> None:
    model = config(hidden=row_len)
    assert set(chosen(mix, "self_attn.q_proj", model, row_len)) == {matrix}
    assert chosen(mix, HEAD, model, row_len) == [head]


def test_pure_and_vectors() -> None:
    model = config()
    assert chosen("Q4_0", HEAD, model, pure=True) == ["Q4_0"]
    assert set(chosen("Q4_K_M", "mlp.down_proj", model, pure=True)) == {"Q4_K"}
    for name in ("model.norm.weight", "model.layers.3.self_attn.q_proj.bias"):
        assert type_of(MIXES["Q4_K_M"], name, (1024,), None, model) == "F32"


def of_experts(num_experts: int) -> MixtureConfig:
    plain = config()
    fields = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    return MixtureConfig(
        **fields, num_experts=num_experts, num_experts_per_tok=2, moe_intermediate_size=512, norm_topk_prob=True
    )


@pytest.mark.parametrize("mix", MIXES)
def test_experts_are_like_an_mlp_and_routers_stay_as_they_are(mix: str) -> None:
    """Of 8 experts, k, v and o have more bits: they are small beside the experts."""
    for number in (8, 16):
        model = of_experts(number)
        for part in ("gate_proj", "up_proj", "down_proj"):
            types = chosen(mix, f"mlp.experts.3.{part}", model)
            assert types == (["MXFP4"] * 24 if mix == "MXFP4_MOE" else chosen(mix, f"mlp.{part}", config()))
        assert set(chosen(mix, "mlp.gate", model)) == set(chosen(mix, "mlp.gate", model, pure=True)) == {"F32"}
    is_plain = MIXES[mix].base in ("F32", "F16", "BF16")
    for part in ("k_proj", "v_proj", "o_proj"):
        name = f"self_attn.{part}"
        assert chosen(mix, name, of_experts(16)) == chosen(mix, name, config())
        of_8 = set(chosen(mix, name, of_experts(8)))
        if is_plain:
            assert of_8 == {MIXES[mix].base}
        elif part != "o_proj" or mix == "MXFP4_MOE":
            assert of_8 == {"Q8_0"}
        else:
            assert of_8 <= {"Q5_K", MIXES[mix].base}
    assert set(chosen("Q4_K_M", "self_attn.o_proj", of_experts(8))) == {"Q5_K"}
    assert set(chosen("Q3_K_L", "self_attn.o_proj", of_experts(8))) == {"Q3_K"}

"""Muse Glimmer (Meta, 2026): norms around each part, normed q and k without weights, and a gate with a matrix.

Three of four layers have a window, the others no RoPE. Released folders also have a vision encoder: muse_glimmer.py.
"""

from dataclasses import replace

from karat.checkpoint.gguf.form import GgufForm
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models import gemmas, muse_glimmers, window_patterns
from karat.models.family import Ends, Family, read_decoder
from karat.models.muse_glimmers import FACTOR, POST_EPS, THETA, MuseGlimmerConfig
from karat.models.reader import ConfigReader, read_layer_windows, read_num_kv_heads, read_window


def layer(place: Place, config: MuseGlimmerConfig, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, bias, shape = config.hidden_size, config.rms_norm_eps, config.attention_bias, config.shape(index)
    factor = config.qk_scale_factor
    attention = Attention(
        place / "self_attn", size, shape, qkv_bias=bias, o_bias=bias, qk_norm_eps=eps, q_factor=factor, gate_proj=True
    )
    mlp = GatedMLP(place / "mlp", size, shape.inner_size)
    before, after, between, last = (
        RMSNorm(place / f"{name}_layernorm", size, own_eps, plus_one=not config.as_gguf)
        for name, own_eps in (
            ("input", eps),
            ("post_attention", config.post_norm_eps),
            ("pre_feedforward", eps),
            ("post_feedforward", config.post_norm_eps),
        )
    )
    return Block(place.name, Branch(before, attention, after), Branch(between, mlp, last))


def ends(config: MuseGlimmerConfig) -> Ends:
    """The embedding's rows are normalised; logits are multiplied, and then capped."""
    return Ends(
        embedding_eps=config.rms_norm_eps,
        head_scale=config.output_multiplier,
        head_cap=config.final_logit_softcapping or None,
    )


def read(reader: ConfigReader) -> MuseGlimmerConfig:
    """The configuration from a config.json of this family."""
    reader.assume(muse_glimmers.DEFAULTS)
    num_layers, window = reader.get(int, "num_hidden_layers"), read_window(reader)
    is_last = [(num_layers - 1 - index) % window_patterns.EVERY == 0 for index in range(num_layers)]
    types = ["full_attention" if last or window is None else "sliding_attention" for last in is_last]
    windows = read_layer_windows(reader, num_layers, window, types)
    thetas = reader.raw("layer_rope_theta")
    config = read_decoder(
        reader,
        MuseGlimmerConfig,
        layer_windows=windows,
        num_kv_heads=read_num_kv_heads(reader),
        head_dim=reader.get(int, "head_dim"),
        default_theta=THETA,
        activation=("hidden_activation", "silu"),
        has_rope=tuple(not last for last in is_last),
        **muse_glimmers.read_own(reader),
    )
    return config if thetas is None else replace(config, has_rope=muse_glimmers.has_rope(thetas, config))


def _not_in_gguf(config: MuseGlimmerConfig) -> str | None:
    if config.post_norm_eps != POST_EPS:
        return f"post_norm_eps={config.post_norm_eps:g}; expected {POST_EPS:g}"
    return None


def _not_in_llama_cpp(config: MuseGlimmerConfig) -> str | None:
    if config.attention_bias or config.tie_word_embeddings:
        return "muse-glimmer with biases in its attention, or without a head of its own"
    return None


GGUF: GgufForm[MuseGlimmerConfig] = GgufForm(
    architecture=muse_glimmers.ARCH,
    in_layer={**gemmas.TENSORS, "attn_gate": "self_attn.gate_proj"},
    paired=("self_attn.q_proj", "self_attn.k_proj"),
    repeated={"attn_q_norm": FACTOR, "attn_k_norm": None},
    numbers={gemmas.FINAL_CAP: gemmas.FINAL_CAP, "logit_scale": "output_multiplier"},
    own_keys=(window_patterns.KEY,),
    constants={"hidden_activation": "silu", "post_norm_eps": POST_EPS},
    has_window=True,
    llama_cpp_has_window=True,
    has_rope=lambda config, index: config.shape(index).window is not None,
    own_config=muse_glimmers.own_config,
    as_stored=muse_glimmers.as_stored,
    written=lambda config: window_patterns.written(config, max((w for w in config.layer_windows if w), default=None)),
    not_in_gguf=_not_in_gguf,
    not_in_llama_cpp=_not_in_llama_cpp,
)
FAMILY = Family("muse_glimmer_text", "MuseGlimmerForCausalLM", read, layer, GGUF, ends)

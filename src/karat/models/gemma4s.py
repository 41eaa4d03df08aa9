"""What the forms of Gemma 4 share: layers of two kinds, which differ in heads, K and V, and RoPE.

Norms multiply by their weights, V is normalised, and scores are not scaled. Layers with a window have `head_dim` and a
RoPE of their own; those that see all keys have larger heads, of which RoPE turns a part.

                                    12B, 31B     26B-A4B               E2B, E4B
    layers that see all keys        V is what k_proj gives             own V
    the last layers                 as others    as others             K and V of an earlier layer of their kind
    beside the MLP                  –            experts               –
    after the MLP                   –            –                     a branch that reads the token's own numbers
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from karat.config import LayerShape, ModelConfig, RopeConfig
from karat.errors import ConfigError
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch, SideBySide
from karat.layers.layer_inputs import InputBranch, InputSizes
from karat.layers.mixer import Mixer
from karat.layers.mlp import GatedMLP
from karat.layers.norm import LayerScale, RMSNorm, RouterNorm
from karat.layers.place import Place
from karat.models import mixtures
from karat.models.family import Ends, read_decoder
from karat.models.gemmas import ACTIVATION, FINAL_CAP, read_cap
from karat.models.mixtures import MixtureConfig
from karat.models.reader import ConfigReader, read_num_kv_heads, read_window
from karat.models.ropes import read_ropes
from karat.ops.api import Routing
from karat.request import shown

KINDS = ("sliding_attention", "full_attention")
THETA, WINDOW_THETA = 1_000_000.0, 10_000.0
# Keys that no folder has: of a GGUF file, a number for each layer.
KV_HEADS, INNER_SIZES = "kv_heads_by_layer", "inner_sizes_by_layer"
_EVERY = 6
_PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
# Of the format: text_config often leaves these keys out.
DEFAULTS: dict[str, object] = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Config(MixtureConfig):
    """Adds config.json's keys, and the KV heads and the inner size of each layer's MLP. Of experts 0 are none."""

    window_rope: RopeConfig
    global_head_dim: int
    kv_heads: tuple[int, ...]
    inner_sizes: tuple[int, ...]
    attention_k_eq_v: bool
    num_kv_shared_layers: int
    hidden_size_per_layer_input: int
    vocab_size_per_layer_input: int
    attention_bias: bool
    final_logit_softcapping: float

    def __post_init__(self) -> None:
        if self.global_head_dim < 1 or min(self.kv_heads) < 1:
            raise ConfigError(
                f"global_head_dim={self.global_head_dim}, and {min(self.kv_heads)} KV heads in a layer: expected "
                "positive integers"
            )
        if not 0 <= self.num_kv_shared_layers < self.num_layers:
            raise ConfigError(
                f"num_kv_shared_layers={self.num_kv_shared_layers}: expected fewer than all {self.num_layers} layers"
            )
        if self.num_experts:
            MixtureConfig.__post_init__(self)
        else:
            ModelConfig.__post_init__(self)
        for layer in range(self.num_layers):
            self.kv_layer(layer)  # which must be one

    @property
    def top_k_experts(self) -> int:
        """config.json's name for the number of experts that a token reads."""
        return self.num_experts_per_tok

    @property
    def inputs(self) -> InputSizes | None:
        """What each layer gets of a token besides x."""
        size = self.hidden_size_per_layer_input
        return InputSizes(self.vocab_size_per_layer_input, size) if size else None

    def shape(self, layer: int) -> LayerShape:
        sees_all = self.layer_windows[layer] is None
        return LayerShape(
            num_heads=self.num_heads,
            num_kv_heads=self.kv_heads[layer],
            head_dim=self.global_head_dim if sees_all else self.head_dim,
            inner_size=self.inner_sizes[layer],
            window=self.layer_windows[layer],
            rope=self.rope if sees_all else self.window_rope,
        )

    def kv_layer(self, layer: int) -> int | None:
        """The layer whose K and V a layer reads: the last one of its kind that keeps some; None for its own."""
        first, sees_all = self.num_layers - self.num_kv_shared_layers, self.layer_windows[layer] is None
        if layer < first:
            return None
        alike = [other for other in range(first) if (self.layer_windows[other] is None) == sees_all]
        if not alike:
            raise ConfigError(
                f"num_kv_shared_layers={self.num_kv_shared_layers}: layer {layer} would read K and V of an earlier "
                f"layer of {KINDS[sees_all]}, and there is none"
            )
        return alike[-1]


def layer(place: Place, config: Gemma4Config, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, bias, shape = config.hidden_size, config.rms_norm_eps, config.attention_bias, config.shape(index)
    attention = Attention(
        place / "self_attn",
        size,
        shape,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm_eps=eps,
        v_norm_eps=eps,
        k_is_v=config.attention_k_eq_v and shape.window is None,
        kv_layer=config.kv_layer(index),
        scale=1.0,
    )
    first = Branch(_norm(place, "input", config), attention, _norm(place, "post_attention", config))
    mlp = GatedMLP(place / "mlp", size, shape.inner_size, activation="gelu")
    before, after = (_norm(place, f"{part}_feedforward", config) for part in ("pre", "post"))
    second = Branch(before, mlp, after)
    if config.num_experts:
        second = Branch(None, _beside_experts(place, config, Branch(before, mlp)), after)
    inputs = config.inputs
    third = None if inputs is None else InputBranch(place, size, inputs.size, eps)
    return Block(place.name, first, second, third, LayerScale(place, "layer_scalar"))


def _norm(place: Place, part: str, config: Gemma4Config, number: str = "") -> RMSNorm:
    return RMSNorm(place / f"{part}_layernorm{number}", config.hidden_size, config.rms_norm_eps)


def _beside_experts(place: Place, config: Gemma4Config, mlp: Branch) -> Mixer:
    """The MLP and the experts, which read x before the MLP's norm; each is normalised, and then they are added."""
    routing = Routing(
        config.num_experts_per_tok,
        renormalised=True,
        scales=(place / "router.per_expert_scale").values(config.num_experts),
    )
    experts = mixtures.mixture(
        place,
        config,
        routing,
        activation="gelu",
        before=_norm(place, "pre_feedforward", config, "_2"),
        router="router.proj",
        router_before=RouterNorm(place / "router", config.hidden_size, config.rms_norm_eps),
        result=f"{place.name}.experts",
    )
    of_mlp, of_experts = (_norm(place, "post_feedforward", config, number) for number in ("_1", "_2"))
    return SideBySide(f"{place.name}.mlp_and_experts", replace(mlp, after=of_mlp), Branch(None, experts, of_experts))


def ends(config: Gemma4Config) -> Ends:
    """The embedding is multiplied by the root of its width, which is rounded to float32 in float64, too."""
    return Ends(
        embedding_scale=float(np.float32(config.hidden_size**0.5)),
        head_cap=config.final_logit_softcapping or None,
        layer_inputs=config.inputs,
    )


def read(reader: ConfigReader, **own: Any) -> Gemma4Config:
    """The configuration from a config.json; `own` are the fields that not all forms have."""
    reader.raw("hidden_act")
    reader.must_be("use_bidirectional_attention", False, "vision", why="a token sees no later one")
    max_positions = reader.get(int, "max_position_embeddings")
    rope, window_rope = read_ropes(reader, max_positions, full=THETA, sliding=WINDOW_THETA, default_full=_PROPORTIONAL)
    windows, num_kv_heads = _read_windows(reader), read_num_kv_heads(reader)
    is_k = reader.get(bool, "attention_k_eq_v", False)
    head_dim, num_shared = reader.get(int, "head_dim"), reader.get(int, "num_kv_shared_layers", 0)
    global_head_dim, global_kv_heads = _read_global(reader, windows, head_dim, num_kv_heads, is_k=is_k)
    kv_heads = [num_kv_heads if window else global_kv_heads for window in windows]
    inner = reader.get(int, "intermediate_size")
    wide = num_shared if reader.get(bool, "use_double_wide_mlp", False) else 0
    inner_sizes = [inner] * (len(windows) - wide) + [2 * inner] * min(wide, len(windows))
    return read_decoder(
        reader,
        Gemma4Config,
        layer_windows=windows,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rope=rope,
        activation=ACTIVATION,
        window_rope=window_rope,
        global_head_dim=global_head_dim,
        kv_heads=_of_layers(reader, KV_HEADS, kv_heads),
        inner_sizes=_of_layers(reader, INNER_SIZES, inner_sizes),
        attention_k_eq_v=is_k,
        num_kv_shared_layers=num_shared,
        attention_bias=reader.get(bool, "attention_bias", False),
        final_logit_softcapping=read_cap(reader, FINAL_CAP),
        **own,
    )


def _of_layers(reader: ConfigReader, key: str, usual: list[int]) -> tuple[int, ...]:
    """A number for each layer: those that a GGUF file states under this key, or else the `usual` ones."""
    stated = reader.raw(key)
    if stated is None:
        return tuple(usual)
    if not isinstance(stated, list) or len(stated) != len(usual) or not all(type(each) is int for each in stated):
        raise ConfigError(f"{key}={shown(stated)}: expected an integer for each of {len(usual)} layers")
    return tuple(stated)


def _read_windows(reader: ConfigReader) -> tuple[int | None, ...]:
    """The windows of the layers. The last one has none, whatever a file says, as in transformers."""
    count, window, stated = reader.get(int, "num_hidden_layers"), read_window(reader), reader.raw("layer_types")
    kinds = stated
    if stated is None:
        kinds = [KINDS[window is None or (index + 1) % _EVERY == 0] for index in range(count)]
    if not isinstance(kinds, list) or len(kinds) != count or not all(kind in KINDS for kind in kinds):
        raise ConfigError(f"layer_types={shown(stated)}: expected {' or '.join(KINDS)} for each of {count} layers")
    if KINDS[0] in kinds and (window is None or window < 1):
        raise ConfigError(f"sliding_window={shown(window)}: expected a positive number of keys")
    windows = [window if kind == KINDS[0] else None for kind in kinds]
    return (*windows[:-1], None)


def _read_global(
    reader: ConfigReader, windows: tuple[int | None, ...], head_dim: int, num_kv_heads: int, *, is_k: bool
) -> tuple[int, int]:
    """The size and the number of KV heads of layers that see all keys.

    `per_layer_config`, which transformers writes, states the same in another way.
    """
    size, heads = reader.optional(int, "global_head_dim"), reader.optional(int, "num_global_key_value_heads")
    stated = reader.raw("per_layer_config")
    if stated is None:
        return 512 if size is None else size, heads if heads is not None and is_k else num_kv_heads
    full = {layer for layer, window in enumerate(windows) if window is None}
    each: list[Any] = [None]
    if isinstance(stated, dict) and {int(key) if key.isdecimal() else None for key in stated} == full:
        each = list(stated.values())
    known = isinstance(each[0], dict) and each[0].keys() <= {"head_dim", "num_key_value_heads"}
    if not known or size is not None or heads is not None or any(one != each[0] for one in each):
        raise ConfigError(
            f"per_layer_config={shown(stated)} is not supported: expected head_dim and num_key_value_heads of the "
            "layers that see all keys, the same for all of them, and no global_head_dim or num_global_key_value_heads"
        )
    of_all = ConfigReader(each[0], "per_layer_config")
    return of_all.get(int, "head_dim", head_dim), of_all.get(int, "num_key_value_heads", num_kv_heads)

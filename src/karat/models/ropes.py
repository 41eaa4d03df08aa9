"""RoPE from a config.json: one for all layers, or one for each kind of layer.

Keys of transformers 4 (`rope_theta`, `rope_scaling`) and of transformers 5 (`rope_parameters`) are understood.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from karat.config import ProportionalRope, RopeConfig
from karat.errors import ConfigError
from karat.models.reader import ConfigReader
from karat.ops.rope_table import yarn_attention_factor
from karat.request import shown

_KINDS = ("full_attention", "sliding_attention")
DEFAULT_THETA = 10000.0  # the format's default, for files older than the key
# Keys inside of `rope_scaling` and `rope_parameters` that change nothing, or nothing with one of these values.
_ROPE_HARMLESS = frozenset({"finetuned"})
_ROPE_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "attn_factor": (1,),
    "extrapolation_factor": (1,),
    "partial_rotary_factor": (1,),
}


def read_rope(
    reader: ConfigReader,
    max_position_embeddings: int,
    default_theta: float = DEFAULT_THETA,
    default: Mapping[str, object] = MappingProxyType({}),
    own: Collection[str] = (),
) -> RopeConfig:
    """RoPE from `rope_parameters`, or from `rope_theta` and `rope_scaling`. Values stated twice must agree.

    `default` stands for rope_parameters where a file states neither them nor a scaling. Of keys in `own` the family
    knows the meaning.
    """
    theta = reader.optional(float, "rope_theta")
    new, old = reader.raw("rope_parameters"), reader.raw("rope_scaling")
    if new is not None and old is not None and new != old:
        raise ConfigError(f"rope_parameters={shown(new)} and rope_scaling={shown(old)} disagree: keep the correct one")
    where = "rope_parameters" if new is not None else "rope_scaling"
    given = new if new is not None else old if old is not None else dict(default)
    if isinstance(given, dict) and any(isinstance(value, dict) for value in given.values()):
        raise ConfigError(f"{where}: RoPE parameters that differ by layer type are not supported")
    return _read_one(reader, given, where, max_position_embeddings, ("rope_theta", theta), default_theta, own)


def read_ropes(
    reader: ConfigReader,
    max_position_embeddings: int,
    *,
    full: float,
    sliding: float,
    sliding_key: str | None = None,
    default_full: Mapping[str, object] = MappingProxyType({}),
) -> tuple[RopeConfig, RopeConfig]:
    """RoPE of layers that see all keys, and of those with a window: `rope_parameters` has an object for each.

    Of older files `rope_theta` and `rope_scaling` are those of layers that see all keys, and `sliding_key` is the base
    of the others. `full` and `sliding` are the bases where none is stated, and `default_full` the parameters of layers
    that see all keys where a file states none.
    """
    theta, new, old = reader.optional(float, "rope_theta"), reader.raw("rope_parameters"), reader.raw("rope_scaling")
    sliding_theta = None if sliding_key is None else reader.optional(float, sliding_key)
    if new is not None and old is not None:
        raise ConfigError("rope_parameters and rope_scaling are both stated: keep the correct one")
    if not isinstance(new, dict | None) or (new is not None and not new.keys() <= set(_KINDS)):
        raise ConfigError(
            f"rope_parameters={shown(new)}: expected an object for each of {' and '.join(_KINDS)}, as layers of this "
            "type have different ones"
        )
    stated = {"full_attention": dict(default_full) if old is None else old} if new is None else new
    outer = {
        "full_attention": (("rope_theta", theta), full),
        "sliding_attention": ((sliding_key or "rope_theta", sliding_theta), sliding),
    }
    all_keys, window = (
        _read_one(
            reader,
            {} if stated.get(kind) is None else stated[kind],
            f"rope_parameters.{kind}" if new is not None else "rope_scaling",
            max_position_embeddings,
            *outer[kind],
        )
        for kind in _KINDS
    )
    return all_keys, window


def read_long_rope(
    reader: ConfigReader, max_position_embeddings: int, default_original: int
) -> tuple[RopeConfig, RopeConfig] | None:
    """RoPE of the kind longrope: of contexts up to the original length, and of longer ones. None for another kind.

    What makes the kind is its factors: old files call it su or yarn. The original length stands beside RoPE's
    parameters, which wins, or among them.
    """
    stated = reader.raw("rope_parameters") or reader.raw("rope_scaling")
    if not isinstance(stated, dict) or "short_factor" not in stated:
        return None
    harmless = _ROPE_HARMLESS | {"type", "rope_type", "partial_rotary_factor"}
    rope = ConfigReader(stated, "rope_parameters", harmless=harmless, neutral={})
    kind, theta = stated.get("rope_type", stated.get("type")), reader.optional(float, "rope_theta")
    if kind not in ("longrope", "su", "yarn"):
        raise ConfigError(f"rope_type={shown(kind)} has a short_factor, which belongs to longrope")
    inner = rope.optional(int, "original_max_position_embeddings")
    original = reader.get(int, "original_max_position_embeddings", inner or default_original)
    if not 1 < original <= max_position_embeddings:
        raise ConfigError(f"original_max_position_embeddings={original}: expected 2 to {max_position_embeddings}")
    factor = rope.get(float, "factor", max_position_embeddings / original)
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    whole = RopeConfig(
        rope_type="longrope",
        theta=rope.get(float, "rope_theta", DEFAULT_THETA if theta is None else theta),
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=rope.get(float, "attention_factor", usual),
    )
    short, long = (
        replace(whole, factors=_read_factors(rope, "rope_parameters", key)) for key in ("short_factor", "long_factor")
    )
    rope.finish()
    return short, long


def read_rotary_part(reader: ConfigReader, default: float) -> float:
    """The part of a head that RoPE turns: inside RoPE's parameters, beside them, or the architecture's."""
    rope = reader.raw("rope_parameters") or reader.raw("rope_scaling") or {}
    inner = ConfigReader(rope if isinstance(rope, dict) else {}, "rope_parameters").optional(
        float, "partial_rotary_factor"
    )
    outer = reader.optional(float, "partial_rotary_factor")
    if inner is not None and outer is not None and inner != outer:
        raise ConfigError(f"partial_rotary_factor={outer} and rope_parameters.partial_rotary_factor={inner} disagree")
    return next((part for part in (inner, outer) if part is not None), default)


def _read_one(
    reader: ConfigReader,
    given: object,
    where: str,
    max_position_embeddings: int,
    beside: tuple[str, float | None],
    default_theta: float,
    own: Collection[str] = (),
) -> RopeConfig:
    """RoPE from one object `given`; `beside` it stands the base under this key."""
    key, theta = beside
    if not isinstance(given, dict):
        raise ConfigError(f"{where}={shown(given)}: expected an object or null")
    rope = ConfigReader(given, where, harmless=_ROPE_HARMLESS, neutral=_ROPE_NEUTRAL)
    for key in own:
        rope.raw(key)
    kind = rope.optional(str, "rope_type")
    legacy = rope.optional(str, "type")  # the older name
    if kind and legacy and kind != legacy:
        raise ConfigError(f"{where}: rope_type={shown(kind)} and type={shown(legacy)} disagree")
    kind = kind or legacy or "default"
    inner_theta = rope.optional(float, "rope_theta")
    if theta is not None and inner_theta is not None and theta != inner_theta:
        raise ConfigError(f"{key}={theta} and {where}.rope_theta={inner_theta} disagree")
    if inner_theta is not None:
        theta = inner_theta
    if theta is None:
        theta = default_theta
    if not theta > 1:
        raise ConfigError(f"rope_theta={theta}: expected a number above 1")
    result = _read_rope_kind(rope, kind, theta, max_position_embeddings, where)
    rope.finish()
    reader.passed_over += [f"{where}.{told}" for told in rope.passed_over]
    return result


def _read_rope_kind(rope: ConfigReader, kind: str, theta: float, max_positions: int, where: str) -> RopeConfig:
    if kind == "default":
        rope.must_be("factor", 1, why="rope_type default has no factor")
        rope.raw("original_max_position_embeddings")
        return RopeConfig(theta=theta)
    if kind == "factors":
        return RopeConfig(theta=theta, rope_type="factors", factors=_read_factors(rope, where))
    if kind == "proportional":
        return _read_proportional(rope, theta, where)
    if kind not in ("linear", "llama3", "yarn"):
        raise ConfigError(
            f"{where}: rope_type={shown(kind)} is not supported: Karat has default, linear, llama3, proportional and "
            "yarn (dynamic and longrope change a token's result with the length of the sequence)"
        )
    factor = rope.get(float, "factor")
    if not factor >= 1:
        raise ConfigError(f"{where}: factor={factor}: expected a number of at least 1")
    if kind == "linear":
        rope.raw("original_max_position_embeddings")
        return RopeConfig(theta=theta, rope_type="linear", factor=factor)
    original = rope.get(int, "original_max_position_embeddings", max_positions)
    if original < 1:
        raise ConfigError(f"{where}: original_max_position_embeddings={original}: expected a positive integer")
    if kind == "llama3":
        low, high = rope.get(float, "low_freq_factor"), rope.get(float, "high_freq_factor")
        if not 0 < low < high:
            raise ConfigError(f"{where}: low_freq_factor={low}, high_freq_factor={high}: expected 0 < low < high")
        return RopeConfig(
            theta=theta,
            rope_type="llama3",
            factor=factor,
            original_max_position_embeddings=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    mscale, mscale_all_dim = rope.optional(float, "mscale"), rope.optional(float, "mscale_all_dim")
    attention_factor = rope.optional(float, "attention_factor")
    if attention_factor is None:
        attention_factor = yarn_attention_factor(factor, mscale, mscale_all_dim)
    beta_fast, beta_slow = rope.get(float, "beta_fast", 32.0), rope.get(float, "beta_slow", 1.0)
    if not beta_fast >= beta_slow > 0 or not attention_factor > 0:
        raise ConfigError(
            f"{where}: beta_fast={beta_fast}, beta_slow={beta_slow}, attention_factor={attention_factor}: expected "
            "beta_fast ≥ beta_slow > 0 and a positive factor"
        )
    return RopeConfig(
        theta=theta,
        rope_type="yarn",
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        truncate=rope.get(bool, "truncate", True),
        attention_factor=attention_factor,
    )


def _read_proportional(rope: ConfigReader, theta: float, where: str) -> ProportionalRope:
    factor, share = rope.get(float, "factor", 1.0), rope.get(float, "partial_rotary_factor", 1.0)
    if not factor >= 1 or not 0 <= share <= 1:
        raise ConfigError(
            f"{where}: factor={factor}, partial_rotary_factor={share}: expected a factor of at least 1 and a part "
            "from 0 to 1"
        )
    return ProportionalRope(theta=theta, factor=factor, share=share)


def _read_factors(rope: ConfigReader, where: str, key: str = "factors") -> tuple[float, ...]:
    """The factors that divide the frequencies. They are at least 1, so that no angle exceeds its position."""
    factors = rope.raw(key)
    if not isinstance(factors, list) or not all(
        type(factor) in (int, float) and 1 <= factor < math.inf for factor in factors
    ):
        raise ConfigError(f"{where}: {key}={shown(factors)}: expected a list of numbers of at least 1")
    return tuple(map(float, factors))

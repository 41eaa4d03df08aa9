"""RoPE scaling in GGUF. The metadata state it, except llama3 scaling, of which a file has only the resulting factors.

llama.cpp divides frequencies by the factors, and so does Karat. Where the factors are those of a llama3 scaling with
the usual parameters, Karat recovers the parameters instead and gets the same bits as from the Hugging Face folder.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.gguf.form import LONG_ROPE
from karat.checkpoint.gguf.values import Metadata, shortest
from karat.checkpoint.weights import Weight
from karat.checkpoint.wording import shown
from karat.errors import ConfigError

# low_freq_factor and high_freq_factor of every released llama3 model. With them the factors give the original length.
_LOW, _HIGH = 1.0, 4.0
STORED_AS_FACTORS = ("llama3", "factors", "proportional")  # no key of the metadata states them
NOT_TURNED = 1e30  # the factor of a pair that is not turned at all
_UNSET = -1.0  # yarn's factors may be negative in a file: then they count as absent
_TOLERANCE = 1e-5  # relative; factors are computed in float32 from frequencies with a relative error of 1e-7


def read_rope_scaling(metadata: Metadata, arch: str, *, is_long: bool = False) -> dict[str, Any] | None:
    """`rope_scaling` of a config.json from the metadata; None for none. ConfigError for unsupported scaling.

    Defaults are the format's: without a type it is linear, and a factor of 0 is none. `yarn_attn_factor` is the
    attention_factor of the config.json, from which converters write it.
    """
    prefix = f"{arch}.rope.scaling."
    kind = metadata.get(str, f"{prefix}type", "linear")
    of_others = () if kind == "yarn" else (("yarn_log_multiplier", 0.0),)
    of_long = () if is_long else (("attn_factor", 1.0),)  # else `read_long_rope` reads it
    for key, neutral in (*of_long, ("alpha", 0.0), *of_others):
        stated = metadata.get(float, prefix + key, neutral)
        if stated != neutral:
            raise ConfigError(f"{prefix}{key}={stated} is not supported; expected {neutral}")
    factor = _factor(metadata, arch)
    share = metadata.get(float, f"{prefix}yarn_ext_factor", _UNSET)
    whole = 1.0 if kind == "yarn" else 0.0  # what is yarn's own, and what leaves it out
    scales = kind != "none" and factor not in (0.0, 1.0)  # else all of yarn gives what none of it gives
    if scales and share != whole and not share < 0:
        raise ConfigError(
            f"{prefix}yarn_ext_factor={share} is not supported with {prefix}type={shown(kind)}; expected {whole}: all "
            "of yarn or none of it, as transformers has it"
        )
    match kind:
        case "none":
            return None
        case "linear":
            return None if factor in (0.0, 1.0) else {"rope_type": "linear", "factor": factor}
        case "yarn":
            return None if factor == 0 else _yarn(metadata, prefix, factor)
        case _:
            raise ConfigError(
                f"{prefix}type={shown(kind)} is not supported: Karat has none, linear and yarn, and llama3 by its "
                "factors"
            )


def read_long_rope(metadata: Metadata, arch: str, stored: Mapping[str, Weight], context_len: int) -> dict[str, Any]:
    """`rope_scaling` of the kind longrope from the tensors of LONG_ROPE, of which a file has both or none."""
    if missing := LONG_ROPE.keys() - stored.keys():
        raise ConfigError(f"{min(missing)} is missing; expected {' and '.join(LONG_ROPE)}; convert again")
    original = metadata.get(int, f"{arch}.rope.scaling.original_context_length")
    scaling: dict[str, Any] = {"rope_type": "longrope", "original_max_position_embeddings": original}
    for name, key in LONG_ROPE.items():
        factors = stored[name].to_array(np.dtype(np.float32)).reshape(-1)
        scaling[key] = [shortest(factor) for factor in factors.tolist()]
    stated, usual = metadata.optional(float, f"{arch}.rope.scaling.attn_factor"), 1.0
    if context_len > original > 1:
        usual = math.sqrt(1 + math.log(context_len / original) / math.log(original))
    if stated is not None and np.float32(stated) != np.float32(usual):
        scaling["attention_factor"] = stated
    return scaling


def _factor(metadata: Metadata, arch: str) -> float:
    """The factor, under its name or its older one; 0 for none."""
    new, old = f"{arch}.rope.scaling.factor", f"{arch}.rope.scale_linear"
    factor, old_factor = metadata.optional(float, new), metadata.optional(float, old)
    if factor is not None and old_factor is not None and factor != old_factor:
        raise ConfigError(f"{new}={factor} and {old}={old_factor} disagree")
    return factor if factor is not None else old_factor or 0.0


def _yarn(metadata: Metadata, prefix: str, factor: float) -> dict[str, Any]:
    scaling: dict[str, Any] = {"rope_type": "yarn", "factor": factor}
    for key, name, number in (
        ("original_context_length", "original_max_position_embeddings", int),
        ("yarn_beta_fast", "beta_fast", float),
        ("yarn_beta_slow", "beta_slow", float),
    ):
        if (value := metadata.optional(number, prefix + key)) is not None:
            scaling[name] = value
    if (stated := _attention_factor(metadata, prefix, factor)) is not None:
        scaling["attention_factor"] = stated
    if all_dim := metadata.get(float, f"{prefix}yarn_log_multiplier", 0.0):
        scaling |= {"mscale": 1.0, "mscale_all_dim": all_dim}
    return scaling


def _attention_factor(metadata: Metadata, prefix: str, factor: float) -> float | None:
    """A stated attention_factor other than yarn's own, which a file holds only to float32."""
    stated = metadata.get(float, f"{prefix}yarn_attn_factor", _UNSET)
    usual = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1
    return None if stated < 0 or np.float32(stated) == np.float32(usual) else stated


def rope_remarks(metadata: Metadata, arch: str) -> list[str]:
    """What the user should know of RoPE keys: those without effect, and where llama.cpp computes something else."""
    prefix = f"{arch}.rope.scaling."
    kind, factor = metadata.get(str, f"{prefix}type", "linear"), _factor(metadata, arch)
    if kind == "none" and factor not in (0.0, 1.0):
        return [f"RoPE's factor {factor} has no effect, because {prefix}type is none"]
    if kind == "yarn" and factor and (stated := _attention_factor(metadata, prefix, factor)) is not None:
        return [
            f"{prefix}yarn_attn_factor={stated} is taken for the attention_factor of the model's config.json, and "
            "llama.cpp passes over it: the two engines differ"
        ]
    return []


def llama3_factors(
    theta: float, head_dim: int, factor: float, low: float, high: float, original_len: float
) -> NDArray[np.float64]:
    """The factors [head_dim / 2] float64 that llama3 scaling divides the frequencies by (arXiv 2407.21783)."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((original_len / wavelengths - low) / (high - low), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)


def read_rope_factors(
    factors: NDArray[np.float32], theta: float, head_dim: int, *, may_turn_part: bool = False
) -> dict[str, Any] | None:
    """`rope_scaling` for factors [head_dim / 2] that divide the frequencies; None if all are 1.

    It is of the kind llama3 where llama3's parameters are found, else of the kind `factors`. Where a RoPE
    `may_turn_part` of the pairs, it is of the kind proportional if a factor is NOT_TURNED. Raises ConfigError for
    factors that are not finite or below 1.
    """
    assert factors.shape == (head_dim // 2,)
    if not np.isfinite(factors).all() or factors.min() < 1 - _TOLERANCE:
        raise ConfigError(f"rope_freqs.weight has values from {factors.min():.6g}; expected finite ones of at least 1")
    found = factors.astype(np.float64)
    if may_turn_part and found.max() >= np.float32(NOT_TURNED):
        return _proportional(found)
    if found.max() < 1 + _TOLERANCE:
        return None
    if 1 < theta < math.inf and (llama3 := find_llama3(found, theta, head_dim)) is not None:
        return llama3
    return {"rope_type": "factors", "factors": np.maximum(found, 1).tolist()}


def _proportional(found: NDArray[np.float64]) -> dict[str, Any]:
    """`rope_scaling` of the kind proportional: the first pairs are turned as without factors, the others are not."""
    turned, pairs = int((found < np.float32(NOT_TURNED)).sum()), len(found)
    if not (found[:turned] < 1 + _TOLERANCE).all():
        raise ConfigError("rope_freqs.weight has pairs that are not turned, and others with factors; expected 1")
    share = turned / pairs
    if int(share * 2 * pairs // 2) != turned:
        share = math.nextafter(share, 2)
    return {"rope_type": "proportional", "partial_rotary_factor": share}


def find_llama3(found: NDArray[np.float64], theta: float, head_dim: int) -> dict[str, Any] | None:
    """`rope_scaling` of the kind llama3 that gives these factors; None if the usual parameters give no such factors.

    Candidates are solved for, and each is checked by computing its factors again.
    """
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    for factor, length in _candidates(found, wavelengths):
        if factor < 1 or not 1 <= length < 1 << 31:
            continue
        length = round(length)
        again = llama3_factors(theta, head_dim, factor, _LOW, _HIGH, length)
        if np.allclose(again, found, rtol=_TOLERANCE, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LOW,
                "high_freq_factor": _HIGH,
                "original_max_position_embeddings": length,
            }
    return None


def _candidates(found: NDArray[np.float64], wavelengths: NDArray[np.float64]) -> Iterator[tuple[float, float]]:
    """Candidates for the llama3 factor and the original length."""
    factor = _plain(found.max())
    smooth = (1 / found - 1 / factor) / (1 - 1 / factor)
    between = (smooth > 1e-3) & (smooth < 1 - 1e-3)
    if between.any():
        yield factor, np.median((smooth[between] * (_HIGH - _LOW) + _LOW) * wavelengths[between]).item()
    else:  # every length that puts no wavelength between gives these factors; the usual length first
        yield factor, 8192
        yield factor, math.floor(wavelengths[smooth <= 1e-3].min() * _LOW)
    # Where not even the longest wavelength is divided by the whole factor: 1 / found is a line over 1 / wavelength.
    scaled = found > 1 + 1e-3
    if scaled.sum() > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the check of the candidate rejects a badly determined line
            slope, start = np.polyfit(1 / wavelengths[scaled], 1 / found[scaled], 1).tolist()
        longest = (_HIGH - _LOW) * start + _LOW
        if longest > 0 and (factor := _plain(_HIGH / longest)) > 1:
            yield factor, slope * (_HIGH - _LOW) / (1 - 1 / factor)


def _plain(number: float) -> float:
    """The nearest integer where rounding explains the difference, else the shortest decimal of the float32."""
    return float(round(number)) if abs(number - round(number)) < _TOLERANCE * number else float(str(np.float32(number)))

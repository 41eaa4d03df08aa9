"""What `karat inspect` says of a configuration, and of the memory that a model takes."""

from typing import Any

from karat.cli.terminal import bytes_text, columns
from karat.config import FLOAT_BYTES, FloatName, ModelConfig

_KV_DTYPES: tuple[FloatName, ...] = ("float16", "bfloat16", "float32")
_MIN_CONTEXT_LEN = 256
_MAX_ROWS = 8


def memory_of(config: ModelConfig, num_parameters: int, weight_bytes: int) -> dict[str, Any]:
    """Bytes of one sequence of each length, by type of the KV cache; weights in their stored types.

    Layers with a window keep the tokens of the window alone. A running sequence has two states, in float32.
    """
    from karat.kv.groups import bytes_of_sequence, bytes_of_state, bytes_per_token
    from karat.models.decoder import outline

    longest, keeps = config.max_position_embeddings, outline(config).keeps
    state_bytes = bytes_of_state(keeps, "float32")
    lengths = [2**k for k in range(_MIN_CONTEXT_LEN.bit_length() - 1, longest.bit_length()) if 2**k < longest]
    held = {
        length: {dtype: bytes_of_sequence(keeps, dtype, length) for dtype in _KV_DTYPES}
        for length in [*lengths[-(_MAX_ROWS - 1) :], longest]
    }
    return {
        "weight_bytes": weight_bytes,
        "float32_weight_bytes": num_parameters * FLOAT_BYTES["float32"],
        "state_bytes": state_bytes,
        "kv_bytes_per_token": {dtype: bytes_per_token(keeps, dtype) for dtype in _KV_DTYPES},
        "contexts": [
            {
                "tokens": length,
                "kv_bytes": kv_bytes,
                "total_bytes": {dtype: weight_bytes + 2 * state_bytes + size for dtype, size in kv_bytes.items()},
            }
            for length, kv_bytes in held.items()
        ],
    }


def config_rows(config: dict[str, Any]) -> list[tuple[str, str]]:
    """The resolved configuration, without settings that are off; equal windows are one entry."""
    windows = [window for window in config["layer_windows"] if window is not None]
    special = {
        **{name: _rope_text(config[name]) for name in ("rope", "window_rope") if name in config},
        **({"ropes": "; ".join(map(_rope_text, config["ropes"])) or "none"} if "ropes" in config else {}),
        "layer_windows": f"{windows[0]} tokens on {len(windows)} of {config['num_layers']} layers"
        if windows
        else "none",
        "eos_token_ids": ", ".join(map(str, config["eos_token_ids"])) or "none",
    }
    if "dense_layers" in config:
        special["dense_layers"] = ", ".join(map(str, config["dense_layers"])) or "none"
    return [(name, special.get(name, "none" if value is None else str(value))) for name, value in config.items()]


def _rope_text(rope: dict[str, Any]) -> str:
    kind, factors = rope["rope_type"], rope["factors"]
    if factors:
        kind = f"{kind}, " if kind != "factors" else ""
        kind += f"{len(factors)} factors from {min(factors):g} to {max(factors):g}"
    is_short = rope["rope_type"] == "default" or factors
    fields = ["theta"] if is_short else [name for name in rope if name not in ("rope_type", "factors")]
    return ", ".join([kind, *(f"{name} {rope[name]}" for name in fields)])


def memory_text(memory: dict[str, Any]) -> str:
    shown = {"float16": "16-bit", "float32": "32-bit"}
    head = ("tokens", *(f"{bits} KV cache" for bits in shown.values()), *(f"total, {bits}" for bits in shown.values()))
    rows = [
        (f"{row['tokens']:,}", *(bytes_text(row[kind][d]) for kind in ("kv_bytes", "total_bytes") for d in shown))
        for row in memory["contexts"]
    ]
    stored, all_float32 = (bytes_text(memory[key]) for key in ("weight_bytes", "float32_weight_bytes"))
    title = (
        f"memory: weights {stored}, as stored (types without kernels in float32; all on the reference executor: "
        f"{all_float32}), and for one sequence, by its tokens"
    )
    if state := memory["state_bytes"]:
        title += (
            f"; its state takes {bytes_text(state)}, twice while it runs (in the totals), and once for each snapshot "
            "(--state-cache-bytes)"
        )
    return f"{title}\n\n{columns([head, *rows], right='01234')}"

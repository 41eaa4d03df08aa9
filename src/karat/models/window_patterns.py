"""Models whose GGUF files state which layers have the window: an array of truth values, one a layer."""

from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.config import ModelConfig
from karat.models.reader import ConfigReader, read_layer_windows, read_window

EVERY = 4  # of the first releases, whose files do not say it
KEY = "attention.sliding_window_pattern"
_KINDS = ("full_attention", "sliding_attention")


def types_of(num_layers: int, every: int, window: int | None) -> list[str]:
    """The kinds of layers of which each `every`th has no window, or of layers without any."""
    return [_KINDS[window is not None and (index + 1) % every != 0] for index in range(num_layers)]


def read_windows(reader: ConfigReader, default: int, every: int = EVERY) -> tuple[int | None, ...]:
    """The windows of the layers; `default` is that of a file without the key."""
    num_layers, window = reader.get(int, "num_hidden_layers"), read_window(reader, default)
    return read_layer_windows(reader, num_layers, window, types_of(num_layers, every, window))


def own_config(metadata: Metadata, arch: str) -> dict[str, Any]:
    """The window and the layers that have it, from a GGUF file."""
    window = metadata.get(int, f"{arch}.attention.sliding_window", 0) or None
    num_layers, stated = metadata.get(int, f"{arch}.block_count"), metadata.array(f"{arch}.{KEY}", "BOOL")
    types = types_of(num_layers, EVERY, window)
    if stated is not None and window is not None:
        types = [_KINDS[has] for has in stated.numbers().tolist()]
    return {"sliding_window": window, "layer_types": types}


def written(config: ModelConfig, window: int | None) -> dict[str, int | list[bool]]:
    """The same in a GGUF file. The window may be longer than a context: other numbers follow from it."""
    stated: dict[str, int | list[bool]] = {"attention.sliding_window": window or 0}
    return stated if window is None else stated | {KEY: [shape.window is not None for shape in config.shapes]}


def in_llama_cpp(config: ModelConfig) -> bool:
    """Whether the layers with a window are those that llama.cpp takes for it."""
    windows = [shape.window is not None for shape in config.shapes]
    return not any(windows) or windows == [(index + 1) % EVERY != 0 for index in range(len(windows))]

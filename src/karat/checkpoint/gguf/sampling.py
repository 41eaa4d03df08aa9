"""Default sampling in GGUF: the keys general.sampling.*, to and from a generation_config.json.

llama.cpp's converter copies them from a generation_config.json, and its programs use them as defaults.
"""

from collections.abc import Mapping
from typing import Any

from karat.checkpoint.gguf.values import Metadata

PREFIX = "general.sampling."
# Name in GGUF -> (kind, name in generation_config.json).
_NUMBERS: Mapping[str, tuple[type[int] | type[float], str]] = {
    "temp": (float, "temperature"),
    "top_k": (int, "top_k"),
    "top_p": (float, "top_p"),
    "min_p": (float, "min_p"),
    "penalty_repeat": (float, "repetition_penalty"),
    "xtc_probability": (float, "xtc_probability"),
    "xtc_threshold": (float, "xtc_threshold"),
}
# Samplers that Karat does not have, and the value that switches each off.
_OFF: Mapping[str, float] = {"mirostat": 0}
_ALL_TOKENS = -1  # penalty_last_n
# Names that change nothing by themselves.
_SILENT = frozenset({"sequence", "mirostat_tau", "mirostat_eta", "penalty_last_n"})
# Names of generation_config.json that GGUF has no keys for, and the value that means nothing.
_LEFT_OUT: Mapping[str, object] = {
    "max_new_tokens": None,
    "min_new_tokens": None,
    "num_return_sequences": None,
    "stop_strings": None,
    "typical_p": 1.0,
    "no_repeat_ngram_size": 0,
    "bad_words_ids": [],
}
_TOP_K = 50  # transformers' default where it samples


def read_sampling(metadata: Metadata) -> dict[str, Any] | None:
    """The equivalent generation_config.json; None if the file has no such keys. A value of a wrong type stays as it is.

    A temperature of 0 means greedy. A sampler that Karat does not have keeps its own name, so that the user is told
    that it is not applied.
    """
    stated = [key.removeprefix(PREFIX) for key in metadata.values if key.startswith(PREFIX)]
    if not stated:
        return None
    config: dict[str, Any] = {}
    for name in stated:
        if name in _NUMBERS:
            kind, other = _NUMBERS[name]
            value = metadata.values[PREFIX + name]
            config[other] = float(value) if kind is float and type(value) is int else value
        elif name not in _SILENT and metadata.values[PREFIX + name] != _OFF.get(name):
            config[name] = str(metadata.values[PREFIX + name])
    last = metadata.values.get(f"{PREFIX}penalty_last_n", _ALL_TOKENS)
    if last != _ALL_TOKENS and config.get("repetition_penalty", 1.0) != 1.0:
        config["repeat_last_n"] = last
    samples = {"temperature", "top_k", "top_p", "min_p"} & config.keys()
    config["do_sample"] = bool(samples) and config.get("temperature", 1.0) != 0
    if not config["do_sample"]:
        config.pop("temperature", None)
    return config


def sampling_values(config: Mapping[str, Any]) -> tuple[list[tuple[str, str, float]], list[str]]:
    """(key, kind, value) for a GGUF file from a generation_config.json, and the names that GGUF has no keys for.

    Greedy sampling has no keys: to Karat their absence means greedy.
    """
    values: list[tuple[str, str, float]] = []
    if config.get("do_sample") is True:
        values.append((f"{PREFIX}temp", "FLOAT32", config.get("temperature") or 1.0))
        top_k = config.get("top_k")
        values.append((f"{PREFIX}top_k", "INT32", _TOP_K if top_k is None else top_k))
        values += [
            (PREFIX + name, "FLOAT32", config[name]) for name in ("top_p", "min_p") if config.get(name) is not None
        ]
    if config.get("repetition_penalty") not in (None, 1.0):
        values.append((f"{PREFIX}penalty_repeat", "FLOAT32", config["repetition_penalty"]))
        values.append((f"{PREFIX}penalty_last_n", "INT32", _ALL_TOKENS))
    return values, [name for name, off in _LEFT_OUT.items() if config.get(name) not in (None, off)]

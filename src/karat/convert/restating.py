"""A GGUF model's metadata with what the user says of it; and whether a written file says it too."""

from dataclasses import fields
from pathlib import Path

from karat.checkpoint import GgufCheckpoint, ModelCheckpoint
from karat.checkpoint.gguf.values import NUMBERS, GgufArray
from karat.checkpoint.gguf.writer import scalar, string
from karat.checkpoint.wording import shown
from karat.config import ModelConfig
from karat.convert.metadata import Pairs, model_pairs
from karat.errors import ConfigError
from karat.models.opening import open_gguf, open_model
from karat.models.registry import read_config

_TEMPLATES = "tokenizer.chat_template"
_KINDS: dict[type, str] = {bool: "BOOL", int: "UINT32", float: "FLOAT32"}


def restated(source: GgufCheckpoint, config: ModelConfig) -> Pairs:
    """The metadata of `source`, whose configuration is `config`, with the user's values for its own.

    ConfigError for a model that GGUF cannot express.
    """
    values = source.metadata.values
    plain = open_gguf(source.path) if source.overrides.changes_model else source
    pairs = {key: plain.metadata.stored(key) for key in values if key in plain.metadata}
    if source.overrides.changes_model:
        before = plain.metadata.values
        scalars = {key: value for key, value in values.items() if not isinstance(value, GgufArray)}
        changed = [key for key, value in scalars.items() if key not in before or before[key] != value]
        pairs |= {key: _encoded(key, scalars[key], pairs.get(key)) for key in changed}
        old, new = (dict(model_pairs(each, "")) for each in (read_config(plain.config), config))
        pairs |= {key: value for key, value in new.items() if old.get(key) != value and key not in changed}
        for key in old.keys() - new.keys():
            pairs.pop(key, None)
    return list(pairs.items())


def with_template(pairs: Pairs, source: ModelCheckpoint) -> Pairs:
    """The pairs with the user's chat template for the model's own, if there is one."""
    template = source.overrides.chat_template
    if template is None:
        return pairs
    kept = [pair for pair in pairs if pair[0] != _TEMPLATES and not pair[0].startswith(f"{_TEMPLATES}.")]
    return [*kept, (_TEMPLATES, string(template))]


def require_said(path: Path, source: ModelCheckpoint, config: ModelConfig) -> None:
    """ConfigError unless the file at `path` says what the user says of `source`, whose configuration is `config`."""
    if not source.overrides.changes_model:
        return
    plain, written = (read_config(open_model(each).config) for each in (source.path, path))
    for field in fields(config):
        before, wanted, found = (getattr(each, field.name, None) for each in (plain, config, written))
        is_changed = before != wanted and found != wanted
        if is_changed and not (field.name == "rope" and config.rope.rope_type == "llama3"):  # stored as factors
            told = ", ".join(source.overrides.described())
            raise ConfigError(f"a GGUF file cannot state {told}: it would have {field.name}={shown(found)}")


def _encoded(key: str, value: float | bool | str, stored: bytes | None) -> bytes:
    """A value as metadata, of the type that the file has for it, else of the usual one. ConfigError if it has none."""
    if isinstance(value, str):
        return string(value)
    kind = _KINDS[type(value)] if stored is None else NUMBERS[int.from_bytes(stored[:4], "little")][0]
    try:
        return scalar(kind, value)
    except OverflowError:
        raise ConfigError(f"{key}={shown(value)}: expected a value of the type {kind}") from None

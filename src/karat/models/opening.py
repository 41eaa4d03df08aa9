"""Opening a model: a Hugging Face folder, or a GGUF file of one of the families."""

from pathlib import Path
from typing import Any

from karat.checkpoint import GgufCheckpoint, ModelCheckpoint, open_folder
from karat.checkpoint.gguf import read_gguf
from karat.checkpoint.overrides import NO_OVERRIDES, Overrides
from karat.checkpoint.strict_json import read_json
from karat.checkpoint.wording import listed
from karat.errors import UsageError
from karat.models import registry
from karat.models.families import COMPOSITES, FAMILIES
from karat.models.registry import keys_read
from karat.request import shown

_FORMS = {model_type: family.gguf for model_type, family in FAMILIES.items()}


def open_model(path: Path, overrides: Overrides = NO_OVERRIDES) -> ModelCheckpoint:
    """Opens and checks the model at `path`, a folder or a GGUF file. Raises as `open_folder` and `open_gguf` do.

    `overrides` are what the user says of it. Raises UsageError for a key that the model does not have.
    """
    checkpoint = open_gguf(path, overrides) if path.is_file() else open_folder(path, overrides, COMPOSITES)
    if overrides.hf_overrides:
        settled = checkpoint.metadata.values if isinstance(checkpoint, GgufCheckpoint) else {}
        said = {key for key, value in overrides.hf_overrides.items() if value is not None and key not in settled}
        if unread := sorted({key.partition(".")[0] for key in said} - keys_read(checkpoint.config)):
            raise UsageError(
                f"override {unread[0]}: a model of the type {shown(checkpoint.config.get('model_type'))} reads no such "
                "key, so it would change nothing; leave it out"
            )
    return checkpoint


def config_alone(path: Path, overrides: Overrides = NO_OVERRIDES) -> dict[str, Any]:
    """The config.json of a model whose weights are not here; the text model's, where it has several in it."""
    raw = read_json(path)
    composite = COMPOSITES.get(str(raw.get("model_type")))
    return overrides.of_config(raw if composite is None else composite.text_part(raw, {}).config)


def passed_over(checkpoint: ModelCheckpoint) -> str | None:
    """What to tell of keys that Karat does not know and whose values say nothing; None if there are none."""
    own = checkpoint.passed_over if isinstance(checkpoint, GgufCheckpoint) else ()
    names = [*own, *registry.passed_over(checkpoint.config)]
    return f"keys that are not known, and say nothing: {listed(names)}" if names else None


def open_gguf(path: Path, overrides: Overrides = NO_OVERRIDES) -> GgufCheckpoint:
    """Opens and checks a GGUF model: a file, or the first part of a split, with the other parts in the same folder.

    Reads the headers and the RoPE factors, no weight. Raises ConfigError for an unsupported model, CheckpointError for
    everything else.
    """
    return read_gguf(path, _FORMS, overrides)

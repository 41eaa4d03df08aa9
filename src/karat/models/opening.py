"""Opening a model: a Hugging Face folder, or a GGUF file of one of the families."""

from pathlib import Path

from karat.checkpoint import GgufCheckpoint, ModelCheckpoint, open_folder
from karat.checkpoint.gguf import read_gguf
from karat.models.families import FAMILIES

_FORMS = {model_type: family.gguf for model_type, family in FAMILIES.items()}


def open_model(path: Path) -> ModelCheckpoint:
    """Opens and checks the model at `path`, a folder or a GGUF file. Raises as `open_folder` and `open_gguf` do."""
    return open_gguf(path) if path.is_file() else open_folder(path)


def open_gguf(path: Path) -> GgufCheckpoint:
    """Opens and checks a GGUF model: a file, or the first part of a split, with the other parts in the same folder.

    Reads the headers and the RoPE factors, no weight. Raises ConfigError for an unsupported model, CheckpointError for
    everything else.
    """
    return read_gguf(path, _FORMS)

"""Opening a model wherever it lies: a Hugging Face folder, or a GGUF file of one of the families."""

from pathlib import Path

from karat.checkpoint import GgufCheckpoint, ModelCheckpoint, open_folder
from karat.checkpoint.gguf import read_gguf
from karat.models.families import FAMILIES

_FORMS = {model_type: family.gguf for model_type, family in FAMILIES.items()}


def open_model(path: Path) -> ModelCheckpoint:
    """Opens and checks the model at `path`, a folder or a GGUF file; errors as of `open_folder` and `open_gguf`."""
    return open_gguf(path) if path.is_file() else open_folder(path)


def open_gguf(path: Path) -> GgufCheckpoint:
    """Opens and checks a GGUF model: a file, or the first of a split, whose other parts lie beside it.

    Reads the headers and the few factors of RoPE but no weight. Raises ConfigError for what the model is, and
    CheckpointError for everything else.
    """
    return read_gguf(path, _FORMS)

"""Opening a model wherever it lies: a Hugging Face folder, or a GGUF file."""

from pathlib import Path

from karat.checkpoint.folder import FolderCheckpoint, open_folder
from karat.checkpoint.gguf import GgufCheckpoint, open_gguf

ModelCheckpoint = FolderCheckpoint | GgufCheckpoint


def open_model(path: Path) -> ModelCheckpoint:
    """Opens and checks the model at `path`, a folder or a GGUF file; errors as of `open_folder` and `open_gguf`."""
    return open_gguf(path) if path.is_file() else open_folder(path)

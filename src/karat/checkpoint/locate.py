"""resolve: from a model's name to a local folder or GGUF file, fetched from the Hugging Face hub if need be."""

import os
from pathlib import Path

from karat.checkpoint.files import open_regular
from karat.checkpoint.wording import shown
from karat.errors import CheckpointError, HubError, UsageError

PATH_START = ("/", "./", "../", "~/")  # a word that begins with one is a path, never a name of the hub

_MAGIC = b"GGUF"


def resolve(model: str | Path, *, revision: str | None = None, progress: bool = True) -> Path:
    """The folder or GGUF file of `model`: a local path, else `org/name`, `org/name@revision` or `org/name:TYPE`.

    A model of the hub is fetched by `pull`, with its errors. A Path is always local. Raises CheckpointError for any
    other file and for a Path that does not exist, HubError for a word that is neither a path nor a hub name, UsageError
    for a revision of a local model.
    """
    try:
        path = Path(model).expanduser()
        exists = model != "" and path.exists()
    except (OSError, RuntimeError):  # a name too long, no such home
        exists = False
    if exists and (path.is_dir() or path.suffix == ".gguf" or _is_gguf(path)):
        if revision is not None:
            raise UsageError(f"{path}: is local and has no revision {shown(revision)}; leave it out")
        return path
    if exists:
        raise CheckpointError(
            f"{path}: is a file; expected the folder with config.json and the weights: give {path.parent}; or a GGUF "
            f"file, which begins with {_MAGIC.decode()}"
        )
    if isinstance(model, Path):
        raise CheckpointError(
            f"{model}: does not exist; expected a folder with config.json and the weights, or a GGUF file"
        )
    # This import takes half a second and 10 MB, which local models do without.
    from karat.checkpoint.hub import HUB_NAME, plain_name, pull

    if not HUB_NAME.fullmatch(plain_name(model)):
        if (fault := absent(model)) is not None:
            raise fault
        raise HubError(
            f"{shown(model)}: no such folder or file, and not a hub name (org/name or org/name@revision; for a GGUF "
            "file org/name:TYPE, like org/name:Q4_K_M)"
        )
    return pull(model, revision=revision, progress=progress)


def absent(model: str) -> CheckpointError | None:
    """The error for a word that can only be a path and does not exist; None for every other word."""
    if os.path.exists(os.path.expanduser(model)):  # noqa: PTH110, PTH111 - Path's raise on what cannot be a path
        return None
    if model.endswith(".gguf") and (model.startswith(PATH_START) or model.count("/") != 1):
        return CheckpointError(f"{shown(model)}: does not exist; expected a GGUF file")
    if model.startswith(PATH_START):
        return CheckpointError(f"{shown(model)}: does not exist; expected a folder of a model, or a GGUF file")
    return None


def _is_gguf(path: Path) -> bool:
    """Whether the first bytes of a file are GGUF's. Files of an Ollama store have no suffix."""
    try:
        file, _ = open_regular(path)
    except CheckpointError:
        return False
    with file:
        return file.read(len(_MAGIC)) == _MAGIC

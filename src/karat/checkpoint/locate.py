"""resolve: from a model's name to a local folder or GGUF file, fetched from the Hugging Face hub if need be."""

import os
import re
from contextlib import suppress
from pathlib import Path

from karat.checkpoint.files import open_regular
from karat.checkpoint.wording import shown
from karat.errors import CheckpointError, HubError, UsageError

PATH_START = ("/", "./", "../", "~/")  # a word that begins with one is a path, never a name of the hub

_MAGIC = b"GGUF"
_SITE = re.compile(r"(https?:|hf:)//|(www\.)?(hf\.co|huggingface\.co)/")  # what begins so is of the hub


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
        raise _no_model(path)
    if isinstance(model, Path):
        raise CheckpointError(
            f"{model}: does not exist; expected a folder with config.json and the weights, or a GGUF file"
        )
    if (fault := absent(model)) is not None:
        raise fault
    # This import takes half a second and 10 MB, which local models do without.
    from karat.checkpoint.hub import HUB_NAME, plain_name, pull

    if not HUB_NAME.fullmatch(plain_name(model)):
        raise unknown(model)
    try:
        return pull(model, revision=revision, progress=progress)
    except HubError as error:
        folder = model.partition("/")[0]
        if Path(folder).is_dir():
            raise HubError(f"{shown(model)}: is not in the folder {shown(folder)} here; of the hub: {error}") from error
        raise


def absent(model: str) -> CheckpointError | None:
    """The error for a word that can only be a path and does not exist; None for every other word."""
    if os.path.exists(os.path.expanduser(model)) or _SITE.match(model):  # noqa: PTH110, PTH111 - Path's raise
        return None
    if model.endswith(".gguf"):
        return CheckpointError(f"{shown(model)}: does not exist; expected a GGUF file")
    if model.startswith(PATH_START):
        return CheckpointError(f"{shown(model)}: does not exist; expected a folder of a model, or a GGUF file")
    return None


def unknown(model: str) -> HubError:
    """The error for a word that is neither here nor a name of the hub."""
    told = "" if "/" in model or not model else "; Ollama's models are files: ~/.ollama/models/blobs/sha256-…"
    return HubError(
        f"{shown(model)}: no such folder or file, and not a hub name (org/name or org/name@revision; for a GGUF file "
        f"org/name:TYPE, like org/name:Q4_K_M; `karat pull org/name` fetches one){told}"
    )


def _no_model(path: Path) -> CheckpointError:
    """The error for a file that is no GGUF file."""
    from karat.checkpoint.gguf.header import instead

    what: str | None = "no regular one"
    with suppress(CheckpointError):
        file, _ = open_regular(path)
        with file:
            what = instead(file.read(64))
    folder = f": give {path.parent}" if (path.parent / "config.json").is_file() else ""
    return CheckpointError(
        f"{path}: is a file; " + (f"{what}; " if what else "") + "expected the folder with config.json and the weights"
        f"{folder}; or a GGUF file, which begins with {_MAGIC.decode()}"
    )


def _is_gguf(path: Path) -> bool:
    """Whether the first bytes of a file are GGUF's. Files of an Ollama store have no suffix."""
    try:
        file, _ = open_regular(path)
    except CheckpointError:
        return False
    with file:
        return file.read(len(_MAGIC)) == _MAGIC

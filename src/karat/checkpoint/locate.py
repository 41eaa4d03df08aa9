"""The folder that a model's name means: a local one, or a snapshot of the Hugging Face hub."""

from pathlib import Path

from karat.checkpoint.wording import shown
from karat.errors import CheckpointError, HubError, UsageError


def resolve(model: str | Path, *, revision: str | None = None, progress: bool = True) -> Path:
    """The folder of `model`: that folder if there is one, else the snapshot of `org/name` or `org/name@revision`.

    A snapshot is fetched as `pull` does, with its errors. Raises CheckpointError for a file, HubError for what can
    be neither, UsageError for a revision of a local folder. A Path is always local.
    """
    try:
        path = Path(model).expanduser()
        exists = model != "" and path.exists()
    except (OSError, RuntimeError):  # a name too long, no such home
        exists = False
    if exists and path.is_dir():
        if revision is not None:
            raise UsageError(f"{path}: is a local folder, which has no revision {shown(revision)}; leave it out")
        return path
    if exists:
        raise CheckpointError(
            f"{path}: is a file; expected the folder with config.json and the weights: give {path.parent}"
        )
    if isinstance(model, Path):
        raise CheckpointError(f"{model}: does not exist; expected a folder with config.json and the weights")
    # Half a second and 10 MB that local models need not pay for.
    from karat.checkpoint.hub import HUB_NAME, pull

    if not HUB_NAME.fullmatch(model):
        raise HubError(
            f"{shown(model)}: is no folder here and no name of the hub, which is org/name or org/name@revision"
        )
    return pull(model, revision=revision, progress=progress)

"""Fetching a model from the Hugging Face hub.

huggingface_hub handles the network, the cache and the variables HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT and
HF_HUB_OFFLINE. This file chooses the files to fetch and explains each failure.
"""

import errno
import json
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils.tqdm import tqdm

from karat.checkpoint.folder import INDEX, SINGLE, read_index, refusal
from karat.checkpoint.gguf.select import TAG, SelectionError, only, select
from karat.checkpoint.wording import shown
from karat.errors import HubError, UsageError

_log = logging.getLogger(__name__)

_PART = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_SITES = re.compile(r"(?:(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://)", re.ASCII)
_PAGES = re.compile(
    r"([^/]+/[^/]+)/(?:tree|blob|resolve|raw)/([^/]+)(?:/(?:[^/]+/)*([^/]+?)(?:-\d{5}-of-\d{5})?\.gguf)?/?(?:\?.*)?",
    re.DOTALL,
)
HUB_NAME = re.compile(rf"({_PART}/{_PART})(?:@([\w.+/-]{{1,255}}))?(?::({TAG.pattern}))?", re.ASCII)

# The files of a model besides its weights. Never code, never pickles.
_DESCRIPTION = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "adapter_config.json",  # to be refused by name
    INDEX,
)
# Tokenizers of models that have no tokenizer.json: fetched for these alone, since most models have both.
_OTHER_TOKENIZERS = ("tokenizer.model", "vocab.json", "merges.txt", "tekken.json")
# The library's error is an OSError and an error of its HTTP client, which differs between versions.
_CLIENT_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
_FAULTS = (_CLIENT_ERROR, OSError, RuntimeError, ValueError)


def plain_name(model: str) -> str:
    """`org/name`, perhaps with @revision and :TYPE, for other spellings of a model of the hub; else `model` itself.

    These are hf.co/org/name:TYPE, as Ollama and llama.cpp have it, and addresses of a model's page, of a revision and
    of a GGUF file there.
    """
    endpoint = constants.ENDPOINT.rstrip("/") + "/"
    site = _SITES.match(model) or re.match(re.escape(endpoint), model)
    if site is None:
        return model
    rest = model[site.end() :].removesuffix("/")
    if (page := _PAGES.fullmatch(rest)) is None:
        return rest
    name, revision, file = page.groups()
    return name + (f"@{revision}" if revision != constants.DEFAULT_REVISION else "") + (f":{file}" if file else "")


class _Quiet(tqdm):
    """A progress bar that is never shown."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]


def pull(model: str, *, revision: str | None = None, force: bool = False, progress: bool = True) -> Path:
    """The folder in the hub's cache with the complete snapshot of `org/name` or `org/name@revision`.

    With `:TYPE` after the name: the (first) GGUF file of that type. The description is fetched first, then the weights
    (with bars, if `progress` and on a terminal). Without a network a complete snapshot in the cache is used. `force`
    fetches all files again and needs the hub. Raises HubError, and UsageError for two revisions.
    """
    match = HUB_NAME.fullmatch(plain_name(model))
    if match is None:
        raise HubError(f"{shown(model)}: is no name of the hub; expected org/name or org/name@revision")
    repo, named_revision, tag = match.groups()
    if revision and named_revision:
        raise UsageError(f"{model}: has a revision, and {shown(revision)} was given too; give one")
    revision = revision or named_revision or constants.DEFAULT_REVISION
    if ".." in repo + revision or "--" in repo or revision.startswith("/"):
        raise HubError(f"{shown(model)}: no name or revision of the hub has '..' or '--' in it; check the spelling")

    def fetch(commit: str, names: Sequence[str], bar: type[tqdm] | None) -> Path:
        return Path(
            snapshot_download(repo, revision=commit, allow_patterns=list(names), force_download=force, tqdm_class=bar)
        )

    try:
        if force:
            HfApi().model_info(repo, revision=revision)  # raises where snapshot_download would make do with the cache
        try:
            folder = fetch(revision, _DESCRIPTION, _Quiet)
        except LocalEntryNotFoundError:
            if force or (whole := _whole_in_cache(repo, revision, tag)) is None:
                raise
            return whole
        if tag is None and not (folder / "tokenizer.json").exists():
            fetch(folder.name, ["config.json", *_OTHER_TOKENIZERS], _Quiet)
        index = folder / INDEX
        if tag is not None:
            wanted = _gguf_files(folder, repo, tag, force)
        else:
            wanted = sorted(set(read_index(index).values())) if index.exists() else [SINGLE]
        if force or not all((folder / name).exists() for name in wanted):
            # The folder is named by the commit; config.json is in every folder, so that there always is a match.
            shows = progress and sys.stderr.isatty()
            fetch(folder.name, ["config.json", *wanted], None if shows else _Quiet)
        missing = [name for name in wanted if not (folder / name).exists()]
        if not missing:
            return folder if tag is None else folder / wanted[0]
        try:
            present = sorted(HfApi().list_repo_files(repo, revision=folder.name))
        except _FAULTS:
            if not (present := sorted(_ggufs(folder))):
                raise
            if tag is None and not force and (alone := _only_gguf(repo, folder)) is not None:
                return alone
    except _FAULTS as fault:
        is_away = isinstance(fault, LocalEntryNotFoundError)
        if is_away and tag is None and not force and (alone := _only_gguf(repo, _cached(repo, revision))) is not None:
            return alone
        message = f"{model}: {_explain(fault, model, repo, revision)}"
        # The message has what matters of the fault; its frames and causes are a hundred lines of libraries.
        fault.__cause__, fault.__suppress_context__ = None, True
        raise HubError(message) from fault.with_traceback(None)
    except SelectionError as fault:
        raise HubError(f"{model}: {fault}; choose another type, or another model") from fault
    raise HubError(
        refusal(model, present)
        or f"{model}: its index names {missing[0]}, which the model lacks; tell its authors, or try another revision"
    )


def _whole_in_cache(repo: str, revision: str, tag: str | None) -> Path | None:
    """What `pull` returns, if the cache has all that is needed to run the model; None if it has not.

    A cached listing of the repository also names files that nobody fetched and the model does without. What is missing
    of its description is told.
    """
    folder = _cached(repo, revision)
    if tag is not None:
        try:
            names = select(_ggufs(folder), tag)
        except SelectionError:
            return None
        return folder / names[0] if all((folder / name).exists() for name in names) else None
    index = folder / INDEX
    wanted = sorted(set(read_index(index).values())) if index.exists() else [SINGLE]
    has_tokenizer = any((folder / name).exists() for name in ("tokenizer.json", *_OTHER_TOKENIZERS))
    if not has_tokenizer or not all((folder / name).exists() for name in ["config.json", *wanted]):
        return None
    absent = [name for name in _DESCRIPTION if "*" not in name and not (folder / name).exists() and name != INDEX]
    _log.warning("%s: not in the cache, and used without them, if the model has them: %s", repo, ", ".join(absent))
    return folder


def _cached(repo: str, revision: str) -> Path:
    """The folder of the snapshot in the cache, if there is one."""
    home = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")
    try:
        commit = (home / "refs" / revision).read_text().strip()
    except OSError:
        commit = revision
    return home / "snapshots" / commit


def _only_gguf(repo: str, folder: Path) -> Path | None:
    """The GGUF file of a snapshot in the cache where it is the only model there; None otherwise."""
    if (folder / INDEX).exists() or (folder / SINGLE).exists():
        return None
    try:
        first = folder / only(_ggufs(folder))[0]
    except SelectionError:
        return None
    _log.warning("%s: without the hub, the only model of it in the cache: %s", repo, first.name)
    return first


def _ggufs(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*.gguf")]


def _gguf_files(folder: Path, repo: str, tag: str, force: bool) -> list[str]:
    """The files that `tag` means: as the snapshot in the cache has them, or as the hub lists them."""
    cached = [] if force else _ggufs(folder)
    try:
        return select(cached, tag)
    except SelectionError:
        return select(HfApi().list_repo_files(repo, revision=folder.name), tag)


def _explain(fault: BaseException, model: str, repo: str, revision: str) -> str:
    """The cause of a failed fetch and what to do. `model` is the name as given, with revision and type."""
    hub = constants.ENDPOINT
    uncached = ""
    if isinstance(fault, LocalEntryNotFoundError):
        uncached = f", and the cache ({constants.HF_HUB_CACHE}) does not have all of it"
        fault = fault.__cause__ or fault
    match fault:
        case GatedRepoError():
            return (
                f"is gated: ask its authors for access at {hub}/{repo}, then set HF_TOKEN to a token of yours "
                "(or run `hf auth login`)"
            )
        case RevisionNotFoundError():
            return f"has no revision {shown(revision)}: see {hub}/{repo}/tree/main for what there is"
        case RepositoryNotFoundError():
            return (
                f"there is no such model on {hub}, or it is private: check the spelling, or set HF_TOKEN; if you "
                f"meant a folder, there is none at ./{repo}"
            )
        case OfflineModeIsEnabled():
            return f"HF_HUB_OFFLINE is set{uncached}: unset it and fetch the model once with `karat pull {model}`"
        case HfHubHTTPError():
            return f"{hub} answered {_status(fault.response.status_code)}"
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return (
                f"the disk of {constants.HF_HUB_CACHE} is full: free some space, or set HF_HOME to a folder on "
                "a larger disk"
            )
        case PermissionError() | OSError(errno=errno.EROFS):
            return f"{constants.HF_HUB_CACHE} cannot be written to: set HF_HOME to a folder of yours"
        case ValueError() if isinstance(fault, json.JSONDecodeError):
            return (
                f"{hub} answered with what is no JSON, such as the web page of a proxy or of a login{uncached}: open "
                "it in a browser, and check the network and HF_ENDPOINT"
            )
        case FileMetadataError():
            return (
                f"{hub} answered as no hub does, as with the web page of a proxy or of a login{uncached}: open it in a "
                "browser, and check the network and HF_ENDPOINT"
            )
        case _ if isinstance(fault, _CLIENT_ERROR):
            return f"the connection to {hub} failed ({fault}){uncached}: check the network and HF_ENDPOINT"
    return f"could not be fetched ({type(fault).__name__}: {fault}){uncached}: try again"


def _status(code: int) -> str:
    if code in (401, 403):
        return f"{code}: is HF_TOKEN right, and may it read this model?"
    if code == 429:
        return "429, too many requests: wait some minutes; with HF_TOKEN the limit is higher"
    return f"{code}: try again later" if code >= 500 else f"{code}: is HF_ENDPOINT right?"

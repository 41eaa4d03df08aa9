"""select: the GGUF file of a repository that a type names, as in `org/name:Q4_K_M`."""

import re
from collections.abc import Collection

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
TAG = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class SelectionError(Exception):
    """No file or several files fit a tag, or a part of a split is missing; the message lists the files there are."""


def select(names: Collection[str], tag: str) -> list[str]:
    """The GGUF file of `names` (paths in a repository) that ends in `tag`, in any case, or all parts of that split.

    The first part comes first. Where no file ends in `latest`, that is Ollama's word for Q4_K_M or else for the only
    file. Raises SelectionError for no file, several files, or a missing part.
    """
    models = _models(names)
    tagged = [name for name in models if _tag_fits(name, tag)]
    if not tagged and tag == "latest":
        tagged = [name for name in models if _tag_fits(name, "Q4_K_M")] or list(models)
    bases = sorted({_base(name) for name in tagged})
    if len(bases) != 1:
        found = bases or sorted({_base(name) for name in models})
        raise SelectionError(
            f"{len(bases) or 'no'} GGUF file{'s have' if len(bases) != 1 else ' has'} the type {tag}; "
            f"expected one; there {'is' if len(found) == 1 else 'are'} {', '.join(found[:20]) or 'none at all'}"
        )
    return _parts(tagged[0], models)


def only(names: Collection[str]) -> list[str]:
    """The only GGUF file of `names`, or all parts of the only split. Raises SelectionError as `select` does."""
    models = _models(names)
    bases = sorted({_base(name) for name in models})
    if len(bases) != 1:
        raise SelectionError(f"{len(bases) or 'no'} GGUF files; expected one")
    return _parts(min(models), models)


def _models(names: Collection[str]) -> set[str]:
    return {name for name in names if name.endswith(".gguf") and "mmproj" not in name.lower()}


def _parts(name: str, models: Collection[str]) -> list[str]:
    """The file, or all parts of its split."""
    if match := _PART.fullmatch(name):
        parts = [f"{match[1]}-{number:05}-of-{match[3]}.gguf" for number in range(1, min(int(match[3]), 100_000) + 1)]
        if missing := [part for part in parts if part not in models]:
            raise SelectionError(f"{missing[0]} is missing; expected all {len(parts)} parts")
        return parts
    return [name]


def _tag_fits(name: str, tag: str) -> bool:
    """Whether the name of the file, or of its folder, is the tag or ends in it after a separator; in any case."""
    *folders, file = _base(name).lower().split("/")
    return any(re.search(rf"(^|[-._]){re.escape(tag.lower())}$", part) for part in [*folders[-1:], file])


def _base(name: str) -> str:
    """The name without its suffix; the same for all parts of a split."""
    match = _PART.fullmatch(name)
    return match[1] if match else name.removesuffix(".gguf")

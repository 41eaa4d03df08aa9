"""`karat` on the package index is somebody else's: nothing tells anybody to install it."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "src",
    "docs",
    "tools",
    "tests",
    "training",
    "benchmarks",
    "requirements",
    "*.md",
    "Makefile",
    "*.toml",
    ".ci",
)
INSTALL = re.compile(
    r"\b(?:pip3?|pipx|uv|uvx|conda|mamba|brew|poetry|pdm|apt|apt-get)\s(?:[a-z]+\s)*?(?:install|add|download|wheel)\s"
)
FOREIGN = re.compile(r"karat(?:-llm)?(?:\[[^\]]*\])?(?:[=<>~!@].*)?", re.IGNORECASE)
EXTRA_OF = re.compile(r"(?:\bkarat(?:-llm)?|(?P<clone>'\.))\[([a-z][a-z,]*)\]")


def advice(text: str) -> list[str]:
    """What in a text sends its reader to a package index: karat is another's there, and karat-llm nobody's yet."""
    found = [match[0] for match in EXTRA_OF.finditer(text) if match["clone"] is None]
    for match in INSTALL.finditer(text):
        for word in text[match.end() :].split("\n", 1)[0].split():
            if FOREIGN.fullmatch(word.strip("'\"`.,;:()*\\")):
                found.append(match[0] + word)
            if re.search(r"[`;&|)]", word) or (word.endswith((".", ",", ":")) and word not in (".", "..")):
                break  # the command ends here
    found += re.findall(r"pypi\.org/(?:project|simple)/karat(?![\w-])", text)
    return found


def texts() -> Iterator[tuple[Path, str]]:
    for place in PLACES:
        for start in ROOT.glob(place):
            for path in sorted(start.rglob("*") if start.is_dir() else [start]):
                if (
                    path.is_file()
                    and path != Path(__file__)
                    and path.suffix not in (".pyc", ".so", ".safetensors", ".gguf")
                ):
                    yield path, path.read_text(encoding="utf-8", errors="replace")


def test_nothing_advises_to_install_somebody_elses_package() -> None:
    seen = dict(texts())
    assert len(seen) > 400
    assert {str(path): found for path, text in seen.items() if (found := advice(text))} == {}


def test_every_extra_that_is_advised_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "karat-llm"
    named = {extra for _, text in texts() for match in EXTRA_OF.finditer(text) for extra in match[2].split(",")}
    assert "dev" in named
    assert named <= set(project["optional-dependencies"])


@pytest.mark.parametrize(
    "text",
    [
        "pip install karat",
        "pip install 'karat[check]'",
        "run `pip install -U karat`",
        "pipx install karat==0.1.0",
        "uv pip install numpy karat",
        "uv add karat",
        "see pypi.org/project/karat/",
        "the extra karat[check]",
        "pip install karat-llm",
        "pip install 'karat-llm[check]'",
    ],
)
def test_such_advice_is_seen(text: str) -> None:
    assert advice(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install .",
        "pip install -e '.[dev]' && karat run",
        "`pip install .` gives the command karat",
        "pip install dist/karat_llm-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    ],
)
def test_other_advice_is_not(text: str) -> None:
    assert not advice(text)

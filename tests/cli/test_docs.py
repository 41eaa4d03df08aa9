"""Commands, options and links that the pages name are there."""

import re
from pathlib import Path

import pytest

from karat.cli.app import command

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
FROM_OTHERS = ("from-llama-cpp.md", "from-vllm.md")


def options() -> set[str]:
    """Of all commands."""
    return {option for each in command().commands.values() for parameter in each.params for option in parameter.opts}


def karat_cells(page: Path) -> list[str]:
    """The last column of the page's tables, which is Karat's in those that compare options."""
    rows = [line.strip("|\n").split("|") for line in page.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    return [row[-1] for row in rows if len(row) > 1]


@pytest.mark.parametrize("name", FROM_OTHERS)
def test_the_options_of_karat_are_there(name: str) -> None:
    spans = [span for cell in karat_cells(ROOT / "docs" / name) for span in re.findall(r"`([^`]*)`", cell)]
    named = {word for span in spans for word in re.findall(r"--[a-z][a-z-]+", span)}
    commands = {span.split()[1] for span in spans if span.startswith("karat ")}
    assert commands <= set(command().commands)
    assert named <= options()
    if name == "from-llama-cpp.md":
        assert len(commands) >= 8 and len(named) >= 15, "the page was read"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        file = page.parent / target if target else page
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}, anchor

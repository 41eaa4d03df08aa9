"""docs/rooms.md is what the script prints, and every file of the source is on it with what it says of itself."""

import re
from pathlib import Path

from tools.rooms_page import page

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_script_prints() -> None:
    assert (ROOT / "docs" / "rooms.md").read_text(encoding="utf-8") == page(), (
        "run python -m tools.rooms_page > docs/rooms.md"
    )


def test_every_module_is_on_the_page_and_says_something() -> None:
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", page(), re.MULTILINE))
    modules = {path.name for path in (ROOT / "src" / "karat").rglob("*.py") if path.name not in _OPENERS}
    assert modules - {Path(name).name for name in rows} == set()
    assert [name for name, said in rows.items() if not said] == []


def test_every_header_of_the_kernels_is_on_the_page() -> None:
    named = {Path(name).name for name in re.findall(r"^\| `([^`]+)` \|", page(), re.MULTILINE)}
    assert {path.name for path in (ROOT / "csrc").rglob("*.h")} - named == set()


_OPENERS = {"__init__.py", "__main__.py"}

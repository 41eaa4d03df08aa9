"""Prints docs/rooms.md, every file by room with what it says of itself, made from the heads of the source.

Use: python -m tools.rooms_page > docs/rooms.md
"""

import ast
import re
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, KERNELS = ROOT / "src" / "karat", ROOT / "csrc"
HEAD = """\
# Rooms

Every file of `src/karat` and `csrc` with what it says of itself, in the order of
[architecture.md](architecture.md), which says what each room is for. This page is made by
`python -m tools.rooms_page`; a test compares them.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_python(), *_kernels()])


def rooms(heading: str) -> list[list[str]]:
    """The names in the first cells of the table of docs/architecture.md that begins with this heading, row by row."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition(heading)[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    return [[name.rstrip("/") for name in re.findall(r"`([^`]+)`", cell)] for cell in cells]


def _python() -> Iterator[str]:
    for names in rooms("| room | what it is for |"):
        folders = [SOURCE / name for name in names if (SOURCE / name).is_dir()]
        files = [SOURCE / f"{name}.py" for name in names if (SOURCE / f"{name}.py").is_file()]
        for folder in folders:
            yield f"## {folder.name}/\n\n{_said(folder / '__init__.py')}\n"
            yield from _table(sorted(path for path in folder.rglob("*.py") if path != folder / "__init__.py"), folder)
        if files:
            yield f"## {', '.join(path.stem for path in files)}\n"
            yield from _table(files, SOURCE)


def _kernels() -> Iterator[str]:
    for (name,) in rooms("| in `csrc/` | what it is for |"):
        folder = KERNELS / name
        yield f"## csrc/{name}/\n"
        files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".h", ".cpp")]
        yield from _table([path for path in files if _said(path)], folder)


def _table(files: list[Path], folder: Path) -> Iterator[str]:
    yield "| file | what is in it |\n|---|---|"
    for path in files:
        name = path.relative_to(folder)
        yield f"| `{name.parent}/` | {_said(path)} |" if name.name == "__init__.py" else f"| `{name}` | {_said(path)} |"
    yield ""


def _said(path: Path) -> str:
    """The first paragraph of a file's docstring, or of the comment that it begins with; empty if it has none."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        head = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = takewhile(lambda line: line.startswith("//"), text.splitlines())
        head = "\n".join(line.removeprefix("//").strip() for line in comment)
    return " ".join(head.strip().partition("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())

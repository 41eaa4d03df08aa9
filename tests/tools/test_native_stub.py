"""The types of the extension that mypy reads are those that the extension has."""

from pathlib import Path

import pytest

pytest.importorskip("nanobind", reason="what the extension is built with; make test installs it")
from tools.native_stub import stub

FOLDER = Path(__file__).resolve().parents[2] / "src" / "karat"


@pytest.mark.parametrize("name", ["_native", "_emulated"])
def test_the_types_are_what_the_script_prints(name: str) -> None:
    module = pytest.importorskip(f"karat.{name}", reason="this installation has no such extension")
    stated = (FOLDER / f"{name}.pyi").read_text(encoding="utf-8")
    assert stated == stub(module), f"build the extension, then run python -m tools.native_stub {name}"

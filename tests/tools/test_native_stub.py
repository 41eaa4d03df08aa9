"""The types of the extension that mypy reads are those that the extension has."""

from pathlib import Path

import pytest

pytest.importorskip("nanobind", reason="what the extension is built with; make test installs it")
native = pytest.importorskip("karat._native", reason="this installation has no C++ extension")
from tools.native_stub import stub  # noqa: E402

FILE = Path(__file__).resolve().parents[2] / "src" / "karat" / "_native.pyi"


def test_the_types_are_what_the_script_prints() -> None:
    assert FILE.read_text(encoding="utf-8") == stub(native), "build the extension, then run python -m tools.native_stub"

"""Loads karat._native and karat._emulated from the folder KARAT_TEST_BUILD, in this interpreter and in those it starts.

For tools/sanitize, which puts this folder on PYTHONPATH: tests then run on a build that is not the installed one,
however that one is found (an editable install has an import hook of its own).
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType


class OtherBuild:
    """A finder that knows two modules."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in ("karat._native", "karat._emulated"):
            return None
        built = next(Path(os.environ["KARAT_TEST_BUILD"]).glob(f"{name.removeprefix('karat.')}*.so"))
        return importlib.util.spec_from_file_location(name, built)


if "KARAT_TEST_BUILD" in os.environ:
    sys.meta_path.insert(0, OtherBuild)

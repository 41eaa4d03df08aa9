"""Loads karat._native from the file that KARAT_TEST_NATIVE names, in this interpreter and in those that it starts.

For tools/sanitize, which puts this folder on PYTHONPATH: tests then run on a build that is not the installed one,
however that one is found (an editable install has an import hook of its own).
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class OtherBuild:
    """A finder that knows one module."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "karat._native":
            return None
        return importlib.util.spec_from_file_location(name, os.environ["KARAT_TEST_NATIVE"])


if "KARAT_TEST_NATIVE" in os.environ:
    sys.meta_path.insert(0, OtherBuild)

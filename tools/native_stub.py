"""Prints src/karat/_native.pyi, the types of the C++ extension, as nanobind reads them from the extension itself.

Use: make native, then python -m tools.native_stub > native.pyi && mv native.pyi src/karat/_native.pyi, and make native
again: the extension has the digest of this file, by which Karat sees an extension that is older than its Python.
With _emulated it prints src/karat/_emulated.pyi.
"""

import importlib
import re
import subprocess
import sys
from types import ModuleType

from nanobind.stubgen import StubGen

HEAD = '''"""Types of the C++ extension: `python -m tools.native_stub` makes this file, and a test compares them.

csrc/plan/ops/ops.h and karat.ops.native_plan say what they mean.
"""
'''
EMULATED_HEAD = '''"""Types of the emulated GPU: `python -m tools.native_stub _emulated` makes this file.

csrc/python/device_module.cpp says what they mean.
"""
'''
# nanobind adds the shape and the place of an array to its type.
ANNOTATED = re.compile(r"Annotated\[(NDArray\[[\w.]+\]), dict\((?:[^()]|\([^()]*\))*\)\]")


def stub(module: ModuleType) -> str:
    """The stub of a module, formatted, without what depends on the compiler or on itself."""
    generator = StubGen(module=module, include_docstrings=False, quiet=True)
    generator.put(module)
    text = ANNOTATED.sub(r"\1", generator.get())
    text = re.sub(r"^(compiler|types_digest): str = .*", r"\1: str", text, flags=re.MULTILINE)
    return formatted((EMULATED_HEAD if module.__name__ == "karat._emulated" else HEAD) + text)


def formatted(text: str) -> str:
    """As ruff writes it: without names that are not used, with lines of the project's length."""
    for command in (["check", "--fix", "--select", "F401,I"], ["format"]):
        given = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", "src/karat/_native.pyi", "-"]
        text = subprocess.run(given, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    sys.stdout.write(stub(importlib.import_module("karat." + (sys.argv[1:] or ["_native"])[0])))

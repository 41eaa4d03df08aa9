"""The direction of imports: the rooms of src/karat in order, and what each may import from outside.

Every import counts, at any depth of a function and under TYPE_CHECKING too.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A room imports from its own row and from the rows above.
ROWS = [
    {"errors", "config", "explanation", "outputs", "request", "request_record", "batch"},
    {"_native", "_emulated"},  # the extensions, which import nothing
    {"machine"},
    {"quant"},
    {"checkpoint"},
    {"text"},
    {"children"},
    {"ranks"},
    {"ops"},
    {"kv"},
    {"layers"},
    {"models"},
    {"convert"},
    {"receipts"},
    {"engine"},
    {"karat"},  # the package itself: its public names
    {"check"},
    {"client", "http_client"},
    {"server"},
    {"batch_files"},
    {"ray"},
    {"bench"},
    {"cli", "__main__"},
]
ROW_OF = {room: number for number, row in enumerate(ROWS) for room in row}

# The rooms of karat.check: each imports from itself and from the rooms above it (docs/check-rooms.md).
CHECK_ROWS = "trace model files mistakes replay text record diagnosis session stages report ranks".split()

# The rooms of karat.server, and of which of them each may import: a protocol knows no other protocol.
SERVER_ROOMS = {"asking": {"asking"}, "answers": {"asking", "answers"}}
SERVER_ROOMS |= {name: {"asking", "answers", name} for name in ("openai", "anthropic", "page")}

# The rooms of karat.engine, and of which of them each may import. What stands beside them (engine_config …) is free.
ENGINE_ROOMS: dict[str, set[str]] = {
    "scheduling": {"scheduling"},
    "choosing": {"scheduling", "choosing"},
    "ranks": {"ranks"},
    "model_loading": {"ranks", "model_loading"},
    "requests": {"choosing", "model_loading", "requests"},
    "receipts": {"scheduling", "choosing", "requests", "receipts"},
}
ENGINE_ROOMS["remote"] = {*ENGINE_ROOMS, "remote"}
INNER_ROOMS = {"server": SERVER_ROOMS, "engine": ENGINE_ROOMS}

# Beyond the standard library and the base dependencies of pyproject.toml, which every room may use.
PEERS = {"torch", "transformers", "safetensors", "gguf", "llama_cpp", "openvino", "openvino_genai"}
EXTRAS: Mapping[str, set[str]] = {
    "karat.check": PEERS,
    "karat.batch_files.sources": {"pyarrow"},
    "karat.ray": {"ray", "pyarrow"},
    "karat.bench.peers": PEERS,
    "karat.receipts.signature": {"cryptography"},
}

# Pure bookkeeping: neither they nor what they import may need an array library.
WITHOUT_ARRAYS = ("karat.engine.scheduling.scheduler", "karat.kv.blocks", "karat.kv.groups", "karat.kv.prefix")
ARRAYS = {"numpy", "torch"}


def read_sources(folder: Path) -> dict[str, str]:
    """Module name to source of every module of the package in `folder`."""
    sources = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        sources[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return sources


def base_dependencies(pyproject: Path) -> set[str]:
    """Import names of the base dependencies; for all of them that is the distribution's name."""
    requirements = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"]
    return {re.split(r"[<>=!~\[; ]", requirement)[0].replace("-", "_") for requirement in requirements}


def imports(module: str, source: str, modules: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Line and full name of every import, relative ones and import_module("constant") included."""
    is_package = any(other.startswith(f"{module}.") for other in modules)
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, name.name) for name in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                if level:
                    anchor = package.rsplit(".", level - 1)[0]
                    base = f"{anchor}.{base}" if base else anchor
                assert base is not None
                # `from karat import engine` imports the module karat.engine, not a name of karat.
                full_names = (f"{base}.{name.name}" for name in names)
                yield from ((node.lineno, full if full in modules else base) for full in full_names)
            case (
                ast.Call(func=ast.Name(id=function), args=[ast.Constant(value=str(name)), *_])
                | ast.Call(func=ast.Attribute(attr=function), args=[ast.Constant(value=str(name)), *_])
            ) if function in ("import_module", "__import__"):
                yield node.lineno, name
            case _:
                pass


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def check_room(module: str) -> str | None:
    """The room of check that a module is in; None: it is outside check, or check itself."""
    return module.split(".")[2] if module.startswith("karat.check.") else None


def climbs(module: str, name: str) -> str | None:
    """What is wrong with an import from one room of check in another; None: nothing, or it is no such import."""
    here, there = check_room(module), check_room(name)
    if here is None or there is None:
        return None
    if here not in CHECK_ROWS:
        return f"check/{here} has no row in tests/test_imports.py"
    if there not in CHECK_ROWS or CHECK_ROWS.index(there) > CHECK_ROWS.index(here):
        return f"{name} is not above check/{here}"
    return None


def inner_room(module: str, modules: Collection[str]) -> tuple[str, str] | None:
    """The room of server or engine that a module is in; None: it is in no room of them."""
    parts = module.split(".")
    is_inside = len(parts) > 3 or (len(parts) == 3 and _is_room(module, modules))
    return (parts[1], parts[2]) if is_inside and parts[0] == "karat" and parts[1] in INNER_ROOMS else None


def _is_room(module: str, modules: Collection[str]) -> bool:
    return any(other.startswith(f"{module}.") for other in modules)


def strays(module: str, name: str, modules: Collection[str]) -> str | None:
    """What is wrong with an import of one inner room in another; None: nothing, or it is no such import."""
    here, there = inner_room(module, modules), inner_room(name, modules)
    if here is None or there is None or here[0] != there[0]:
        return None
    allowed = INNER_ROOMS[here[0]]
    if here[1] not in allowed:
        return f"{'/'.join(here)} has no row in tests/test_imports.py"
    return None if there[1] in allowed[here[1]] else f"{name} is nothing for {'/'.join(here)}"


def circle(direct: Mapping[str, list[tuple[int, str]]]) -> list[str]:
    """Modules that import each other around a circle, the first one again at the end; empty where there is none.

    The package itself is left out: it hands on public names, and rooms above it import them from there.
    """
    graph = {module: dict.fromkeys(name for _, name in names) for module, names in direct.items() if module != "karat"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as fault:
        return list(fault.args[1])
    return []


def violations(sources: Mapping[str, str], dependencies: set[str]) -> list[str]:
    """One line for each import that points the wrong way or outside."""
    modules = frozenset(sources) | {"karat._native", "karat._emulated"}
    direct = {module: list(imports(module, source, modules)) for module, source in sources.items()}
    found = []
    for module, names in direct.items():
        if room(module) not in ROW_OF:
            found.append(f"{module}: a room that has no row in tests/test_imports.py")
            continue
        allowed = sys.stdlib_module_names | dependencies
        for prefix, extras in EXTRAS.items():
            if f"{module}.".startswith(f"{prefix}."):
                allowed |= extras
        for line, name in names:
            top = name.split(".")[0]
            if top == "karat":
                row = ROW_OF.get(room(name))
                if row is None or (row > ROW_OF[room(module)] and module != "karat"):
                    found.append(f"{module}:{line}: {name} is not above {room(module)}")
                elif fault := climbs(module, name) or strays(module, name, modules):
                    found.append(f"{module}:{line}: {fault}")
            elif top not in allowed:
                found.append(f"{module}:{line}: {name} is no base dependency")
    if around := circle(direct):
        found.append(f"a circle of imports: {' → '.join(around)}")
    for start in WITHOUT_ARRAYS:
        found += [f"{start}: reaches {' → '.join(path)}" for path in paths_to_arrays(start, direct)]
    return found


def paths_to_arrays(start: str, direct: Mapping[str, list[tuple[int, str]]]) -> list[list[str]]:
    """Chains of imports from a module to an array library, through the package's modules."""
    found, seen, todo = [], {start}, [[start]]
    while todo:
        path = todo.pop()
        for _, name in direct.get(path[-1], []):
            if name.split(".")[0] in ARRAYS:
                found.append([*path[1:], name])
            elif name not in seen:
                seen.add(name)
                todo.append([*path, name])
    return found


def test_the_package_imports_in_one_direction() -> None:
    sources = read_sources(ROOT / "src" / "karat")
    assert "karat.errors" in sources
    assert violations(sources, base_dependencies(ROOT / "pyproject.toml")) == []


def test_the_picture_has_the_same_rooms_in_the_same_order() -> None:
    """The table of docs/architecture.md against ROWS: a row of the table is one row here."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("| room | what it is for |")[2].partition("\n\n")[0]
    first_cells = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    drawn = [{name.rstrip("/") for name in re.findall(r"`([^`]+)`", cell)} for cell in first_cells]
    assert drawn == [row - {"__main__"} for row in ROWS if row != {"karat"}]


def test_a_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for module, source in read_sources(ROOT / "src" / "karat").items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    assert "Engine" in places
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


PLANTED = {
    # wrong
    "karat.batch": "import numpy",
    "karat.bench.run": "import llama_cpp",
    "karat.check.replay.noise": "from karat.check.diagnosis import signs\nfrom karat.check.trace.format import Trace",
    "karat.check.stray": "import karat.check.trace.format",
    "karat.checkpoint": "from . import folder\nfrom .. import server",
    "karat.checkpoint.folder": "from ..models import qwen2",
    "karat.engine.scheduling.scheduler": "import karat.batch\nfrom karat.kv import blocks",
    "karat.engine.scheduling.batch_building": "from karat import LLM",
    "karat.errors": "import importlib\nimportlib.import_module('karat.text')",
    "karat.gadgets": "import os",
    "karat.kv.blocks": "import numpy as np",
    "karat.layers.norm": "import karat._native\nimport safetensors.numpy",
    "karat.models.qwen2": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
    "karat.ops.api": "import karat.layers.norm",
    "karat.server.app": "import transformers\nfrom karat import cli",
    "karat.server.anthropic.requests": "from karat.server.openai.requests import thought",
    "karat.server.asking.asked": "import karat.server.answers.subject",
    "karat.server.stray.some": "from karat.server.asking import asked",
    "karat.engine.choosing.choice": "import karat.engine.requests.admission\nimport karat.engine.scheduling.sequence",
    "karat.text.chat": "def late():\n    from karat.engine import llm",
    # right
    "karat": "from karat.cli import main\nfrom karat.engine.llm import LLM",
    "karat.bench.peers": "import llama_cpp",
    "karat.check": "",
    "karat.check.diagnosis": "",
    "karat.check.diagnosis.signs": "from karat.check.trace import format",
    "karat.check.record.hf": "import torch, transformers\nfrom karat import LLM",
    "karat.check.trace.format": "",
    "karat.cli": "import karat\nfrom karat import LLM, _native\nfrom karat.server import app",
    "karat.config": "import msgspec\nfrom karat.errors import KaratError\nimport karat.request",
    "karat.engine.llm": "import karat.models.qwen2, json",
    "karat.models": "",
    "karat.server": "",
    "karat.server.answers.subject": "import karat.server.errors",
    "karat.server.errors": "from karat.errors import KaratError",
    "karat.server.openai.requests": "from karat.server.asking import asked\nimport karat.server.answers.subject",
    "karat.server.protocols": "import karat.server.openai.requests, karat.server.anthropic.requests",
}
COMPLAINTS = [
    "karat.bench.run:1: llama_cpp is no base dependency",
    "karat.check.replay.noise:1: karat.check.diagnosis.signs is not above check/replay",
    "karat.check.stray:1: check/stray has no row in tests/test_imports.py",
    "karat.checkpoint:2: karat.server is not above checkpoint",
    "karat.checkpoint.folder:1: karat.models.qwen2 is not above checkpoint",
    "karat.engine.scheduling.batch_building:1: karat is not above engine",
    "karat.errors:2: karat.text is not above errors",
    "karat.gadgets: a room that has no row in tests/test_imports.py",
    "karat.layers.norm:2: safetensors.numpy is no base dependency",
    "karat.models.qwen2:3: torch is no base dependency",
    "karat.ops.api:1: karat.layers.norm is not above ops",
    "karat.server.app:1: transformers is no base dependency",
    "karat.server.app:2: karat.cli is not above server",
    "karat.server.anthropic.requests:1: karat.server.openai.requests is nothing for server/anthropic",
    "karat.server.asking.asked:1: karat.server.answers.subject is nothing for server/asking",
    "karat.server.stray.some:1: server/stray has no row in tests/test_imports.py",
    "karat.engine.choosing.choice:1: karat.engine.requests.admission is nothing for engine/choosing",
    "karat.text.chat:2: karat.engine.llm is not above text",
    "a circle of imports: karat.cli → karat.server.app → karat.cli",
    "karat.engine.scheduling.scheduler: reaches karat.kv.blocks → numpy",
    "karat.engine.scheduling.scheduler: reaches karat.batch → numpy",
    "karat.kv.blocks: reaches numpy",
]


def test_planted_violations_are_found_and_nothing_else() -> None:
    assert violations(PLANTED, {"numpy", "msgspec"}) == COMPLAINTS


def test_a_circle_of_imports_is_found() -> None:
    planted = {
        "karat.kv.blocks": "from karat.kv import cache",
        "karat.kv.cache": "def late():\n    import karat.kv.prefix",
        "karat.kv.prefix": "from karat.kv.blocks import Block",
    }
    (complaint,) = violations(planted, set())
    assert complaint.startswith("a circle of imports: ") and complaint.count("→") == 3


def test_every_base_dependency_is_known_by_its_import_name() -> None:
    names = base_dependencies(ROOT / "pyproject.toml")
    assert {"numpy", "huggingface_hub", "msgspec"} <= names
    assert not names & PEERS, "the base install stays without peers"

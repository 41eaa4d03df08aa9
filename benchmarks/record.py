"""Runs `karat bench` and keeps the result: python -m benchmarks.record NAME [serve | throughput] [options …]

The JSON goes to benchmarks/results/DATE-MACHINE-NAME.json (NAME-2 for a second one of the day), with the commit
and the command added; the table to stdout.
"""

import itertools
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from karat.cli.bench import as_text
from karat.cli.bench_serve_table import as_table
from karat.cli.bench_throughput import as_text as throughput_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def record(name: str, options: list[str], folder: Path = RESULTS) -> Path:
    """Measures with these options and writes the file, whose path is returned. Raises where `karat bench` fails."""
    check_name(name)
    command = [sys.executable, "-m", "karat", "bench", *options, "--json"]  # a subcommand comes first
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    words = without_folders(options)
    kept = {"command": shlex.join(["karat", "bench", *words]), "commit": commit(), **result}
    return keep(name, kept, folder)


def shown(result: dict[str, Any]) -> str:
    """The result as its command prints it."""
    forms = {"serve": as_table, "throughput": throughput_text}
    return forms.get(result.get("kind", ""), as_text)(result)


def check_name(name: str) -> None:
    """SystemExit for a name that a file of results cannot have."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise SystemExit(f"{name!r} names no result: expected small letters, digits, dots and dashes")


def keep(name: str, result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Writes DATE-MACHINE-NAME.json, or …-NAME-2.json where that is taken, and so on.

    `result` has `date`, and `machine` with `cpu` and `usable_cores`.
    """
    machine = f"{result['machine']['cpu'] or 'unknown'} {result['machine']['usable_cores']} cores"
    slug = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    stem = f"{result['date'][:10]}-{slug}-{name}"
    numbered = (folder / f"{stem}-{number}.json" for number in itertools.count(2))
    path = next(path for path in itertools.chain([folder / f"{stem}.json"], numbered) if not path.exists())
    folder.mkdir(exist_ok=True)
    path.write_text(json.dumps(without_folders(result), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def without_folders(value: Any) -> Any:
    """A value of JSON whose files of this machine (FILE, NAME=FILE) have no folders, which tell nobody anything."""
    if isinstance(value, dict):
        return {name: without_folders(one) for name, one in value.items()}
    if isinstance(value, list):
        return [without_folders(one) for one in value]
    if not isinstance(value, str):
        return value
    name, equals, path = value.rpartition("=")
    return f"{name}{equals}{Path(path).name}" if path.startswith("/") and Path(path).exists() else value


def commit() -> str:
    """The commit that is checked out; with what differs from it told."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    changes = subprocess.run(
        ["git", "status", "--porcelain", "--", "src", "csrc", "CMakeLists.txt"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return head.stdout.strip() + (" with changes" if changes.stdout.strip() else "")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    written = record(sys.argv[1], sys.argv[2:])
    print(shown(json.loads(written.read_text(encoding="utf-8"))))
    print(written)

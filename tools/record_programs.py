"""Records what coding agents send, on loopback and with a dummy key, into tests/server/requests.

Use: python -m tools.record_programs FOLDER

FOLDER has the programs codex, claude and opencode, as after `npm install @openai/codex @anthropic-ai/claude-code
opencode-ai` in node_modules/.bin. Those that are there are run once each, in an empty home, asked for one word, and
answered with an error. Of a request stay the names of fields, their types and their structure; texts become
PLACEHOLDER, names of tools, of their parameters and values p0, p1 and so on.
"""

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.anonymiser import Anonymiser
from tools.record_requests import FOLDER, Recorder

MODEL = "karat-embedded"


def commands(folder: Path, home: Path, url: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """The programs in `folder`: what is run, with which variables."""
    karat = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": f"{url}/v1", "apiKey": "dummy"}}
    settings = {"autoupdate": False, "share": "disabled", "model": f"karat/{MODEL}", "small_model": f"karat/{MODEL}"}
    settings |= {"provider": {"karat": karat | {"models": {MODEL: {"limit": {"context": 8192, "output": 64}}}}}}
    (home / "opencode.json").write_text(json.dumps(settings), encoding="utf-8")
    provider = {"name": "karat", "base_url": f"{url}/v1", "wire_api": "responses", "env_key": "KEY"}
    shown = ", ".join(f"{key} = {json.dumps(value)}" for key, value in provider.items())
    given = ["-c", "model_provider=karat", "-c", f"model_providers.karat={{{shown}}}", "-m", MODEL]
    found = {
        "codex": (["exec", "--skip-git-repo-check", *given, "Hello"], {"KEY": "dummy"}),
        "claude": (
            ["-p", "Hello", "--model", MODEL],
            {
                "ANTHROPIC_BASE_URL": url,
                "ANTHROPIC_API_KEY": "dummy",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_TELEMETRY": "1",
                "DISABLE_AUTOUPDATER": "1",
            },
        ),
        "opencode": (["run", "Hello"], {"OPENCODE_CONFIG": str(home / "opencode.json")}),
    }
    return {
        name: ([str(folder / name), *arguments], variables)
        for name, (arguments, variables) in found.items()
        if (folder / name).exists()
    }


def record(folder: Path) -> dict[str, dict[str, Any]]:
    """Name of a file to what it holds: the requests of each program that differ in their fields."""
    recorded: dict[str, dict[str, Any]] = {}
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        for name, (command, variables) in commands(folder, home, recorder.url).items():
            recorder.requests.clear()
            environment = {"PATH": os.environ["PATH"], "HOME": place, **variables}
            version = _run([command[0], "--version"], environment, home).strip().splitlines()[-1]
            _run(command, environment, home)
            for number, (route, body) in enumerate(_different(recorder.requests)):
                entry = {"from": f"recorded: {name} {version}", "route": route, "body": Anonymiser().of(body)}
                recorded[f"{name}-{number}" if number else name] = entry
    return recorded


def _different(requests: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The first request of each set of fields."""
    found: dict[tuple[str, ...], tuple[str, Any]] = {}
    for route, body in requests:
        found.setdefault((route, *sorted(body)), (route.partition("?")[0], body))
    return list(found.values())


def _run(command: list[str], environment: Mapping[str, str], home: Path) -> str:
    done = subprocess.run(
        command,
        env=environment,
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.record_programs")
    parser.add_argument("folder", type=Path)
    for name, recorded in record(parser.parse_args().folder.absolute()).items():
        text = json.dumps(recorded, indent=1, ensure_ascii=False) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name}: {recorded['from']}, {recorded['route']}")


if __name__ == "__main__":
    main()

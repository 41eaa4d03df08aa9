"""Records what coding agents send, on loopback and with a dummy key, into tests/server/requests.

Use: python -m tools.record_programs FOLDER [URL]

FOLDER has the programs codex, claude and opencode, as after `npm install @openai/codex @anthropic-ai/claude-code
opencode-ai` in node_modules/.bin, or llm and aider, as an environment with `llm` or `aider-chat` has them. Those that
are there are run in an empty home and asked for one word; codex also with an MCP server, claude with an effort, llm
with a tool. They are answered with an error, or by the server at URL, which calls its model karat-embedded. Of a
request stay the names of fields, their types and their structure; texts become PLACEHOLDER, names of tools, of their
parameters and values p0, p1 and so on.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.anonymiser import Anonymiser
from tools.record_clients import Passing
from tools.record_requests import FOLDER, Recorder

MODEL = "karat-embedded"
MCP = """import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        tool = {"name": "weather", "description": "a", "inputSchema": {"type": "object", "properties": {}}}
        version = asked.get("params", {}).get("protocolVersion")
        hello = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "a", "version": "1"}}
        result = {"initialize": hello, "tools/list": {"tools": [tool]}}.get(asked["method"], {})
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""  # a server with one tool


def commands(folder: Path, home: Path, url: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """The programs in `folder`: what is run, with which variables."""
    karat = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": f"{url}/v1", "apiKey": "dummy"}}
    settings = {"autoupdate": False, "share": "disabled", "model": f"karat/{MODEL}", "small_model": f"karat/{MODEL}"}
    settings |= {"provider": {"karat": karat | {"models": {MODEL: {"limit": {"context": 65536, "output": 64}}}}}}
    (home / "opencode.json").write_text(json.dumps(settings), encoding="utf-8")
    provider = {"name": "karat", "base_url": f"{url}/v1", "wire_api": "responses", "env_key": "KEY"}
    shown = ", ".join(f"{key} = {json.dumps(value)}" for key, value in provider.items())
    given = ["-c", "model_provider=karat", "-c", f"model_providers.karat={{{shown}}}", "-m", MODEL]
    (home / "mcp.py").write_text(MCP, encoding="utf-8")
    mcp = f"mcp_servers.own={{command = {json.dumps(sys.executable)}, args = [{json.dumps(str(home / 'mcp.py'))}]}}"
    known = {"model_id": MODEL, "model_name": MODEL, "api_base": f"{url}/v1", "supports_tools": True}
    (home / "extra-openai-models.yaml").write_text(json.dumps([known]), encoding="utf-8")
    agent = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "dummy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    openai = {"OPENAI_API_KEY": "dummy", "OPENAI_API_BASE": f"{url}/v1", "LLM_USER_PATH": str(home)}
    function = "def weather(city: str) -> str:\n    return city"
    plain = "--no-git --yes-always --no-stream --no-check-update --analytics-disable --no-show-model-warnings".split()
    found = {
        "codex": (["exec", "--skip-git-repo-check", *given, "Hello"], {"KEY": "dummy"}),
        "codex-mcp": (["exec", "--skip-git-repo-check", *given, "-c", mcp, "Hello"], {"KEY": "dummy"}),
        "claude": (["-p", "Hello", "--model", MODEL], agent),
        "claude-effort": (["-p", "Hello", "--model", MODEL, "--effort", "high"], agent),
        "llm": (["-m", MODEL, "Hello"], openai),
        "llm-tools": (["-m", MODEL, "--no-stream", "--functions", function, "Hello"], openai),
        "aider": (["--model", f"openai/{MODEL}", *plain, "--message", "Hello"], openai),
        "opencode": (["run", "Hello"], {"OPENCODE_CONFIG": str(home / "opencode.json")}),
    }
    return {
        name: ([str(folder / name.partition("-")[0]), *arguments], variables)
        for name, (arguments, variables) in found.items()
        if (folder / name.partition("-")[0]).exists()
    }


def record(folder: Path, url: str | None = None) -> dict[str, dict[str, Any]]:
    """Name of a file to what it holds: the requests of each program that differ in their fields.

    They pass to the server at `url`, whose refusals are printed; None: each is answered with an error.
    """
    recorded: dict[str, dict[str, Any]] = {}
    recorder = Recorder() if url is None else Passing(url)
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        for name, (command, variables) in commands(folder, home, recorder.url).items():
            told: list[Any] = recorder.requests if isinstance(recorder, Recorder) else recorder.passed
            told.clear()
            environment = {"PATH": os.environ["PATH"], "HOME": place, **variables}
            version = _run([command[0], "--version"], environment, home).strip().splitlines()[-1]
            _run(command, environment, home)
            if isinstance(recorder, Passing):
                print(f"{name}: {', '.join(f'{p.route} {p.status}' for p in recorder.passed)}")
                print(*(p.answer[:300] for p in recorder.passed if p.status >= 300), sep="\n")
                told = [(passed.route, passed.body) for passed in recorder.passed]
            for number, (route, body) in enumerate(_different(told)):
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
        timeout=300,
        check=False,
    )
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.record_programs")
    parser.add_argument("folder", type=Path)
    parser.add_argument("url", nargs="?")
    given = parser.parse_args()
    for name, recorded in record(given.folder.absolute(), given.url).items():
        text = json.dumps(recorded, indent=1, ensure_ascii=False) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name}: {recorded['from']}, {recorded['route']}")


if __name__ == "__main__":
    main()

"""Programs are recorded as they ask, and of their requests only names, types and structure stay."""

import stat
import sys
from pathlib import Path
from typing import Any

from tools.anonymiser import Anonymiser
from tools.record_programs import record

ASKS = f"""#!{sys.executable}
import json, sys, os, urllib.request
if sys.argv[1:] == ["--version"]:
    print("1.2.3")
    sys.exit()
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages?beta=true"
for body in ({{"model": "secret", "max_tokens": 5}}, {{"model": "other", "max_tokens": 6}}, {{"system": "secret"}}):
    try:
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()))
    except OSError:
        pass
"""


def test_a_program_is_run_and_its_requests_kept_once(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text(ASKS, encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    bodies: list[Any] = [{"model": "PLACEHOLDER", "max_tokens": 5}, {"system": "PLACEHOLDER"}]
    assert record(tmp_path) == {
        f"{name}-{number}" if number else name: {
            "from": f"recorded: {name} 1.2.3",
            "route": "/v1/messages",
            "body": body,
        }
        for name in ("claude", "claude-effort")
        for number, body in enumerate(bodies)
    }


def test_texts_and_names_of_tools_go() -> None:
    schema: Any = {"type": "object", "properties": {"path": {"type": "string", "enum": ["a", "b"], "maxLength": 7}}}
    body = {"tools": [{"type": "function", "name": "secret", "parameters": schema | {"required": ["path"]}}], "n": 1.5}
    assert Anonymiser().of(body | {"metadata": {"user": "me"}, "reasoning": {"summary": "auto"}}) == {
        "tools": [
            {
                "type": "function",
                "name": "p0",
                "parameters": {
                    "type": "object",
                    "properties": {"p1": {"type": "string", "enum": ["p2", "p3"], "maxLength": 0}},
                    "required": ["p1"],
                },
            }
        ],
        "n": 1.5,
        "metadata": {"PLACEHOLDER": "PLACEHOLDER"},
        "reasoning": {"summary": "auto"},
    }

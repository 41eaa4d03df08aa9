"""What clients send with every request is taken: recorded ones, and the shapes of some that could not be recorded.

In the files are names of fields, types and structure; every text is a placeholder (tools/record_requests.py).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from karat.server.fields import CHAT, fields_of
from tests.server.conftest import Running

FILES = sorted((Path(__file__).parent / "requests").glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_request_is_taken_and_what_has_no_effect_is_named(server: Running, file: Path) -> None:
    recorded = json.loads(file.read_text(encoding="utf-8"))
    assert recorded["from"].startswith("shape of, not recorded: " if "shape" in file.stem else "recorded: ")
    body = recorded["body"] | {"model": "karat-embedded"}
    if not body.keys() & {"max_tokens", "max_completion_tokens"}:
        body["max_tokens"] = 2
    answer = server.ask(CHAT, body)
    if "refused" in recorded:
        assert answer.status == 400 and answer.json["error"]["param"] == recorded["refused"]
        return
    assert answer.status == 200, answer.content
    kinds = {name: field.kind for name, field in fields_of(CHAT).items()}
    harmless = [name for name in body if kinds[name] != "honoured"]
    assert answer.headers.get("karat-without-effect", "") == ", ".join(harmless)
    if body.get("stream"):
        assert answer.events


def test_texts_are_placeholders() -> None:
    def texts(value: Any, name: str = "") -> list[str]:
        if isinstance(value, dict):
            return [text for key, item in value.items() for text in texts(item, key)]
        if isinstance(value, list):
            return [text for item in value for text in texts(item, name)]
        is_word = name in ("role", "type", "service_tier", "tool_choice")
        return [value] if isinstance(value, str) and not is_word else []

    assert len(FILES) >= 9
    for file in FILES:
        assert set(texts(json.loads(file.read_text(encoding="utf-8"))["body"])) == {"PLACEHOLDER"}


def test_the_recorded_ones_are_those_of_the_clients_here() -> None:
    pytest.importorskip("openai", reason="the openai package is not installed (requirements/clients.txt)")
    pytest.importorskip("langchain_openai", reason="langchain-openai is not installed (requirements/clients.txt)")
    from tools.record_requests import FOLDER, record

    for name, made in record().items():
        stored = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        if stored["from"] == made["from"]:
            assert stored == made, "run python -m tools.record_requests"

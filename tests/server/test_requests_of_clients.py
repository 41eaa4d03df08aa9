"""What clients send with every request is taken: recorded requests of them.

In the files are names of fields, types and structure; every text is a placeholder (tools/record_requests.py,
tools/record_clients.py, tools/record_programs.py, tools/record_home_assistant.py). A file without a route is of
/v1/chat/completions. Answers are checked by the types of OpenAI's and Anthropic's own packages.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from karat.server.fields import CHAT, MESSAGES, RESPONSES, TEXT, fields_of
from tests.server.conftest import Answer, Running

FILES = sorted((Path(__file__).parent / "requests").glob("*.json"))
LENGTHS = {CHAT: "max_tokens", TEXT: "max_tokens", MESSAGES: "max_tokens", RESPONSES: "max_output_tokens"}
WORDS = set("24h adaptive all any auto default disabled ephemeral high low medium none required {}".split())
WORDS.add("reasoning.encrypted_content")
PLACEHOLDER = re.compile(r"PLACEHOLDER|(#/\$defs/)?p[0-9]+")


def require_valid(route: str, answer: Answer, *, stream: bool) -> None:
    """That the protocol's own package takes the answer, and each event of a stream."""
    openai = pytest.importorskip("openai", reason="the openai package is not installed (requirements/clients.txt)")
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed (requirements/clients.txt)")
    from pydantic import TypeAdapter

    chat, types = openai.types.chat, openai.types
    whole, event = {
        CHAT: (chat.ChatCompletion, chat.ChatCompletionChunk),
        TEXT: (types.Completion, types.Completion),
        RESPONSES: (types.responses.Response, types.responses.ResponseStreamEvent),
        MESSAGES: (anthropic.types.Message, anthropic.types.RawMessageStreamEvent),
    }[route]
    if not stream:
        TypeAdapter(whole).validate_json(answer.content)
        return
    data = re.findall(rb"^data: (.*)$", answer.content, re.MULTILINE)
    told = [json.loads(item) for item in data if item != b"[DONE]"]
    events = [item for item in told if item.get("type") not in ("ping", "response.reasoning_text.delta")]
    assert len(events) > 1 and (data[-1] == b"[DONE]") == (route in (CHAT, TEXT))
    for item in events:
        assert "error" not in item
        TypeAdapter(event).validate_python(item)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_request_is_taken_and_what_has_no_effect_is_named(server: Running, scripted: Running, file: Path) -> None:
    recorded = json.loads(file.read_text(encoding="utf-8"))
    assert recorded["from"].startswith("recorded: ")
    route = recorded.get("route", CHAT)
    # The models have small contexts, and programs ask for long answers.
    body = {name: value for name, value in recorded["body"].items() if name != "max_completion_tokens"}
    fields, model = fields_of(route), "scripted" if body.get("tools") else "karat-embedded"
    body |= {"model": model, LENGTHS[route]: 2}
    answer = (scripted if body.get("tools") else server).ask(route, body)
    assert answer.status == 200, answer.content
    named = answer.headers.get("karat-without-effect", "").split(", ")
    harmless = [name for name in body if fields[name].kind != "honoured" and name != "tools"]
    assert [name for name in named if name in body and name not in ("tools", "reasoning_effort")] == harmless
    for name, part in (("output_config", "effort"), ("text", "verbosity")):
        assert (f"{name}.{part}" in named) == (part in body.get(name, {}))
    taken = ("function", "custom", *(("namespace",) if route == RESPONSES else ()))
    dropped = [t.get("name", t["type"]) for t in body.get("tools", []) if t.get("type", "function") not in taken]
    assert {f"tools.{name}" for name in dropped} <= set(named)
    require_valid(route, answer, stream=bool(body.get("stream")))


def test_texts_are_placeholders() -> None:
    def texts(value: Any, name: str = "") -> list[str]:
        if isinstance(value, dict):
            return [text for key, item in value.items() for text in texts(item, key)]
        if isinstance(value, list):
            return [text for item in value for text in texts(item, name)]
        is_word = name in ("role", "type", "$schema") or value in WORDS or name == "from"
        return [value] if isinstance(value, str) and not is_word else []

    assert len(FILES) >= 40
    for file in FILES:
        for text in texts(json.loads(file.read_text(encoding="utf-8"))["body"]):
            assert PLACEHOLDER.fullmatch(text), (file.name, text)


def test_the_recorded_ones_are_those_of_the_clients_here() -> None:
    pytest.importorskip("openai", reason="the openai package is not installed (requirements/clients.txt)")
    pytest.importorskip("langchain_openai", reason="langchain-openai is not installed (requirements/clients.txt)")
    from tools.record_requests import FOLDER, record

    for name, made in record().items():
        stored = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        if stored["from"] == made["from"]:
            assert stored == made, "run python -m tools.record_requests"

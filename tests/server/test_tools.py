"""How calls of tools and reasoning are told over HTTP, in every protocol, on a scripted model.

Covers: karat.server.answers.parts, karat.server.anthropic.blocks, karat.server.anthropic.messages,
karat.server.asking.conversation, karat.server.answers.preparing, karat.server.asking.tools,
karat.server.openai.messages, karat.server.openai.response_items, karat.server.openai.tools.
"""

import json
from typing import Any

import pytest

from karat.server.fields import CHAT, MESSAGES, RESPONSES
from tests.server.anthropic.test_messages import events_of as message_events
from tests.server.conftest import Running
from tests.server.openai.test_responses import events_of as response_events
from tests.server.tool_cases import BODIES, CASES, SAID, call, calls, chat_body, message_body, response_body, texts


@CASES
def test_chats(scripted: Running, case: str) -> None:
    said, reasoning, parts = SAID[case]
    answer = scripted.ask(CHAT, chat_body(said))
    (choice,) = answer.json["choices"]
    message = choice["message"]
    assert message.get("reasoning_content", "") == message.get("reasoning", "") == reasoning
    assert message["content"] == (texts(parts) if texts(parts) or not calls(parts) else None)
    made = [(each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls", [])]
    assert made == calls(parts) and choice["finish_reason"] == ("tool_calls" if made else "stop")
    usage = answer.json["usage"]["completion_tokens_details"]
    assert usage["reasoning_tokens"] == (said.find("</think>") + 8 if reasoning and "</" in said[-60:] else 0) or (
        case == "thought alone" and usage["reasoning_tokens"] == len(said) + 1
    )
    events = scripted.ask(CHAT, chat_body(said, stream=True, stream_options={"include_usage": True})).events
    assert events[-1]["usage"]["completion_tokens_details"] == usage
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == reasoning
    assert "".join(delta.get("content") or "" for delta in deltas) == texts(parts)
    streamed: list[dict[str, Any]] = []
    for delta in deltas:
        for piece in delta.get("tool_calls", ()):
            if "id" in piece:
                assert piece["index"] == len(streamed) and piece["type"] == "function"
                streamed.append({"name": piece["function"]["name"], "arguments": "", "id": piece["id"], "pieces": 0})
            else:
                assert piece["index"] == len(streamed) - 1 and "name" not in piece["function"]
                streamed[-1]["pieces"] += 1
            streamed[-1]["arguments"] += piece["function"]["arguments"]
    assert [(each["name"], each["arguments"]) for each in streamed] == made
    assert all(each["pieces"] > 1 for each in streamed) and len({each["id"] for each in streamed}) == len(streamed)
    assert events[-2]["choices"][0]["finish_reason"] == choice["finish_reason"]


@CASES
def test_responses(scripted: Running, case: str) -> None:
    said, reasoning, parts = SAID[case]
    whole = scripted.ask(RESPONSES, response_body(said)).json
    items: list[Any] = []
    for item in whole["output"]:
        assert item["status"] == "completed"
        match item["type"]:
            case "message":
                items.append(item["content"][0]["text"])
            case "reasoning":
                assert item is whole["output"][0] and item["content"][0]["text"] == reasoning and item["summary"] == []
            case "function_call":
                items.append((item["name"], item["arguments"]))
                assert item["call_id"].startswith("call_")
    assert items == parts and (whole["output"][0]["type"] == "reasoning") == bool(reasoning)
    events = response_events(scripted.ask(RESPONSES, response_body(said, stream=True)))
    ended = events[-1]["response"]
    assert events[-1]["type"] == "response.completed" and whole["usage"] == ended["usage"] | {
        "input_tokens_details": whole["usage"]["input_tokens_details"]
    }
    assert [_without_ids(item) for item in ended["output"]] == [_without_ids(item) for item in whole["output"]]
    _check_items(events[2:-1], ended["output"])


def _without_ids(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}


def _check_items(events: list[Any], items: list[Any]) -> None:
    """The events of each item in the order of the protocol, one item after the other."""
    for index, item in enumerate(items):
        own = [event for event in events if event["output_index"] == index]
        assert own == events[: len(own)]
        events = events[len(own) :]
        assert own[0]["type"] == "response.output_item.added" and own[-1]["type"] == "response.output_item.done"
        assert own[0]["item"] | {"status": ""} == item | {"status": ""} | (
            {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        )
        assert own[0]["item"]["status"] == "in_progress" and own[-1]["item"] == item
        assert {event["item_id"] for event in own[1:-1]} == {item["id"]}
        inner = own[1:-1]
        if item["type"] == "function_call":
            kind, text, name = "response.function_call_arguments", item["arguments"], "arguments"
        else:
            assert inner[0]["type"] == "response.content_part.added" and inner[0]["part"]["text"] == ""
            assert inner[-1]["type"] == "response.content_part.done" and inner[-1]["part"] == item["content"][0]
            inner = inner[1:-1]
            kind = "response.output_text" if item["type"] == "message" else "response.reasoning_text"
            text, name = item["content"][0]["text"], "text"
        assert {event["type"] for event in inner[:-1]} <= {f"{kind}.delta"} and inner[-1]["type"] == f"{kind}.done"
        assert "".join(event["delta"] for event in inner[:-1]) == inner[-1][name] == text
    assert events == []


@CASES
def test_messages(scripted: Running, case: str) -> None:
    said, reasoning, parts = SAID[case]
    whole = scripted.ask(MESSAGES, message_body(said)).json
    expected: list[Any] = [{"type": "thinking", "thinking": reasoning, "signature": ""}] if reasoning else []
    for part in parts:
        if isinstance(part, str):
            expected.append({"type": "text", "text": part, "citations": []})
        else:
            expected.append(
                {"type": "tool_use", "name": part[0], "input": json.loads(part[1]), "caller": {"type": "direct"}}
            )
    found = [{name: value for name, value in block.items() if name != "id"} for block in whole["content"]]
    assert found == expected
    assert whole["stop_reason"] == ("tool_use" if calls(parts) else "end_turn")
    assert all(block["id"].startswith("toolu_") for block in whole["content"] if block["type"] == "tool_use")
    events = message_events(scripted.ask(MESSAGES, message_body(said, stream=True)))
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"] and events[-1]["type"] == "message_stop"
    blocks = events[2:-2]
    for index, block in enumerate(expected):
        own = [event for event in blocks if event["index"] == index]
        assert own == blocks[: len(own)]
        blocks = blocks[len(own) :]
        assert own[0]["type"] == "content_block_start" and own[-1] == {"type": "content_block_stop", "index": index}
        deltas = [event["delta"] for event in own[1:-1]]
        match block["type"]:
            case "text":
                assert own[0]["content_block"] == block | {"text": ""}
                assert "".join(delta["text"] for delta in deltas) == block["text"]
            case "thinking":
                assert own[0]["content_block"] == block | {"thinking": ""}
                assert "".join(delta["thinking"] for delta in deltas[:-1]) == block["thinking"]
                assert deltas[-1] == {"type": "signature_delta", "signature": ""}
            case "tool_use":
                assert own[0]["content_block"] | {"id": ""} == block | {"input": {}, "id": ""}
                assert json.loads("".join(delta["partial_json"] for delta in deltas)) == block["input"]
    assert blocks == []


BROKEN = call(arguments='{"city": "Oslo\n"}') + " Sorry."
BEGUN, REST = '{"city": "Oslo', BROKEN[BROKEN.index('\n"}') :]


class TestCallsThatBreak:
    """A call that proves malformed after its first value: what was told of it is cut, and the rest is text."""

    @pytest.mark.parametrize("more", [False, True])
    def test_chats(self, scripted: Running, *, more: bool) -> None:
        body = chat_body(BROKEN + more * f"\n{call()}")
        (choice,) = scripted.ask(CHAT, body).json["choices"]
        made = [each["function"]["arguments"] for each in choice["message"]["tool_calls"]]
        assert made == [BEGUN] + more * ['{"city": "Oslo", "days": 2}'] and choice["message"]["content"] == REST
        assert choice["finish_reason"] == ("tool_calls" if more else "stop")
        events = scripted.ask(CHAT, body | {"stream": True}).events
        deltas = [event["choices"][0]["delta"] for event in events]
        assert "".join(delta.get("content") or "" for delta in deltas) == REST
        streamed = ["" for _ in made]
        for piece in (piece for delta in deltas for piece in delta.get("tool_calls", ())):
            streamed[piece["index"]] += piece["function"]["arguments"]
        assert streamed == made and events[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]

    def test_responses(self, scripted: Running) -> None:
        body = response_body(BROKEN)
        whole = scripted.ask(RESPONSES, body).json
        broken, message = whole["output"]
        assert (broken["arguments"], broken["status"]) == (BEGUN, "incomplete")
        assert message["content"][0]["text"] == REST and message["status"] == whole["status"] == "completed"
        events = response_events(scripted.ask(RESPONSES, body | {"stream": True}))
        ended = events[-1]["response"]["output"]
        assert [_without_ids(item) for item in ended] == [_without_ids(item) for item in whole["output"]]
        _check_items(events[2:-1], ended)

    @pytest.mark.parametrize("more", [False, True])
    def test_messages(self, scripted: Running, *, more: bool) -> None:
        at_once = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo", ' + call()
        body = message_body(at_once if more else BROKEN)
        whole = scripted.ask(MESSAGES, body).json
        kinds = [block["type"] for block in whole["content"]]
        assert kinds == ["tool_use", "tool_use" if more else "text"]
        assert whole["content"][0]["input"] == {"city": "Oslo"}, "input must be an object: what came of it"
        assert whole["stop_reason"] == ("tool_use" if more else "end_turn")
        events = message_events(scripted.ask(MESSAGES, body | {"stream": True}))[2:-2]
        assert [event["content_block"]["type"] for event in events if "content_block" in event] == kinds
        for index in (0, 1):
            own = [event["type"] for event in events if event["index"] == index]
            assert own[0] == "content_block_start" and own.index("content_block_stop") == len(own) - 1
            assert set(own[1:-1]) == {"content_block_delta"}
        pieces = [event["delta"]["partial_json"] for event in events if "delta" in event and event["index"] == 0]
        assert "".join(pieces) == ('{"city": "Oslo", ' if more else BEGUN)
        assert events[-1] == {"type": "content_block_stop", "index": 1}


def test_calls_that_the_model_makes_by_itself_come_as_it_writes_them(scripted: Running) -> None:
    text = "a" * 200
    said = call(arguments=f'{{"city": "{text}"}}')
    pieces: dict[str, list[str]] = {
        CHAT: [
            piece["function"]["arguments"]
            for event in scripted.ask(CHAT, chat_body(said, stream=True)).events
            for piece in event["choices"][0]["delta"].get("tool_calls", ())
        ],
        RESPONSES: [
            event["delta"]
            for event in response_events(scripted.ask(RESPONSES, response_body(said, stream=True)))
            if event["type"] == "response.function_call_arguments.delta"
        ],
        MESSAGES: [
            event["delta"]["partial_json"]
            for event in message_events(scripted.ask(MESSAGES, message_body(said, stream=True)))
            if event["type"] == "content_block_delta"
        ],
    }
    for told in pieces.values():
        assert "".join(told) == f'{{"city": "{text}"}}' and len(told) > 100


def test_the_prompt_has_tools_calls_results_and_reasoning(scripted: Running) -> None:
    made = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "a"}'}}
    body = chat_body("Hello")
    turns = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": "Hm.", "reasoning_content": "A thought.", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    prompt = scripted.ask("/render", {"messages": turns, "tools": body["tools"]}).json["prompt"]
    assert '{"type": "function", "function": {"name": "get_weather"' in prompt
    assert '<think>\nA thought.\n</think>\n\nHm.\n<tool_call>\n{"name": "clock", "arguments": {"zone": "a"}}' in prompt
    assert "<|im_start|>tool\nnoon<|im_end|>" in prompt


@pytest.mark.parametrize(
    ("route", "on", "off"),
    [
        (CHAT, {"reasoning_effort": "high"}, {"reasoning_effort": "none"}),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": True}}, {}),
        (RESPONSES, {"reasoning": {"effort": "high"}}, {"reasoning": {"effort": "none"}}),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"thinking": {"type": "disabled"}}),
    ],
)
def test_reasoning_that_the_prompt_opens(scripted: Running, server: Running, route: str, on: Any, off: Any) -> None:
    def told(given: Any) -> str:
        return str(scripted.ask(route, BODIES[route]("Hm.</think>\nYes.") | given).json)

    assert "Hm.</think>" not in told(on) and "Hm." in told(on)
    assert "Hm.</think>" in told(off)
    length = "max_output_tokens" if route == RESPONSES else "max_tokens"
    plain = {name: value for name, value in BODIES[route]("Hi").items() if name != "tools"} | {length: 2}
    assert server.ask(route, plain | off).status == 200
    if "chat_template_kwargs" not in on:
        answer = server.ask(route, plain | on)
        assert answer.status == 200 and next(iter(on)) in answer.headers["karat-without-effect"]


@pytest.mark.slow
def test_choices_are_taken_apart_each_by_itself(scripted: Running) -> None:
    said, _, parts = SAID["all"]
    choices = scripted.ask(CHAT, chat_body(said, n=3)).json["choices"]
    ids = [each["id"] for choice in choices for each in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 3 * len(calls(parts))
    events = scripted.ask(CHAT, chat_body(said, n=3, stream=True, logprobs=True, return_token_ids=True)).events
    for index in range(3):
        own = [c for event in events for c in event["choices"] if c["index"] == index]
        assert "".join(choice["delta"].get("content") or "" for choice in own) == texts(parts)
        assert len([i for choice in own for i in choice.get("token_ids", [])]) == len(said) + 1
        assert len([e for choice in own if choice["logprobs"] for e in choice["logprobs"]["content"]]) == len(said) + 1


@pytest.mark.slow
def test_what_explains_the_tokens_of_calls_is_told(scripted: Running) -> None:
    said = SAID["all"][0]
    num = len(said) + 1

    def explained(events: list[Any]) -> int:
        return sum(len(event.get("karat", {}).get("explain", ())) for event in events)

    streamed = scripted.ask(CHAT, chat_body(said, stream=True, explain=True)).events
    assert explained([choice for event in streamed for choice in event["choices"]]) == num
    assert explained(message_events(scripted.ask(MESSAGES, message_body(said, stream=True, explain=True)))) == num
    events = response_events(scripted.ask(RESPONSES, response_body(said, stream=True, explain=True)))
    assert explained(events) + explained([events[-1]["response"]]) == num


def test_an_answer_that_is_resumed_in_the_middle_of_a_call(scripted: Running) -> None:
    body = chat_body(SAID["all"][0], seed=5)
    whole = scripted.ask(CHAT, body | {"return_token_ids": True}).json["choices"][0]
    for place in (3, 70, 130, len(SAID["all"][0]) - 16):
        resume = {"tokens": whole["token_ids"][:place], "seed": 5}
        rest = scripted.ask(CHAT, body | {"karat": {"resume": resume}}).json["choices"][0]["message"]
        made = rest.get("tool_calls", [])
        assert [each["function"] for each in made] == [
            each["function"] for each in whole["message"]["tool_calls"][-len(made) :]
        ]
        assert len(made) == (1 if place > 150 else 2)
        assert whole["message"]["content"].endswith(rest["content"] or "")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_what_a_resumed_answer_began_with_is_told_in_parts(scripted: Running, stream: bool) -> None:
    body = chat_body(SAID["all"][0], seed=5)
    whole = scripted.ask(CHAT, body | {"return_token_ids": True}).json["choices"][0]

    def parts(message: Any) -> tuple[str, str, list[Any]]:
        made = [each["function"] for each in message.get("tool_calls", [])]
        return message.get("reasoning_content", ""), message["content"] or "", made

    def merged(events: list[Any]) -> tuple[Any, Any]:
        """The beginning, and the whole that a client gets who adds the deltas to it."""
        choices = [choice for event in events for choice in event["choices"]]
        (begun,) = [c["karat"]["resumed"] for c in choices if "resumed" in c.get("karat", {})]
        message = json.loads(json.dumps(begun))
        message["content"], calls = message["content"] or "", message.setdefault("tool_calls", [])
        for delta in (choice["delta"] for choice in choices):
            message["content"] += delta.get("content") or ""
            if delta.get("reasoning_content"):
                message["reasoning_content"] = message.get("reasoning_content", "") + delta["reasoning_content"]
            for one in delta.get("tool_calls", []):
                if one["index"] == len(calls):
                    calls.append({"function": {"name": one["function"]["name"], "arguments": ""}})
                calls[one["index"]]["function"]["arguments"] += one["function"].get("arguments", "")
        return begun, message

    seen = set()
    for place in range(0, len(whole["token_ids"]), 13):
        resume = {"tokens": whole["token_ids"][:place], "seed": 5}
        answer = scripted.ask(CHAT, body | {"stream": stream, "karat": {"resume": resume}})
        if stream:
            begun, message = merged(answer.events)
            assert parts(message) == parts(whole["message"])
        else:
            (choice,) = answer.json["choices"]
            begun = choice["karat"]["resumed"]
            pairs = zip(parts(begun), parts(choice["message"]), parts(whole["message"]), strict=True)
            assert all(one + other == both for one, other, both in pairs), place
        seen.add(tuple(map(bool, parts(begun))))
    assert len(seen) > 2, "beginnings in all parts of an answer"

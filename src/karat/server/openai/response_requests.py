"""From requests of /v1/responses to the inner form, with all checks. Nothing here computes or waits."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from karat.engine.requests.messages import content_of, linked
from karat.engine.requests.passed import Passed, stated
from karat.request import shown
from karat.server.asking.asked import AnswerForm, ChatRequest
from karat.server.asking.conversation import Content, as_sent, called, require_continuable, text_in
from karat.server.asking.sampling import require_length, sampling_of
from karat.server.asking.structures import structure_field
from karat.server.asking.terms import read_terms
from karat.server.asking.tools import MODES
from karat.server.asking.variables import Effort, read_variables, switched
from karat.server.bodies import Body, judge
from karat.server.errors import invalid
from karat.server.fields import RESPONSES, Field, Text, keyed
from karat.server.openai.custom_tools import arguments_of
from karat.server.openai.formats import text_structure
from karat.server.openai.response_schema import (
    AllowedTools,
    CustomChoice,
    EchoedTool,
    FunctionChoice,
    TextConfig,
    TextFormat,
)
from karat.server.openai.response_tools import Meaning, Offered, echoed, flat_name
from karat.server.openai.tools import read_response_tools

REASONING: Mapping[str, Field] = keyed(
    Field("effort", (), "honoured", "As reasoning_effort of a chat.", Text),
    Field("summary", (), "without effect", "None is made.", Text),
    Field("generate_summary", (), "without effect", "None is made.", Text),
    Field("context", (), "without effect", "The whole input is the context.", Literal["auto"]),
)
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}  # and where their text is
_CALLS = ("function_call", "custom_tool_call", "tool_search_call")
_HIDDEN = ("compaction", "compaction_summary", "context_compaction")  # text that only the server that made it can read


@dataclass(frozen=True, slots=True)
class Echo:
    """What the answer gives back of the request."""

    instructions: str | None
    metadata: Mapping[str, str]
    max_output_tokens: int | None
    text: TextConfig = TextConfig(TextFormat())  # noqa: RUF009 - nobody changes it
    parallel_tool_calls: bool = True
    tool_choice: Literal["auto", "none", "required"] | FunctionChoice | CustomChoice | AllowedTools = "auto"
    tools: tuple[EchoedTool, ...] = ()
    meanings: Mapping[str, Meaning] = field(default_factory=dict)  # of the names of functions


@as_sent()
def read_response(body: Body) -> ChatRequest:
    """The request of a body for /v1/responses or its input_tokens. 400 for what is wrong or no text."""
    values = body.values
    require_length(body, "max_output_tokens")
    offered, passed = Offered(), Passed()
    messages, instructions = linked(_messages(values["input"], offered, passed)), values.get("instructions")
    tools, (efforts, unheeded) = read_response_tools(values, offered, passed), _effort(values.get("reasoning", {}))
    continues = _continues(values["input"])
    if continues:
        require_continuable(messages[-1], f"input[{len(values['input']) - 1}]")
    if instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    sampling = sampling_of(values, RESPONSES)
    structure, text, names = text_structure(values)
    sampling |= structure
    if "max_output_tokens" in values:
        sampling["max_tokens"] = values["max_output_tokens"]
    choice = values.get("tool_choice", "auto")
    choice = stated(choice) if isinstance(choice, dict) else choice
    echo = Echo(
        instructions,
        values.get("metadata", {}),
        values.get("max_output_tokens"),
        text,
        values.get("parallel_tool_calls", True),
        _echoed_choice(choice) if isinstance(choice, dict) else MODES[choice],
        echoed(offered, [function.name for function in tools.functions]),
        offered.meanings,
    )
    return ChatRequest(
        messages,
        read_variables(values, continues=continues),
        sampling,
        AnswerForm(
            values.get("model"),
            values.get("stream", False),
            structure_field=structure_field(values),
            prompt_field="input",
            length_field=body.sent("max_output_tokens"),
        ),
        read_terms(values),
        tools,
        (*efforts, *switched(values)),
        (*body.without_effect, *unheeded, *names, *passed.names),
        continues,
        echo,
    )


def _echoed_choice(
    choice: Mapping[str, Any],
) -> Literal["auto", "none", "required"] | FunctionChoice | CustomChoice | AllowedTools:
    if choice.keys() == {"type"}:
        return MODES[choice["type"]]
    if "tools" in choice:
        return AllowedTools(choice["mode"], choice["tools"])
    return CustomChoice(choice["name"]) if choice["type"] == "custom" else FunctionChoice(choice["name"])


def _effort(reasoning: Mapping[str, Any]) -> tuple[tuple[Effort, ...], tuple[str, ...]]:
    """The effort asked for, and the names of keys that have no effect: reasoning comes as it is, not summarised."""
    body = judge(reasoning, REASONING, "reasoning.")
    names = tuple(f"reasoning.{name}" for name in body.without_effect)
    return (Effort("reasoning.effort", body.values["effort"]),) if "effort" in body.values else (), names


def _messages(given: str | list[dict[str, Any]], offered: Offered, passed: Passed) -> list[dict[str, Any]]:
    """The conversation. Tools of which its items tell are added to `offered`, and what has no effect to `passed`."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not given:
        raise invalid("input", "input=[]: expected a text, or messages")
    messages: list[dict[str, Any]] = []
    ids = {item.get("id") for item in given if item.get("type") != "item_reference"}
    for index, item in enumerate(given):
        where, kind = f"input[{index}]", _kind(item)
        if kind == "item_reference" or (kind == "message" and item.keys() == {"id"}):
            if item.get("id") not in ids:
                text = f"{where} refers to {shown(item.get('id'))}, and no answer is kept; send the item itself"
                raise invalid(f"{where}.id", text, "unsupported_field")
        elif kind == "additional_tools":
            offered.add(item.get("tools"), f"{where}.tools", passed)
        elif kind == "tool_search_output":
            offered.add(item.get("tools"), f"{where}.tools", passed)
            if isinstance(item.get("call_id"), str):
                found = json.dumps([tool.get("name") for tool in item["tools"]], ensure_ascii=False)
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": f"Tools: {found}"})
        elif kind in _HIDDEN:
            passed.note("input.encrypted_content")
        else:
            _add(messages, item, where, passed)
    if not messages:
        raise invalid("input", "input has no message that can be read; expected one at least")
    return messages


def _add(messages: list[Any], item: Mapping[str, Any], where: str, passed: Passed) -> None:
    """Add an item. Reasoning, a message and calls of the assistant in a row are one message."""
    kind = _kind(item)
    if kind in ("function_call_output", "custom_tool_call_output"):
        _pass_over(passed, item, where, "call_id", "output", "name")
        given = item.get("output", 0)
        output = _content("" if given in (None, []) else given, f"{where}.output", passed)
        messages.append({"role": "tool", "tool_call_id": text_in(item, "call_id", where), "content": output})
        return
    if kind == "message" and item.get("role") != "assistant":
        messages.append(_message(item, where, passed))
        return
    if kind not in ("message", "reasoning", *_CALLS):
        raise invalid(
            f"{where}.type",
            f"{where}.type={shown(kind)}: expected message, reasoning, or a call or an output of a tool",
            "unsupported_field",
        )
    if kind == "tool_search_call" and not isinstance(item.get("call_id"), str):
        return  # a search that the server made: its output tells of the tools
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if last is None or (kind == "message" and ("tool_calls" in last or last["content"])) or kind == "reasoning":
        last = {"role": "assistant", "content": ""}
        messages.append(last)
    if kind == "message":
        last["content"] = _message(item, where, passed)["content"]
    elif kind == "reasoning":
        last["reasoning_content"] = _reasoning(item, where, passed)
    else:
        last.setdefault("tool_calls", []).append(_call(item, kind, where, passed))


def _call(item: Mapping[str, Any], kind: str, where: str, passed: Passed) -> dict[str, Any]:
    """A call of an earlier answer, by the name that the model is shown."""
    if kind == "tool_search_call":
        _pass_over(passed, item, where, "call_id", "arguments", "execution")
        given = item.get("arguments")
        arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        return called(text_in(item, "call_id", where), "tool_search", arguments)
    given_as = "arguments" if kind == "function_call" else "input"
    _pass_over(passed, item, where, "call_id", "name", given_as, "namespace")
    text, name = text_in(item, given_as, where), flat_name(item.get("namespace"), text_in(item, "name", where))
    if kind == "custom_tool_call":
        text = arguments_of(text)
    return called(text_in(item, "call_id", where), name, text)


def _reasoning(item: Mapping[str, Any], where: str, passed: Passed) -> str:
    """The text of a reasoning item, or its summary if it has none."""
    _pass_over(passed, item, where, "content", "summary", "encrypted_content")
    if item.get("encrypted_content") and not (item.get("content") or item.get("summary")):
        passed.note("input.encrypted_content")  # nobody can read it
    texts: list[str] = []
    for name in ("content", "summary"):
        parts = item.get(name) or []
        if not isinstance(parts, list):
            raise invalid(f"{where}.{name}", f"{where}.{name}={shown(parts)}: expected a list of texts")
        texts = texts or [text_in(part, "text", f"{where}.{name}") for part in parts if isinstance(part, dict)]
    return "\n".join(texts)


def _continues(items: str | list[dict[str, Any]]) -> bool:
    """Whether the answer goes on with the last message: one of the assistant's that has no end yet, as in vLLM."""
    last = {} if isinstance(items, str) else items[-1]
    is_begun = last.get("status") in ("incomplete", "in_progress")
    return is_begun and _kind(last) == "message" and last.get("role") == "assistant"


def _kind(item: Mapping[str, Any]) -> Any:
    """The type of an item; a message where none is stated."""
    return "message" if item.get("type") is None else item["type"]


def _pass_over(passed: Passed, item: Mapping[str, Any], where: str, *names: str) -> None:
    """Pass over other keys. The openai package adds what it parsed (parsed_arguments, and parsed of texts)."""
    passed.over(item, {"type", "id", "status", "phase", "parsed_arguments", *names}, where, "input")


def _message(item: Mapping[str, Any], where: str, passed: Passed) -> dict[str, Any]:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        expected = "expected one of user, assistant, system, developer"
        raise invalid(f"{where}.role", f"{where}.role={shown(role)}: {expected}")
    _pass_over(passed, item, where, "role", "content")
    content = item.get("content")
    is_empty = content == [] or (content is None and (role == "assistant" or "content" in item))
    text = "" if is_empty else _content(content, f"{where}.content", passed)
    return {"role": "system" if role == "developer" else role, "content": text}


def _content(content: object, where: str, passed: Passed) -> Content:
    """The content as a text or as parts of text, as in chat completions."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid(where, f"{where}={shown(content)}: expected a text, or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        place = f"{where}[{index}]"
        if part is None:
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in _PARTS:
            raise invalid(f"{place}.type", f"{place}.type={shown(kind)}: Karat reads text alone", "unsupported_field")
        name = _PARTS[kind]
        text = "" if name in part and part[name] is None else text_in(part, name, place)
        passed.over(part, ("type", name, "parsed"), place, "input")
        texts.append(text)
    return content_of(texts)

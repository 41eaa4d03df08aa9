"""A conversation in the form that a chat template takes: calls, results, instructions, tools (`Dialect.shown`)."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from karat.errors import TemplateError
from karat.request import shown
from karat.text.chat_prompt import INSTRUCTING
from karat.text.tools.arguments import read_arguments

Message = Mapping[str, Any]


def read_call(call: Any) -> tuple[str, str, Mapping[str, Any]]:
    """Id, name and arguments of a call in OpenAI's form."""
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise TemplateError(
            f"a call of the conversation is {shown(call)}; expected id, type function, and function with name and "
            "arguments; mend it"
        )
    assert isinstance(function, Mapping)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = read_arguments(arguments)
    if not isinstance(arguments, Mapping):
        raise TemplateError(
            f"the arguments of a call of {name[:80]} are no JSON object; expected one; mend the conversation"
        )
    call_id = call.get("id")
    return call_id if isinstance(call_id, str) else "", name, arguments


def described(tool: Message) -> Message:
    """The tool with a description, an empty one where it has none."""
    function = tool.get("function", tool)
    if not isinstance(function, Mapping) or function.get("description") is not None:
        return tool
    told = {**function, "description": ""}
    return told if function is tool else {**tool, "function": told}


def with_tools(messages: Sequence[Message], tools: Sequence[Message]) -> list[Message]:
    """The tools as JSON text beside the content of the system message, which is put first where there is none."""
    told = {"tools": json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False)}
    if messages and messages[0].get("role") == "system":
        return [{**messages[0], **told}, *messages[1:]]
    return [{"role": "system", "content": "", **told}, *messages]


def text_of(message: Message) -> str:
    """The content of a message as one text."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def with_one_system(messages: Sequence[Message]) -> list[Message]:
    """All instructions in one message, the first."""
    system = [message for message in messages if message.get("role") in INSTRUCTING]
    if not system or (len(system) == 1 and system[0] is messages[0]):
        return list(messages)
    others = [message for message in messages if message.get("role") not in INSTRUCTING]
    return [{**system[0], "content": "\n\n".join(map(text_of, system))}, *others]


def apart(messages: Sequence[Message]) -> list[Message]:
    """One call a message. The results that follow a message follow the calls that they are of."""
    found: list[Message] = []
    place = 0
    while place < len(messages):
        message, place = messages[place], place + 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            found.append(message)
            continue
        results: list[Message] = []
        while place < len(messages) and messages[place].get("role") == "tool":
            results.append(messages[place])
            place += 1
        for number, call in enumerate(calls):
            head = message if number == 0 else {"role": message["role"], "content": ""}
            own = [result for result in results if result.get("tool_call_id") == call["id"]]
            results = [result for result in results if result not in own]
            found += [{**head, "tool_calls": [call]}, *own]
        found += results
    return found

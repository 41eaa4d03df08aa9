"""Conversations that reach every corner of a chat template."""

from typing import Any, NamedTuple

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place, in “plain” words & <tags>.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A town, such as Zürich"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "detail": {"type": ["object", "null"], "properties": {"wind": {"type": "boolean"}}},
            },
            "required": ["place"],
        },
        "return": {"type": "string"},
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}},
}


class Conversation(NamedTuple):
    name: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    extra: dict[str, Any] = {}  # noqa: RUF012 - never changed


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def call(name: str, arguments: Any, id: str = "call12345") -> dict[str, Any]:  # noqa: A002
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: Any, id: str = "call12345", **more: Any) -> dict[str, Any]:  # noqa: A002
    return {"role": "tool", "name": "get_weather", "tool_call_id": id, "content": content, **more}


def text(*parts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": part} for part in parts]


RAIN = call("get_weather", {"place": "Zürich", "days": [1, 2], "unit": None, "detail": {"wind": True}, "x": 1.5})
TURN = [user("What is 2 + 2?"), assistant("4."), user("And 3 + 3?")]
WITH_TOOLS = [WEATHER, CLOCK]

CONVERSATIONS = [
    Conversation("one question", [user("Hello")]),
    Conversation("system", [system("Be brief."), user("Hello")]),
    Conversation("turns", TURN),
    Conversation("system and turns", [system("Be brief."), *TURN]),
    Conversation("ends with the assistant", [*TURN, assistant("6, of course.")]),
    Conversation("white space", [system("\n Be\n brief. \n"), user("  Hello \n\n"), assistant("\n\nHi "), user("\t?")]),
    Conversation("unicode", [user("Grüße, 你好, 👩‍👩‍👧 \u200b\u00a0<b>&amp;</b> {{ 7 * 7 }} {% raw %}")]),
    Conversation("empty strings", [system(""), user(""), assistant(""), user("")]),
    Conversation("long", [system("S" * 3000), *[user("u" * 500), assistant("a" * 500)] * 20, user("end")]),
    Conversation("parts", [system(text("Be brief.")), user(text("Hello", "there")), assistant(text("Hi")), user("?")]),
    Conversation("image", [user([{"type": "image", "image": "a.png"}, {"type": "text", "text": "What is this?"}])]),
    Conversation("image_url", [user([*text("Look:"), {"type": "image_url", "image_url": {"url": "http://x"}}])]),
    Conversation("audio and video", [user([{"type": "audio"}, {"type": "video"}, *text("?")])]),
    Conversation("developer", [{"role": "developer", "content": "Be brief."}, user("Hello")]),
    Conversation("unknown role", [{"role": "critic", "content": "Hm."}, user("Hello")]),
    Conversation("two questions", [user("Hello"), user("Anyone?")]),
    Conversation("assistant first", [assistant("Hi"), user("Hello")]),
    Conversation("late system", [user("Hello"), assistant("Hi"), system("Be brief."), user("?")]),
    Conversation("no content", [{"role": "user"}]),
    Conversation("content None", [user(None), assistant(None), user("?")]),
    Conversation("content number", [user(7)]),
    Conversation("reasoning", [*TURN[:1], assistant("4.", reasoning_content="Two and two.\n"), user("Why?")]),
    Conversation("thinking", [*TURN[:1], assistant("4.", thinking="Two and two."), user("Why?")]),
    Conversation("reasoning, old name", [*TURN[:1], assistant("4.", reasoning="Two and two."), user("Why?")]),
    Conversation("think tags", [*TURN[:1], assistant("<think>\nTwo and two.\n</think>\n\n4."), user("Why?")]),
    Conversation("open think tag", [*TURN[:1], assistant("<think>Two"), user("Why?")]),
    Conversation("prefix", [*TURN, assistant("It is", prefix=True)]),
    Conversation("tools", [user("Rain?")], WITH_TOOLS),
    Conversation("tools and system", [system("Be brief."), user("Rain?")], WITH_TOOLS),
    Conversation("no tools", [user("Rain?")], []),
    Conversation("bare tool", [user("Rain?")], [WEATHER["function"]]),
    Conversation("call", [user("Rain?"), assistant("", tool_calls=[RAIN])], WITH_TOOLS),
    Conversation("call and result", [user("Rain?"), assistant("", tool_calls=[RAIN]), result("Wet.")], WITH_TOOLS),
    Conversation(
        "call, result, answer",
        [
            system("Be brief."),
            user("Rain?"),
            assistant(None, tool_calls=[RAIN]),
            result("Wet."),
            assistant("Yes."),
            user("!"),
        ],
        WITH_TOOLS,
    ),
    Conversation(
        "call as text",
        [
            user("Rain?"),
            assistant("Let me see.", tool_calls=[call("get_weather", '{"place": "Zürich"}')]),
            result("Wet."),
        ],
        WITH_TOOLS,
    ),
    Conversation(
        "two calls",
        [
            user("Rain?"),
            assistant(None, tool_calls=[RAIN, call("now", {}, "call67890")], reasoning_content="Both."),
            result('{"rain": true}'),
            result(text("12:00"), "call67890", name="now"),
        ],
        WITH_TOOLS,
    ),
    Conversation(
        "bare call", [user("Rain?"), assistant("", tool_calls=[RAIN["function"]]), result("Wet.")], WITH_TOOLS
    ),
    Conversation(
        "short id", [user("Rain?"), assistant("", tool_calls=[call("now", {}, "1")]), result("Wet.", "1")], [CLOCK]
    ),
    Conversation(
        "result as object", [user("Rain?"), assistant("", tool_calls=[RAIN]), result({"rain": True})], WITH_TOOLS
    ),
    Conversation("calls None", [user("Hello"), assistant("Hi", tool_calls=None), user("?")]),
    Conversation("calls empty", [user("Hello"), assistant("Hi", tool_calls=[]), user("?")]),
    Conversation("old function call", [user("?"), assistant("", function_call={"name": "now", "arguments": "{}"})]),
    Conversation(
        "documents", [user("Rain?")], None, [{"title": "Almanac", "text": "Wet."}, {"title": "B", "text": ""}]
    ),
    Conversation("documents and tools", [user("Rain?")], WITH_TOOLS, [{"title": "Almanac", "text": "Wet."}]),
    Conversation("thinking off", TURN, None, None, {"enable_thinking": False, "thinking": False}),
    Conversation("thinking on", TURN, None, None, {"enable_thinking": True, "thinking": True, "thinking_mode": "on"}),
    Conversation(
        "effort", TURN, None, None, {"reasoning_effort": "high", "thinking_budget": 512, "keep_past_thinking": 1}
    ),
    Conversation("date", TURN, WITH_TOOLS, None, {"date_string": "1 Jan 2020", "tools_in_user_message": False}),
    Conversation(
        "builtin tools", TURN, WITH_TOOLS, None, {"builtin_tools": ["browser", "python"], "model_identity": "I"}
    ),
    Conversation("own special token", TURN, None, None, {"bos_token": "<BOS>", "eos_token": ""}),
]

"""Texts that are calls, nearly calls, or none, for every format."""

import json
from typing import Any

from hypothesis import strategies as st

TOOLS = ("f", "get_weather", "read-file")
_SCALARS = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6) | st.text(max_size=12)
VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
KEYWORDS = st.from_regex("[a-z][a-z0-9_]{0,7}", fullmatch=True)
ARGUMENTS = st.dictionaries(KEYWORDS, VALUES, max_size=4)
CALLS = st.lists(st.tuples(st.sampled_from(TOOLS), ARGUMENTS), min_size=1, max_size=3)

Call = tuple[str, dict[str, Any]]


def _object(call: Call, key: str = "arguments") -> str:
    return json.dumps({"name": call[0], key: call[1]})


def _tagged(calls: list[Call]) -> str:
    return "\n".join(f"<tool_call>\n{_object(call)}\n</tool_call>" for call in calls)


def _pythonic(calls: list[Call]) -> str:
    def one(call: Call) -> str:
        return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"

    return f"[{', '.join(map(one, calls))}]"


def _xml(calls: list[Call], tag: str = "tool_call", around: str = "\n") -> str:
    def one(call: Call) -> str:
        given = "".join(f"<parameter={key}>{around}{json.dumps(v)}{around}</parameter>\n" for key, v in call[1].items())
        return f"<{tag}>\n<function={call[0]}>\n{given}</function>\n</{tag}>"

    return "\n".join(map(one, calls))


def _harmony(calls: list[Call]) -> str:
    def one(call: Call) -> str:
        return f"<|channel|>commentary to=functions.{call[0]} <|constrain|>json<|message|>{json.dumps(call[1])}"

    return "<|call|><|start|>assistant".join(map(one, calls))


def _atem(calls: list[Call]) -> str:
    def one(call: Call) -> str:
        given = "".join(
            f'<atem:parameter name="{key}">{json.dumps(value)}</atem:parameter>\n' for key, value in call[1].items()
        )
        inner = f'<atem:invoke name="{call[0]}">\n{given}</atem:invoke>'
        return f" to={call[0]}<|message|><atem:function_calls>\n{inner}\n</atem:function_calls>"

    return "<|eom|><|start|>assistant".join(map(one, calls))


def _gemma(calls: list[Call]) -> str:
    def value(of: Any) -> str:
        match of:
            case str():
                return f'<|"|>{of}<|"|>'
            case dict():
                return "{" + ",".join(f'<|"|>{key}<|"|>:{value(each)}' for key, each in of.items()) + "}"
            case list():
                return f"[{','.join(map(value, of))}]"
            case _:
                return json.dumps(of)

    def one(call: Call) -> str:
        return "{" + ",".join(f"{key}:{value(each)}" for key, each in call[1].items()) + "}"

    return "".join(f"<|tool_call>call:{call[0]}{one(call)}<tool_call|>" for call in calls)


# Every format in the way models of the family write it.
WRITERS = {
    "hermes": _tagged,
    "smollm": lambda calls: f"<tool_call>[{', '.join(map(_object, calls))}]</tool_call>",
    "llama": lambda calls: "; ".join(_object(call, "parameters") for call in calls),
    "mistral": lambda calls: f"[TOOL_CALLS][{', '.join(map(_object, calls))}]",
    "mistral-args": lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(given)}" for name, given in calls),
    "pythonic": _pythonic,
    "qwen-xml": _xml,
    "seed-xml": lambda calls: _xml(calls, "seed:tool_call", ""),
    "lfm2": lambda calls: f"<|tool_call_start|>{_pythonic(calls)}<|tool_call_end|>",
    "olmo": lambda calls: (
        "<function_calls>" + "\n".join(_pythonic([call])[1:-1] for call in calls) + "</function_calls>"
    ),
    "phi": lambda calls: f"<|tool_call|>[{', '.join(map(_object, calls))}]<|/tool_call|>",
    "granite": lambda calls: f"<|tool_call|>[{', '.join(map(_object, calls))}]",
    "atem": _atem,
    "gemma": _gemma,
    "harmony": _harmony,
}

_MARKS = (
    "<tool_call> </tool_call> <tool_call <|python_tag|> [TOOL_CALLS] [ARGS] [CALL_ID] <think> </think> </thi".split()
)
_HEADERS = [
    *"<|start|>assistant <|channel|>analysis <|channel|>final <|channel|>commentary <|message|>".split(),
    "<|constrain|>json",
    *"<|end|> <|call|> <|return|> <|chan <|end|><|start|>assistant<|channel|>final<|message|>".split(),
    " to=functions.f",
    " to=x",
]
_SIGNS = ["(", ")", "a=", "1", ", ", ";", "[", "]", "{", "}", '"', "'", "\\", "\n", " ", ":", "é"]
_NEARLY = [
    '{"name": "f", "arguments": {"a": 1}}',
    '{"name": "f", "parameters": {}}',
    '{"name": "other", "arguments": {}}',
    '"name"',
    '"arguments": ',
    "[f(a=1)]",
    "f[ARGS]{}",
    "<function=f>",
    "</function>",
    "<parameter=a>",
    "</parameter>",
    "<seed:tool_call>",
    "<|tool_call_start|>[",
    "'a', b=",
    "')]<|tool_call_end|>",
    "<|tool_call>call:f{",
    '<|"|>',
    '<|"',
    "}<tool_call|>",
]
_WORDS = "f get_weather Hello true 1.5e3 abc123def".split()
_PIECES = [*_MARKS, *_HEADERS, *_SIGNS, *_NEARLY, *_WORDS]
# Texts that are often nearly calls.
TEXTS = st.lists(st.sampled_from(_PIECES) | st.text(max_size=6), max_size=14).map("".join)


@st.composite
def parts(draw: st.DrawFn, text: str) -> list[str]:
    """`text`, split at any places."""
    places = sorted(draw(st.sets(st.integers(0, len(text)), max_size=len(text) + 1)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]

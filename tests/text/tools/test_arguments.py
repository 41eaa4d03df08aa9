"""Arguments of calls, whole and cut anywhere."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.text.tools.arguments import read_arguments
from karat.text.tools.events import CallArguments
from karat.text.tools.parser import AnswerParser
from karat.text.tools.registry import FORMATS
from tests.text.tools.answers import ARGUMENTS, TOOLS, WRITERS

LAYOUTS = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])


@given(ARGUMENTS, LAYOUTS, st.data())
def test_a_beginning_of_arguments_tells_what_it_has(
    arguments: dict[str, Any], layout: Any, data: st.DataObject
) -> None:
    text = json.dumps(arguments, **layout)
    assert read_arguments(text) == arguments
    cut = data.draw(st.integers(0, len(text) - 1))
    found = read_arguments(text[:cut])
    assert found is not None and _is_beginning(json.loads(json.dumps(found)), arguments)
    done = [key for key in arguments if cut >= _end_of(text, arguments, key, layout)]
    assert all(found[key] == arguments[key] for key in done)


def _end_of(text: str, arguments: dict[str, Any], key: str, layout: Any) -> int:
    """Where the value of a key ends: it is the place of the last character of the object with the keys up to it."""
    keys = list(arguments)
    upto = {name: arguments[name] for name in keys[: keys.index(key) + 1]}
    return len(json.dumps(upto, **layout).rstrip("}").rstrip()) + 8


def _is_beginning(found: Any, whole: Any) -> bool:
    if isinstance(found, dict):
        pairs = zip(found.items(), whole.items(), strict=False)
        return isinstance(whole, dict) and all(a == c and _is_beginning(b, d) for (a, b), (c, d) in pairs)
    if isinstance(found, list):
        return isinstance(whole, list) and all(map(_is_beginning, found, whole))
    if isinstance(found, str):
        return isinstance(whole, str) and (whole.startswith(found.rstrip("\ufffd")))
    is_number = isinstance(found, int | float) and not isinstance(found, bool) and not isinstance(whole, str | None)
    return found == whole or is_number  # a number that is cut is another


@given(st.sampled_from(sorted(WRITERS)), ARGUMENTS, st.data())
def test_what_answers_tell_of_a_call_is_read(form: str, arguments: dict[str, Any], data: st.DataObject) -> None:
    said = WRITERS[form]([("f", arguments)])
    parser = AnswerParser(form=FORMATS[form], tools=TOOLS)
    events = parser.feed(said[: data.draw(st.integers(0, len(said)))]) + parser.finish()
    told = "".join(event.text for event in events if isinstance(event, CallArguments))
    assert read_arguments(told) is not None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("{", {}),
        ('{"a": "some lo', {"a": "some lo"}),
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": "x\\\\', {"a": "x\\"}),
        ('{"a": "x\\u00', {"a": "x"}),
        ('{"a": "x\\ud83d', {"a": "x\ufffd"}),
        ('{"a": [1, {"b": tr', {"a": [1, {}]}),
        ('{"a": 12', {"a": 12}),
        ('{"a": -', {}),
        ('{"a": "}", "b', {"a": "}"}),
        ('{"a": 1, ', {"a": 1}),
        ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        ("[", None),
        ("1", None),
        ('{"a": 1}}', None),
        ('{"a": 1]', None),
        ("{a", None),
        ('{"a" 1', None),
        ("[" * 5000, None),
    ],
)
def test_cases(text: str, found: object) -> None:
    assert read_arguments(text) == found

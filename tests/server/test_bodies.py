"""Bodies: what is no JSON object, unknown, refused or wrong is a 400 that names it."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.errors import RequestError
from karat.server import bodies
from karat.server.bodies import MAX_PARTS, MAX_VALUES, read_body, read_json
from karat.server.errors import ApiError, of_karat
from karat.server.fields import CHAT, TABLE, TEXT, fields_of

MESSAGES = [{"role": "user", "content": "PLACEHOLDER"}]


def refusal(content: bytes, route: str = CHAT) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_body(content, fields_of(route))
    error = caught.value
    assert error.status == 400
    body = json.loads(error.body_for(None))["error"]
    assert body.keys() == {"message", "type", "param", "code"} and body["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"1",
        b'"text"',
        b"{",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"n": NaN}',
        b'{"n": 1e999}',
        b'{"n": %s}' % (b"9" * 5000),
        b'{"user": "\xff"}',
        b'{"user": "\\ud800"}',
        b"\x00\x01\x02",
        b"{}{}",
    ],
)
def test_what_is_no_object_is_refused(content: bytes) -> None:
    assert refusal(content).code == "invalid_json"


@given(st.binary(max_size=200))
def test_junk_is_an_object_or_a_400(content: bytes) -> None:
    with suppress(ApiError):
        assert isinstance(read_json(content), dict)


TEXTS = st.text(st.sampled_from('a{}[],:"\\\\é'), max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20
)


def counted(value: Any) -> tuple[int, int]:
    """Objects, arrays and keys, and commas."""
    if not isinstance(value, dict | list):
        return 0, 0
    inner = [counted(item) for item in (value.values() if isinstance(value, dict) else value)]
    num_keys = len(value) if isinstance(value, dict) else 0
    return 1 + num_keys + sum(a for a, _ in inner), max(0, len(value) - 1) + sum(b for _, b in inner)


@given(st.dictionaries(TEXTS, VALUES), st.booleans())
def test_what_texts_hold_is_not_counted(value: Any, is_ascii: bool) -> None:
    content, (num_parts, num_commas) = json.dumps(value, ensure_ascii=is_ascii).encode(), counted(value)
    for parts, commas, what in ((0, 0, ""), (1, 0, "objects, arrays and keys"), (0, 1, "values")):
        if num_commas < commas:
            continue
        limits = {"objects, arrays and keys": (b"{[:", num_parts - parts), "values": (b",", num_commas - commas)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bodies, "_COUNTED", limits)
            if not what:
                assert read_json(content) == value
            else:
                with pytest.raises(ApiError, match=f"the body has [0-9]+ {what}; expected at most"):
                    read_json(content)


@pytest.mark.parametrize(("most", "item"), [(MAX_PARTS, b"{},"), (MAX_PARTS, b"[],"), (MAX_VALUES, b"1,")])
def test_a_body_of_too_many_values_is_not_decoded(most: int, item: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder keeps the interpreter's lock: 5 million lists stopped the server for 5 seconds."""
    monkeypatch.setattr(bodies.msgspec.json, "decode", lambda _: pytest.fail("it was decoded"))
    assert refusal(b'{"messages": [%s1]}' % (item * (most + 1))).code == "too_many_values"


def test_an_unknown_field_is_named_with_the_nearest_one() -> None:
    error = refusal(json.dumps({"messages": MESSAGES, "temprature": 1}).encode())
    assert error.param == "temprature" and "did you mean temperature?" in error.message
    assert "did you mean temperature?" in refusal(json.dumps({"messages": MESSAGES, "temp": 1}).encode()).message
    assert refusal(b'{"prompt": "a", "messages": []}', TEXT).param == "messages"


@pytest.mark.parametrize("field", [f for f in TABLE if f.kind == "refused"], ids=lambda field: field.name)
def test_a_refused_field_says_what_to_do_and_is_taken_where_it_asks_nothing(field: Any) -> None:
    for route in field.routes:
        values = {"messages": MESSAGES, "prompt": "a", "input": "a", "max_tokens": 1}
        needed = {name: values[name] for name, other in fields_of(route).items() if other.required}

        def without_effect(value: Any, route: str = route, needed: Any = needed) -> tuple[str, ...]:
            return read_body(json.dumps(needed | {field.name: value}).encode(), fields_of(route)).without_effect

        error = refusal(json.dumps(needed | {field.name: "something"}).encode(), route)
        assert error.param == field.name and field.text in error.message and error.code == "unsupported_field"
        for off in field.off:
            assert without_effect(off) == (field.name,)
        assert without_effect(None) == ()


def test_false_is_not_zero_and_one_is_not_true() -> None:
    assert refusal(b'{"prompt": "a", "use_beam_search": 0}', TEXT).param == "use_beam_search"
    assert refusal(b'{"prompt": "a", "best_of": true}', TEXT).param == "best_of"


@pytest.mark.parametrize(
    ("given", "param", "said"),
    [
        ({"n": 65}, "n", "expected an integer <= 64; what came is 65"),
        ({"n": True}, "n", "expected an integer, got true or false"),
        ({"temperature": "hot"}, "temperature", "expected a number, got a string"),
        ({"stop": ["a", 5]}, "stop[1]", "expected a string, got an integer"),
        ({"logit_bias": [[5, False]]}, "logit_bias[0][1]", "expected a number"),
        ({"logit_bias": [[-1, 1]]}, "logit_bias[0][0]", "expected an integer >= 0"),
        ({"logit_bias": [[5]]}, "logit_bias[0]", "expected"),
        ({"n_probs": 3}, "n_probs", "use logprobs"),
        ({"samplers": ["top_k"]}, "samplers", "the order is fixed"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "expected an integer"),
        ({"messages": []}, "messages", "length >= 1"),
        ({"messages": [1]}, "messages[0]", "expected object, got an integer"),
        ({"store": True}, "store", "expected False; what came is True. Nothing is kept; true is refused"),
        (
            {"service_tier": "flex"},
            "service_tier",
            "expected 'auto' or 'default'; what came is 'flex'. There is one tier; others are refused",
        ),
        ({"modalities": ["audio"]}, "modalities[0]", "what came is ['audio']. Answers are text"),
    ],
)
def test_a_wrong_value_is_named_with_what_came_and_what_was_expected(
    given: dict[str, Any], param: str, said: str
) -> None:
    error = refusal(json.dumps({"messages": MESSAGES} | given).encode())
    assert error.param == param and said in error.message


@pytest.mark.parametrize(
    ("said", "given", "param", "told"),
    [
        ("min_tokens=9: expected less", "min_tokens", "min_tokens", "min_tokens=9: expected less"),
        ("any words", "logit_bias", "logit_bias", "any words"),
        ("resume: 99999 is no token id", "resume", "karat.resume", "karat.resume: 99999 is no token id"),
        ("max_tokens=9: too many", "max_tokens", "max_output_tokens", "max_output_tokens=9: too many"),
        ("stop: looks like a field", None, None, "stop: looks like a field"),
    ],
)
def test_errors_of_the_engine_name_the_field_that_was_sent(
    said: str, given: str | None, param: str | None, told: str
) -> None:
    error = of_karat(RequestError(said, param=given), {"max_tokens": "max_output_tokens"})
    assert (error.param, error.message) == (param, told)


def test_what_is_without_effect_is_listed() -> None:
    body = read_body(
        json.dumps({"messages": MESSAGES, "user": "PLACEHOLDER", "store": False, "metadata": {}, "seed": 3}).encode(),
        fields_of(CHAT),
    )
    assert body.without_effect == ("user", "store", "metadata")
    assert body.values == {"messages": MESSAGES, "seed": 3}
    assert refusal(b"{}").param == "messages"

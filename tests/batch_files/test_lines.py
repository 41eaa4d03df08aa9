"""What a line asks for, and the seed that follows from its custom_id."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.batch_files.lines import ROUTES, BatchRequest, Fault, LineReading, seed_of
from karat.request import MAX_SEED

NAMES = st.text(min_size=1, max_size=12)
JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5), st.lists, max_leaves=5)
PLAIN = LineReading({})


def asked(record: Any, reading: LineReading = PLAIN) -> BatchRequest:
    made = reading.line(7, record)
    assert isinstance(made, BatchRequest), made
    return made


@given(name=NAMES, route=st.sampled_from(ROUTES), fields=st.dictionaries(NAMES, JSON, max_size=4))
def test_a_line_of_openai_s(name: str, route: str, fields: dict[str, Any]) -> None:
    fields.pop("stream", None)
    made = asked({"custom_id": name, "method": "POST", "url": route, "body": fields})
    assert (made.number, made.custom_id, made.route, made.body) == (7, name, route, fields)
    shuffled = list(fields.items())
    random.Random(name).shuffle(shuffled)
    same = asked({"body": dict(shuffled), "url": route, "custom_id": name})
    assert same.digest == made.digest
    assert asked({"custom_id": name, "url": route, "body": {**fields, "x-y": 1}}).digest != made.digest


def test_prompts_and_messages_alone() -> None:
    text = asked({"prompt": "Once", "max_tokens": 4})
    assert (text.route, text.custom_id, text.body) == ("/v1/completions", "line-7", {"prompt": "Once", "max_tokens": 4})
    chat = asked({"custom_id": "c", "messages": [], "prompt": None})
    assert (chat.route, chat.custom_id, chat.body) == ("/v1/chat/completions", "c", {"messages": [], "prompt": None})


def test_defaults_stand_behind_what_a_line_says() -> None:
    reading = LineReading({"max_tokens": 64, "temperature": 0})
    made = asked({"prompt": "Once", "max_tokens": 4}, reading)
    assert made.body == {"prompt": "Once", "max_tokens": 4, "temperature": 0}
    assert made.digest != asked({"prompt": "Once", "max_tokens": 4}).digest


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ([], "line 7: expected a JSON object"),
        ({"text": "x"}, "custom_id 'line-7': expected custom_id, method, url, body, or prompt, or messages"),
        ({"custom_id": 1.5, "prompt": "x"}, "custom_id is 1.5; expected a text"),
        ({"custom_id": "a", "url": "/v1/embeddings", "body": {}}, "url is '/v1/embeddings'; expected one of /v1/chat"),
        ({"custom_id": "a", "url": "/v1/messages", "body": []}, "body is no JSON object"),
        ({"custom_id": "a", "url": "/v1/messages", "body": {}, "metod": "POST"}, "'metod' is no key of a batch line"),
        ({"custom_id": "a", "url": "/v1/messages", "method": "GET", "body": {}}, "method is 'GET'; expected POST"),
        ({"custom_id": "a", "url": "/v1/messages", "body": {"stream": True}}, "stream is true"),
    ],
)
def test_what_is_no_request(record: Any, expected: str) -> None:
    made = PLAIN.line(7, record)
    assert isinstance(made, Fault) and made.number == 7 and expected in made.message


@given(seed=st.integers(0, MAX_SEED), names=st.lists(NAMES, min_size=2, max_size=2, unique=True))
def test_a_seed_is_of_the_batch_and_of_the_id(seed: int, names: list[str]) -> None:
    one, other = (seed_of(seed, name) for name in names)
    assert 0 <= one < 2**53 and one != other and one != seed_of(seed + 1, names[0])
    request = asked({"custom_id": names[0], "prompt": "x"})
    assert json.loads(request.content(seed)) == {"prompt": "x", "seed": one}


def test_without_an_id_the_seed_is_of_what_is_asked() -> None:
    """Wherever the line is, and another one for each of those that are equal."""
    one, same, other = (PLAIN.line(number, {"prompt": text}) for number, text in ((1, "x"), (9, "x"), (1, "y")))
    assert isinstance(one, BatchRequest) and isinstance(same, BatchRequest) and isinstance(other, BatchRequest)
    assert one.content(3) == same.content(3) and (one.custom_id, same.custom_id) == ("line-1", "line-9")
    seeds = [json.loads(each.content(3))["seed"] for each in (one, other, replace(one, occurrence=2))]
    assert len(set(seeds)) == 3


@pytest.mark.parametrize(("given_seed", "kept"), [(5, True), (0, True), (-1, False), (None, False)])
def test_a_seed_that_is_given_stays(given_seed: int | None, kept: bool) -> None:
    sent = json.loads(asked({"custom_id": "a", "prompt": "x", "seed": given_seed}).content(3))
    assert sent["seed"] == (given_seed if kept else seed_of(3, "a"))


def test_requests_that_begin_alike_are_neighbours() -> None:
    """By what a template writes first, whatever else they ask for."""
    system = [{"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be kind."}]
    records = [
        {"messages": [system[number % 2], {"role": "user", "content": f"{number}"}], "max_tokens": number}
        for number in range(8)
    ]
    made = sorted((PLAIN.line(number, each) for number, each in enumerate(records)), key=lambda each: each.prefix_key)  # type: ignore[union-attr]
    assert [each.number % 2 for each in made] == [0] * 4 + [1] * 4

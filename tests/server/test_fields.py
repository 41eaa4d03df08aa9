"""The table of fields: whole, in agreement with SamplingParams, and knowing every field of the openai package."""

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest

from karat.errors import RequestError
from karat.request import (
    MAX_BREAKERS,
    MAX_CHOICES,
    MAX_COUNT,
    MAX_IDS,
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_STOPS,
    MAX_WORD,
    MAX_WORDS,
    SamplingParams,
)
from karat.server.bodies import judge
from karat.server.errors import ApiError
from karat.server.fields import BOTH, CHAT, COUNT, INPUT_TOKENS, MESSAGES, RESPONSES, TABLE, TEXT, fields_of


def test_a_name_has_one_row_a_route() -> None:
    rows = [(route, field.name) for field in TABLE for route in field.routes]
    assert len(rows) == len(set(rows))
    for field in TABLE:
        assert field.text and field.routes
        assert not field.off or field.kind == "refused"


def test_every_sampling_parameter_is_honoured() -> None:
    names = {field.name for field in dataclasses.fields(SamplingParams)}
    for route in BOTH:
        honoured = {field.name for field in fields_of(route).values() if field.kind == "honoured"}
        assert names <= honoured
    assert {field.name for field in TABLE if field.samples} <= names


EDGES: list[tuple[str, list[Any], list[Any]]] = [  # values that are taken, and their neighbours that are not
    ("n", [1, MAX_CHOICES], [0, MAX_CHOICES + 1, 1.5]),
    ("temperature", [0, 100], [-0.1, 100.1]),
    ("top_p", [0, 1], [-0.01, 1.01]),
    ("top_k", [-1, 0, MAX_COUNT], [-2, MAX_COUNT + 1]),
    ("min_p", [0, 1], [-0.1, 1.1]),
    ("typical_p", [0.01, 1], [0, 1.01]),
    ("top_n_sigma", [-1, 0, 100], [-2, 100.1]),
    ("xtc_probability", [0, 1], [-0.1, 1.1]),
    ("xtc_threshold", [0, 1], [-0.1, 1.1]),
    ("repeat_last_n", [-1, 0, MAX_COUNT], [-2, MAX_COUNT + 1]),
    ("dry_multiplier", [0, 100], [-0.1, 100.1]),
    ("dry_base", [1, 100], [0.9, 100.1]),
    ("dry_allowed_length", [0, MAX_COUNT], [-1, MAX_COUNT + 1]),
    ("dry_penalty_last_n", [-1, 0, MAX_COUNT], [-2, MAX_COUNT + 1]),
    ("dry_sequence_breakers", [[], ["a"] * MAX_BREAKERS], [[""], ["a"] * (MAX_BREAKERS + 1), ["a" * (MAX_WORD + 1)]]),
    ("no_repeat_ngram_size", [0, MAX_COUNT], [-1, MAX_COUNT + 1]),
    ("bad_words", [[], ["a"] * MAX_WORDS], [[""], ["a"] * (MAX_WORDS + 1), ["a" * (MAX_WORD + 1)]]),
    ("bad_words_ids", [[], [[0, 1]]], [[[]], [[-1]], [0], [[0]] * (MAX_WORDS + 1), [[0] * (MAX_WORD + 1)]]),
    ("repetition_penalty", [0.1, 100], [0, 100.1]),
    ("presence_penalty", [-2, 2], [-2.1, 2.1]),
    ("frequency_penalty", [-2, 2], [-2.1, 2.1]),
    ("logit_bias", [{}, {0: -100, 5: 100}], [{-1: 0}, {0: 101}, dict.fromkeys(range(MAX_IDS + 1), 0)]),
    ("allowed_token_ids", [[0], [0] * MAX_IDS], [[], [-1], [0] * (MAX_IDS + 1)]),
    ("structured_outputs", [{"regex": "a"}], ["json", []]),
    ("seed", [-1, 0, MAX_SEED], [-2, MAX_SEED + 1]),
    ("max_tokens", [-1, 1, MAX_COUNT], [-2, MAX_COUNT + 1]),
    ("min_tokens", [0, MAX_COUNT], [-1, MAX_COUNT + 1]),
    ("stop", ["a", "", [""], [], ["a"] * MAX_STOPS], [["a"] * (MAX_STOPS + 1), "a" * 2000]),
    ("stop_token_ids", [[], [0]], [[-1], [0] * (MAX_IDS + 1)]),
    ("prompt_logprobs", [0, MAX_LOGPROBS], [-1, MAX_LOGPROBS + 1]),
    ("ignore_eos", [True], [1, "yes"]),
    ("skip_special_tokens", [False], [0]),
    ("explain", [True, False], [1, "yes"]),
    ("include_stop_str_in_output", [True], [1]),
]


@pytest.mark.parametrize(("name", "taken", "refused"), EDGES, ids=[edge[0] for edge in EDGES])
def test_the_table_takes_what_sampling_params_take(name: str, taken: list[Any], refused: list[Any]) -> None:
    kind = fields_of(TEXT)[name].type
    for value in taken:
        SamplingParams(**{name: value})
        msgspec.convert(value, kind)
    for value in refused:
        with pytest.raises(RequestError):
            SamplingParams(**{name: value})
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(value, kind)


@pytest.mark.parametrize("route", [CHAT, TEXT, MESSAGES, RESPONSES])
def test_the_spellings_of_llama_cpp_mean_the_same_fields(route: str) -> None:
    fields = {name: field for name, field in fields_of(route).items() if not field.required}
    given = {"repeat_penalty": 1.1, "typ_p": 0.9, "penalty_last_n": 64, "top_k": 3}
    values = judge(given, fields).values
    assert values == {"repetition_penalty": 1.1, "typical_p": 0.9, "repeat_last_n": 64, "top_k": 3}
    assert judge({"typ_p": 0.9, "typical_p": 0.9}, fields).values == {"typical_p": 0.9}
    assert judge({"typ_p": 0.9, "typical_p": None}, fields).values == {"typical_p": 0.9}
    for pair in ({"typ_p": 0.9, "typical_p": 0.8}, {"typical_p": 0.8, "typ_p": 0.9}):
        with pytest.raises(ApiError, match=r"^typ_p=0\.9 beside typical_p=0\.8: expected one of them"):
            judge(pair, fields)
    with pytest.raises(ApiError, match=r"^repeat_penalty: expected"):
        judge({"repeat_penalty": 0}, fields)


def test_every_other_name_is_of_a_field_of_the_same_type() -> None:
    for field in TABLE:
        if field.means is not None:
            assert all(fields_of(route)[field.means].type == field.type for route in field.routes)


def test_no_penalty_that_is_taken_makes_a_score_overflow() -> None:
    """Scores come from logits of float32: beyond this range the answer would be a 500."""
    kind = fields_of(TEXT)["repetition_penalty"].type
    msgspec.convert(0.001, kind)
    assert np.isfinite(np.float64(np.finfo(np.float32).max) / 0.001)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(5e-324, kind)


def test_every_field_of_the_openai_package_has_a_row() -> None:
    pytest.importorskip("openai", reason="the openai package is not installed (requirements/clients.txt)")
    from openai.types import completion_create_params as text
    from openai.types import responses
    from openai.types.chat import completion_create_params as chat

    for route, params in (
        (CHAT, chat.CompletionCreateParamsStreaming),
        (TEXT, text.CompletionCreateParamsStreaming),
        (RESPONSES, responses.response_create_params.ResponseCreateParamsStreaming),
        (INPUT_TOKENS, responses.input_token_count_params.InputTokenCountParams),
    ):
        assert params.__required_keys__ | params.__optional_keys__ <= fields_of(route).keys()


def test_every_field_of_the_anthropic_package_has_a_row() -> None:
    pytest.importorskip("anthropic", reason="the anthropic package is not installed (requirements/clients.txt)")
    from anthropic.types import MessageCountTokensParams, message_create_params

    for route, params in (
        (MESSAGES, message_create_params.MessageCreateParamsStreaming),
        (COUNT, MessageCountTokensParams),
    ):
        assert params.__required_keys__ | params.__optional_keys__ <= fields_of(route).keys()

"""How a choice ends on the fake model: length, end tokens, stop strings over token borders, and the text until then."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.outputs import RequestOutput
from karat.text import Tokenizer
from tests.engine.fakes import BYTES, END, OTHER_END, drive, make_engine, piece_tokenizer, request, run, says
from tests.support.drawn import examples


def text_of(output: RequestOutput) -> tuple[str, str | None, object]:
    (choice,) = output.outputs
    return choice.text, choice.finish_reason, choice.stop_reason


def say(text: bytes | list[int], tokenizer: Tokenizer = BYTES, **params: Any) -> RequestOutput:
    """What a greedy request gets from a model that says `text`."""
    engine, _ = make_engine(says(text, 2, tokenizer.vocab_size), tokenizer)
    return run(engine, request("a", [0, 1], **({"temperature": 0} | params)))["a"]


def test_length() -> None:
    output = say(b"abcdef", max_tokens=3)
    assert text_of(output) == ("abc", "length", None)
    assert output.outputs[0].token_ids == tuple(b"abc")


def test_an_end_token_ends_and_is_no_text() -> None:
    output = say(b"abc")
    assert text_of(output) == ("abc", "stop", END)
    assert output.outputs[0].token_ids == (*b"abc", END)


@pytest.mark.parametrize("end", [END, OTHER_END])
def test_every_end_token_ends(end: int) -> None:
    output = say([97, end, 98], end=(END, OTHER_END))
    assert text_of(output) == ("a", "stop", end)


def test_a_special_token_that_is_no_end_token_goes_on() -> None:
    assert text_of(say([97, OTHER_END, 98])) == ("ab", "stop", END)
    assert text_of(say([97, OTHER_END, 98], skip_special_tokens=False)) == ("a<257>b", "stop", END)


def test_ignore_eos_ends_at_the_end_of_the_context() -> None:
    output = say([97, END, 98, END], ignore_eos=True)
    assert text_of(output) == ("ab", "length", None)
    assert len(output.outputs[0].token_ids) == 62, "64 of context, 2 of prompt"


def test_stop_token_ids_end_even_if_eos_is_ignored() -> None:
    params = {"ignore_eos": True, "stop_token_ids": [99]}
    assert text_of(say([97, END, 98, 99, 97], **params)) == ("ab", "stop", 99)
    assert text_of(say([97, END, 98, 99, 97], include_stop_str_in_output=True, **params)) == ("abc", "stop", 99)


def test_max_tokens_and_end_token_at_once_is_a_stop() -> None:
    assert text_of(say(b"ab", max_tokens=3)) == ("ab", "stop", END)
    assert text_of(say(b"ab", max_tokens=2)) == ("ab", "length", None)


def test_min_tokens_hold_back_end_and_stop_tokens() -> None:
    def logits_of(context: tuple[int, ...]) -> np.ndarray:
        logits = np.zeros(258, np.float32)
        logits[[END, 99, 120]] = 50, 40, 30  # the end, then a stop token, then x
        return logits

    engine, _ = make_engine(logits_of)
    params = {"temperature": 0, "min_tokens": 3, "stop_token_ids": [99]}
    outputs = run(engine, request("a", b"..", **params), request("b", b"..", ignore_eos=True, max_tokens=5, **params))
    assert outputs["a"].outputs[0].token_ids == (120, 120, 120, END)
    assert outputs["b"].outputs[0].token_ids == (END,) * 5, "not held back where it does not end"


WORDS = piece_tokenizer(
    [
        b"Once",
        b" upon",
        b" a",
        b" time",
        b"\n",
        b"\nUser",
        b":",
        b" The",
        b" END",
        b".",
        b" s\xc3",
        b"\xa9",
        b"\xe2\x98",
        b"\x83",
        b" aa",
        b"ab",
    ]
)
WORDS_END = 16


def say_words(*token_ids: int, **params: Any) -> RequestOutput:
    return say([*token_ids, WORDS_END, WORDS_END], WORDS, end=(WORDS_END,), **params)


@pytest.mark.parametrize(
    ("stop", "token_ids", "text", "num_tokens"),
    [
        ("\nUser:", (0, 4, 5, 6, 7), "Once\n", 4),  # over two tokens, after a false start
        ("\nUser:", (0, 5, 1), "Once\nUser upon", None),  # never completed
        ("upon a", (0, 1, 2, 3), "Once ", 3),  # from the middle of one token on
        ("e u", (0, 1, 2), "Onc", 2),
        ("im", (0, 1, 2, 3, 7), "Once upon a t", 4),  # within a token, whose rest is dropped
        ("Once", (0, 1), "", 1),
        (" The END.", (0, 7, 8, 9), "Once", 4),
        ("aab", (14, 14, 15, 0), " aa a", 3),  # overlapping beginnings
        ("sé", (10, 11, 0), " ", 2),  # a character over two tokens
        ("☃", (0, 12, 13, 1), "Once", 3),
    ],
)
def test_stop_strings_over_token_borders(
    stop: str, token_ids: tuple[int, ...], text: str, num_tokens: int | None
) -> None:
    output = say_words(*token_ids, stop=stop)
    if num_tokens is None:
        assert text_of(output) == (text, "stop", WORDS_END)
    else:
        assert text_of(output) == (text, "stop", stop)
        assert output.outputs[0].token_ids == token_ids[:num_tokens]
        included = say_words(*token_ids, stop=stop, include_stop_str_in_output=True)
        assert text_of(included) == (text + stop, "stop", stop)


def test_the_first_of_several_stop_strings() -> None:
    assert text_of(say_words(0, 1, 2, 3, stop=("time", " a", "zzz"))) == ("Once upon", "stop", " a")


def test_a_stop_string_completed_by_the_last_token_allowed_is_a_stop() -> None:
    assert text_of(say_words(0, 1, 2, stop="upon", max_tokens=2)) == ("Once ", "stop", "upon")


def test_a_character_that_the_prompt_began_is_completed() -> None:
    engine, _ = make_engine(says([13, 0], 2, WORDS.vocab_size), WORDS)
    assert text_of(run(engine, request("a", [0, 12], temperature=0, max_tokens=2))["a"])[0] == "☃Once"


def test_text_held_back_comes_out_at_the_end() -> None:
    assert text_of(say_words(0, 5, stop="\nUser:")) == ("Once\nUser", "stop", WORDS_END)
    assert text_of(say_words(0, 5, 7, stop="\nUser:", max_tokens=2)) == ("Once\nUser", "length", None)


def test_a_character_cut_short_shows_at_the_end() -> None:
    assert text_of(say_words(0, 12, max_tokens=2)) == ("Once\ufffd", "length", None)


def test_stop_strings_count_after_min_tokens() -> None:
    assert text_of(say_words(0, 1, 0, 1, stop="upon", min_tokens=2)) == ("Once uponOnce ", "stop", "upon")
    assert text_of(say_words(0, 1, 0, 1, stop="e upon", min_tokens=1)) == ("Once uponOnc", "stop", "e upon")


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_streamed_text_is_the_whole_text(data: st.DataObject) -> None:
    """Chunks joined are the output, nothing that went out is taken back, and text is cut exactly before the stop."""
    token_ids = data.draw(st.lists(st.integers(0, 15), max_size=12))
    stops = data.draw(st.lists(st.sampled_from(["a", "aab", "\n", "upon a", "é", "☃O", "e"]), max_size=2))
    max_tokens = data.draw(st.integers(1, 14))
    engine, _ = make_engine(says([*token_ids, WORDS_END], 2, WORDS.vocab_size), WORDS)
    params = {"temperature": 0, "stop": stops, "max_tokens": max_tokens, "logprobs": 0}
    engine.add_request(request("a", [0, 1], end=(WORDS_END,), **params))
    outputs, chunks = drive(engine)
    (choice,) = outputs["a"].outputs
    assert "".join(chunk.text for chunk in chunks["a"]) == choice.text
    assert sum((chunk.token_ids for chunk in chunks["a"]), ()) == choice.token_ids
    assert sum((chunk.logprobs or () for chunk in chunks["a"]), ()) == choice.logprobs
    assert [chunk.finish_reason for chunk in chunks["a"]][:-1] == [None] * (len(chunks["a"]) - 1)
    assert (chunks["a"][-1].finish_reason, chunks["a"][-1].stop_reason) == (choice.finish_reason, choice.stop_reason)
    visible = [i for i in choice.token_ids if i != WORDS_END]
    said = b"".join(WORDS.token_bytes(i) for i in visible).decode("utf-8", "replace")
    found = [said.find(stop) for stop in stops if stop in said]
    if isinstance(choice.stop_reason, str):
        assert choice.text + choice.stop_reason in said and choice.text == said[: said.find(choice.stop_reason)]
    else:
        assert choice.text == said and not found


def test_log_probabilities_name_tokens_as_they_read() -> None:
    output = say_words(0, 12, logprobs=1, max_tokens=2)
    (first, second) = output.outputs[0].logprobs or ()
    assert first[0].decoded_token == "Once" and second[12].decoded_token == "\ufffd"

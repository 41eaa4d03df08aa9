"""The line that tells tokens and rates of an answer."""

import re

from karat.cli.generation import Meter
from karat.outputs import StreamChunk


def measured(num_prompt_tokens: int, *chunks: StreamChunk) -> Meter:
    meter = Meter(num_prompt_tokens)
    assert list(meter.watch(iter(chunks))) == list(chunks)
    return meter


def test_one_token_is_no_plural() -> None:
    one = measured(1, StreamChunk(0, "a", (5,), finish_reason="length"))
    assert re.fullmatch(r"1 prompt token \([\d.]+/s\) · 1 answer token · length", one.summary())
    more = measured(2, StreamChunk(0, "ab", (5, 6)), StreamChunk(1, "c", (7,), finish_reason="stop"))
    assert re.fullmatch(r"2 prompt tokens \([\d.]+/s\) · 3 answer tokens \([\d.]+/s\) · stop", more.summary())


def test_an_answer_that_was_interrupted_before_its_first_token() -> None:
    assert Meter(3).summary(interrupted=True) == "3 prompt tokens · 0 answer tokens · interrupted"

"""An event that has only a text is filled into a frame. It is the event that is made whole, to the byte."""

from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from karat import SamplingParams
from karat.engine.requests.request_updates import RequestUpdate
from karat.outputs import StreamChunk
from karat.request_record import Request
from karat.server.answers.subject import Heading, Subject
from karat.server.answers.tally import UpdateTally
from karat.server.asking.asked import AnswerForm
from karat.server.openai.events import ChatEvents, TextEvents
from karat.server.schema import ChatChunkChoice
from karat.server.sse import event
from tests.support.calls import count_calls

TEXTS = st.lists(
    st.tuples(st.integers(0, 1), st.text(max_size=6) | st.sampled_from(["", '"', "\\", "cmpl-1-text", "\u2028", "🦊"])),
    max_size=12,
)


def events(kind: type[ChatEvents | TextEvents], form: AnswerForm) -> ChatEvents | TextEvents:
    request = Request("cmpl-1-0", (1, 2, 3), SamplingParams(n=2), 5)
    subject = Subject(Heading("cmpl-1", 7, 'a "name"'), form, (request,), cast(Any, None), UpdateTally([3]))
    return kind(subject)


@pytest.mark.parametrize("kind", [ChatEvents, TextEvents])
@given(texts=TEXTS, has_usage=st.booleans())
def test_frames(kind: type[ChatEvents | TextEvents], texts: list[tuple[int, str]], has_usage: bool) -> None:
    made = events(kind, AnswerForm(None, stream=True, include_usage=has_usage))
    chunks = [StreamChunk(index, text, (1,)) for index, text in texts]
    chunks += [StreamChunk(index, "end", (1,), "length") for index in (0, 1)]
    for chunk in chunks:
        written = made.of(0, RequestUpdate("a", (chunk,)))
        assert without_times(written) == without_times(b"".join(map(event, read(kind, written))))
        said = [choice for each in read(kind, written) for choice in each.choices]
        assert {choice.index for choice in said} <= {chunk.index}
        assert "".join(text_of(choice) for choice in said) == chunk.text
        assert [each.usage for each in read(kind, written)] == [None if has_usage else UNSET] * len(said)


def without_times(written: bytes) -> bytes:
    return written.partition(b'"timings":')[0]


def read(kind: type[ChatEvents | TextEvents], written: bytes) -> list[Any]:
    """The events, as the structs that they are made of."""
    lines = written.decode().split("\n\n")
    return [msgspec.json.decode(line.removeprefix("data: "), type=kind.struct) for line in lines if line]


def text_of(choice: Any) -> str:
    told = choice.delta.content if isinstance(choice, ChatChunkChoice) else choice.text
    return "" if told is UNSET else told


@pytest.mark.parametrize("kind", [ChatEvents, TextEvents])
def test_only_what_says_no_more_than_its_text_is_filled_in(kind: type[ChatEvents | TextEvents]) -> None:
    """The first event of a choice is made whole, the others cost a part of its calls."""

    def cost(form: AnswerForm) -> float:
        made, update = events(kind, form), RequestUpdate("a", (StreamChunk(0, "a", (1,)),))
        for _ in range(2):
            made.of(0, update)
        return count_calls(lambda: made.of(0, update))

    cheap = cost(AnswerForm(None))
    for form in (
        AnswerForm(None, token_ids=True),
        AnswerForm(None, continuous_usage=True),
        AnswerForm(None, timings_per_token=True),
    ):
        assert cost(form) > 1.3 * cheap

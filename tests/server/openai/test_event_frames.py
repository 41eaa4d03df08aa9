"""An event that has only a text is filled into a frame. It is the event that is made whole, to the byte."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat import SamplingParams
from karat.engine.requests.request_updates import RequestUpdate
from karat.outputs import StreamChunk
from karat.request import Request
from karat.server.answers.subject import Heading, Subject
from karat.server.answers.tally import UpdateTally
from karat.server.asking.asked import AnswerForm
from karat.server.openai.events import ChatEvents, TextEvents

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
    framed, whole = (events(kind, AnswerForm(None, stream=True, include_usage=has_usage)) for _ in range(2))
    whole._is_plain = False
    chunks = [StreamChunk(index, text, (1,)) for index, text in texts]
    chunks += [StreamChunk(index, "end", (1,), "length") for index in (0, 1)]
    for chunk in chunks:
        update = RequestUpdate("a", (chunk,))
        written = framed.of(0, update)
        assert _without_times(written) == _without_times(whole.of(0, update))
    assert framed.end() == whole.end()
    num_framed = len({index for index, text in texts if text})
    assert len(framed._frames) <= num_framed and not whole._frames


def _without_times(written: bytes) -> bytes:
    before, found, _ = written.partition(b'"timings":')
    return before + found


def test_what_says_more_than_its_text_has_no_frame() -> None:
    for form in (
        AnswerForm(None, token_ids=True),
        AnswerForm(None, continuous_usage=True),
        AnswerForm(None, timings_per_token=True),
    ):
        made = events(ChatEvents, form)
        for _ in range(3):
            assert b'"content":"a"' in made.of(0, RequestUpdate("a", (StreamChunk(0, "a", (1,)),)))
        assert not made._frames
    made = events(ChatEvents, AnswerForm(None))
    for _ in range(3):
        made.of(0, RequestUpdate("a", (StreamChunk(0, "a", (1,)),)))
    assert made._frames

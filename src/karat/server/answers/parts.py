"""AnswerFormat: how the text of an answer is taken apart: reasoning, text, and calls of tools."""

import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from karat.outputs import CompletionOutput, StreamChunk
from karat.request import Resume
from karat.server.answers.thoughts import TaggedThoughts, ThoughtsInChannels
from karat.text import IncrementalDetokenizer, Tokenizer
from karat.text.tools.events import CallBegin, CallEnd, Event, ParsedAnswer, Text, gathered
from karat.text.tools.format import ToolFormat
from karat.text.tools.parser import AnswerParser

_SHORT_ID = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Of a whole request. Its fields are arguments of AnswerParser, but for one.

    `shows_special`: texts show special tokens, for some of them are marks of calls or reasoning.
    """

    tags: tuple[str, str] | None = None
    is_open: bool = False
    form: ToolFormat | None = None
    tools: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    shows_special: bool = False
    calls_alone: bool = False
    begun: str = ""

    def reader(self, tokenizer: Tokenizer, resume: Resume | None = None) -> "PartsReader":
        """For one choice. One that is resumed is read from its beginning; the parts that end there are not told."""
        if resume is None:
            return PartsReader(self, tokenizer)
        reader = PartsReader(self, tokenizer, whole_calls=True)  # a call that was cut is told whole
        reader.pass_over(resume.token_ids)
        return reader

    def thoughts(self, tokenizer: Tokenizer) -> TaggedThoughts | ThoughtsInChannels | None:
        """What counts the tokens of the reasoning; None where there is none."""
        if self.form is not None and self.form.in_channels:
            return ThoughtsInChannels(self.form, self.begun, tokenizer)
        return None if self.tags is None else TaggedThoughts(self.tags[1], tokenizer)


PLAIN_TEXT = AnswerFormat()


class PartsReader:
    """Takes one choice apart.

    `resumed`: what was told of an answer that is resumed; None for any other. `has_calls`: whether it has whole calls
    so far. `whole_calls` is as in AnswerParser.
    """

    def __init__(self, answer_format: AnswerFormat, tokenizer: Tokenizer, *, whole_calls: bool = False) -> None:
        self.resumed: ParsedAnswer | None = None
        self.has_calls = False
        self._format = answer_format
        self._is_plain = answer_format.tags is None and answer_format.form is None
        self._parser = AnswerParser(
            answer_format.tags,
            is_open=answer_format.is_open,
            form=answer_format.form,
            tools=answer_format.tools,
            whole_calls=whole_calls,
            calls_alone=answer_format.calls_alone,
            begun=answer_format.begun,
        )
        self._tokenizer = tokenizer
        self._ids: list[str] = []
        self._thoughts = answer_format.thoughts(tokenizer)

    @property
    def num_reasoning(self) -> int:
        """The number of tokens of its reasoning so far, marks included."""
        return 0 if self._thoughts is None else self._thoughts.num

    def read(self, chunk: StreamChunk) -> list[Event]:
        """The parts that a chunk completes; its last chunk completes all."""
        if self._is_plain:
            return [Text(chunk.text)] if chunk.text else []
        return self._events(chunk.text, chunk.token_ids, is_last=chunk.finish_reason is not None)

    def parts(self, choice: CompletionOutput) -> list[Event]:
        """The parts of a whole choice, in order."""
        return self._events(choice.text, choice.token_ids, is_last=True)

    def whole(self, choice: CompletionOutput) -> ParsedAnswer:
        """The parts of a whole choice, those of a kind together."""
        return gathered(self.parts(choice))

    def pass_over(self, token_ids: Sequence[int]) -> None:
        """Read tokens that were told before."""
        told = IncrementalDetokenizer(self._tokenizer, skip_special_tokens=not self._format.shows_special)
        text = "".join(map(told.push, token_ids))
        self.resumed = gathered(self._events(text, token_ids, is_last=False))

    def call_id(self, index: int) -> str:
        """The id of the call of this number, which has begun."""
        return self._ids[index]

    def _events(self, text: str, token_ids: Sequence[int], *, is_last: bool) -> list[Event]:
        events = self._parser.feed(text)
        if is_last:
            events += self._parser.finish()
        for event in events:
            if isinstance(event, CallBegin):
                self._ids.append(self._new_id())
            elif isinstance(event, CallEnd):
                self.has_calls = True
        if self._thoughts is not None:
            self._thoughts.add(events, token_ids)
        return events

    def _new_id(self) -> str:
        if self._format.form is not None and self._format.form.short_ids:
            return "".join(secrets.choice(_SHORT_ID) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"

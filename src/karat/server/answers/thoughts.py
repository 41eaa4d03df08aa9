"""Thoughts: how many tokens of an answer are of its reasoning, with the marks around it."""

from collections.abc import Sequence

from karat.text import Tokenizer
from karat.text.tools.calls import CallFinder
from karat.text.tools.channels import ChannelReader
from karat.text.tools.events import Event, Reasoning
from karat.text.tools.format import ToolFormat


class TaggedThoughts:
    """Of an answer with tags, of which `closing` ends the reasoning. `num` tokens are of it so far."""

    def __init__(self, closing: str, tokenizer: Tokenizer) -> None:
        self.num = 0
        self._closing = closing.encode()
        self._tokenizer = tokenizer
        self._may_come = True
        self._num_unsure = 0  # tokens that are reasoning if some reasoning comes
        self._tail = b""

    def add(self, events: Sequence[Event], token_ids: Sequence[int]) -> None:
        """More of the answer: tokens, and the parts that they complete."""
        if not self._may_come:
            return
        for token_id in token_ids:
            self._num_unsure += 1
            self._tail = self._tail[-len(self._closing) :] + self._tokenizer.token_bytes(token_id)
            if self._closing in self._tail:
                self._may_come = False
                break
        if any(isinstance(event, Reasoning) for event in events) or self.num:
            self.num = self._num_unsure
        elif events:
            self._may_come = False  # the answer began without it


class ThoughtsInChannels:
    """Of an answer in channels: tokens of messages of analysis, with their headers and ends."""

    def __init__(self, form: ToolFormat, begun: str, tokenizer: Tokenizer) -> None:
        self.num = 0
        assert form.channels is not None
        self._reader = ChannelReader(form.channels, CallFinder(form, ()), begun)
        self._tokenizer = tokenizer
        self._num_unsure = 0  # tokens of a header, which may be one of analysis

    def add(self, _: Sequence[Event], token_ids: Sequence[int]) -> None:
        """More of the answer."""
        for token_id in token_ids:
            was_in = self._is_in()
            self._reader.feed(self._tokenizer.token_bytes(token_id).decode(errors="replace"))
            if was_in or self._is_in():
                self.num += self._num_unsure + 1
                self._num_unsure = 0
            else:
                self._num_unsure = self._num_unsure + 1 if self._reader.in_header else 0

    def _is_in(self) -> bool:
        return self._reader.in_reasoning and not self._reader.in_header

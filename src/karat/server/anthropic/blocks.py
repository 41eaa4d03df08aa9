"""Blocks: the content of a message as it grows, with its events: thinking, text and uses of tools in a row."""

import json

from msgspec import Raw

from karat.server.answers.parts import PartsReader
from karat.server.anthropic.schema import (
    Block,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    Event,
    InputJsonDelta,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from karat.text.tools.arguments import read_arguments
from karat.text.tools.events import CallArguments, CallBegin, CallEnd, Reasoning, Text
from karat.text.tools.events import Event as Part


class Blocks:
    """The blocks of one answer. A block is opened by the first part of its kind and closed by a part of another."""

    def __init__(self, reader: PartsReader) -> None:
        self._reader = reader
        self.content: list[Block] = []  # all blocks; the open one is empty
        self._pieces: list[str] = []  # of the open block
        self._is_open = False

    def add(self, part: Part) -> list[Event]:
        """The events of one more part."""
        match part:
            case Text(text):
                return [*self._opened(TextBlock("")), self._delta(TextDelta(text), text)]
            case Reasoning(text):
                return [*self._opened(ThinkingBlock("")), self._delta(ThinkingDelta(text), text)]
            case CallBegin(index, name):
                call_id = self._reader.call_id(index).removeprefix("call_")
                return self._opened(ToolUseBlock(f"toolu_{call_id}", name, Raw(b"{}")))
            case CallArguments(_, text):
                return [self._delta(InputJsonDelta(text), text)]
            case CallEnd():
                return self._close(is_whole=True)

    def end(self) -> list[Event]:
        """The events at the end of the answer, which has a text if it has nothing else."""
        begun = [] if self.content else self._opened(TextBlock(""))
        return [*begun, *self._close()]

    def _opened(self, block: Block) -> list[Event]:
        """The events that open a block, unless one of its kind is open. Each use of a tool has its own."""
        if self._is_open and type(self.content[-1]) is type(block) and not isinstance(block, ToolUseBlock):
            return []
        closing = self._close()
        self.content.append(block)
        self._is_open = True
        return [*closing, ContentBlockStart(block, len(self.content) - 1)]

    def _delta(self, delta: TextDelta | ThinkingDelta | InputJsonDelta, text: str) -> ContentBlockDelta:
        self._pieces.append(text)
        return ContentBlockDelta(delta, len(self.content) - 1)

    def _close(self, *, is_whole: bool = False) -> list[Event]:
        """The events that close the open block. A use of a tool that was cut has what came of its input."""
        if not self._is_open:
            return []
        self._is_open = False
        text, index = "".join(self._pieces), len(self.content) - 1
        self._pieces = []
        # The block of the event that opened it stays empty.
        match self.content[-1]:
            case TextBlock():
                self.content[-1] = TextBlock(text)
            case ThinkingBlock():
                self.content[-1] = ThinkingBlock(text)
                return [ContentBlockDelta(SignatureDelta(), index), ContentBlockStop(index)]
            case ToolUseBlock(call_id, name):
                self.content[-1] = ToolUseBlock(call_id, name, Raw(_input(text, is_whole=is_whole).encode()))
        return [ContentBlockStop(index)]


def _input(text: str, *, is_whole: bool) -> str:
    """The object that `text` is, or what its beginning tells."""
    return text if is_whole else json.dumps(read_arguments(text) or {}, ensure_ascii=False)

"""Blocks: the content of a message as it grows, with its events: thinking, text and uses of tools in a row."""

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
from karat.text.tools.events import CallArguments, CallBegin, CallEnd, Reasoning, Text
from karat.text.tools.events import Event as Part


class Blocks:
    """The blocks of one answer. A block is opened by the first part of its kind and closed by a part of another."""

    def __init__(self, reader: PartsReader) -> None:
        self._reader = reader
        self._blocks: list[Block] = []
        self._pieces: list[str] = []  # of the open block
        self._is_open = False
        self._cut: set[int] = set()  # uses of tools whose end never came, by their place

    @property
    def content(self) -> list[Block]:
        """All blocks. A use of a tool that was cut is none, for its input is no JSON."""
        return [block for place, block in enumerate(self._blocks) if place not in self._cut]

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
        begun = [] if self._blocks else self._opened(TextBlock(""))
        return [*begun, *self._close()]

    def _opened(self, block: Block) -> list[Event]:
        """The events that open a block, unless one of its kind is open. Each use of a tool has its own."""
        if self._is_open and type(self._blocks[-1]) is type(block) and not isinstance(block, ToolUseBlock):
            return []
        closing = self._close()
        self._blocks.append(block)
        self._is_open = True
        return [*closing, ContentBlockStart(block, len(self._blocks) - 1)]

    def _delta(self, delta: TextDelta | ThinkingDelta | InputJsonDelta, text: str) -> ContentBlockDelta:
        self._pieces.append(text)
        return ContentBlockDelta(delta, len(self._blocks) - 1)

    def _close(self, *, is_whole: bool = False) -> list[Event]:
        """The events that close the open block. A use of a tool is cut unless it is whole."""
        if not self._is_open:
            return []
        self._is_open = False
        text, index = "".join(self._pieces), len(self._blocks) - 1
        self._pieces = []
        # The block of the event that opened it stays empty.
        match self._blocks[-1]:
            case TextBlock():
                self._blocks[-1] = TextBlock(text)
            case ThinkingBlock():
                self._blocks[-1] = ThinkingBlock(text)
                return [ContentBlockDelta(SignatureDelta(), index), ContentBlockStop(index)]
            case ToolUseBlock(call_id, name) if is_whole:
                self._blocks[-1] = ToolUseBlock(call_id, name, Raw(text.encode()))
            case ToolUseBlock():
                self._cut.add(index)
        return [ContentBlockStop(index)]

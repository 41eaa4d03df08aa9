"""Items: the output of a response as it grows, with its events: reasoning, messages and calls in a row."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from karat.server.answers.parts import PartsReader
from karat.server.openai.custom_tools import text_of
from karat.server.openai.response_schema import (
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
    Call,
    CustomToolCall,
    DeltaEvent,
    DoneEvent,
    Event,
    FunctionCall,
    InputDeltaEvent,
    InputDoneEvent,
    Item,
    ItemEvent,
    OutputMessage,
    OutputText,
    PartEvent,
    ReasoningDeltaEvent,
    ReasoningDoneEvent,
    ReasoningItem,
    ReasoningText,
    Status,
    TextDeltaEvent,
    TextDoneEvent,
    ToolSearchCall,
)
from karat.server.openai.response_tools import Meaning
from karat.text.tools.arguments import read_arguments
from karat.text.tools.events import CallArguments, CallBegin, CallEnd, Reasoning, Text
from karat.text.tools.events import Event as Part

_NO_MEANINGS: Mapping[str, Meaning] = {}


class Items:
    """The items of one answer. `number` gives the number of the next event, in order.

    An item is opened by the first part of its kind and closed by a part of another. Its events are: added, the content
    begun (not of calls), deltas, done, the content done, the item done.
    """

    def __init__(
        self,
        answer_id: str,
        reader: PartsReader,
        number: Callable[[], int],
        meanings: Mapping[str, Meaning] = _NO_MEANINGS,
    ) -> None:
        """`meanings`: what the names of functions stand for; of others, themselves."""
        self.items: list[Item] = []
        self._meanings = meanings
        self._suffix = answer_id.partition("-")[2]
        self._reader = reader
        self._number = number
        self._pieces: list[str] = []  # of the open item
        self._is_open = False

    def add(self, part: Part) -> list[Event]:
        """The events of one more part."""
        match part:
            case Text(text):
                return [*self._message(), self._delta(text)]
            case Reasoning(text):
                return [*self._reasoning(), self._delta(text)]
            case CallBegin(index, name):
                closed = self._closed()
                return [*closed, *self._opened(self._call(self._reader.call_id(index), name))]
            case CallArguments(_, text):
                if isinstance(self.items[-1], FunctionCall):
                    return [self._delta(text)]
                self._pieces.append(text)  # JSON, of which the item has what it means
                return []
            case CallEnd():
                return self.close("completed")

    def end(self, status: Status) -> list[Event]:
        """The events at the end of the answer, which has a message if it has nothing else."""
        begun = [] if self.items else self._message()
        return [*begun, *(self._closed() if status == "completed" else self.close(status))]

    def close(self, status: Status) -> list[Event]:
        """The events that close the open item, if there is one."""
        if not self._is_open:
            return []
        self._is_open = False
        item, text, index = self.items[-1], "".join(self._pieces), len(self.items) - 1
        self._pieces = []
        item.status = status
        done: DoneEvent
        match item:
            case CustomToolCall():
                item.input = text_of(text)
                place: Any = {"item_id": item.id, "output_index": index}
                begun = (
                    [InputDeltaEvent(sequence_number=self._number(), delta=item.input, **place)] if item.input else []
                )
                done = InputDoneEvent(sequence_number=self._number(), input=item.input, **place)
                return [*begun, done, self._item("response.output_item.done", item)]
            case ToolSearchCall():
                item.arguments = dict(read_arguments(text) or {})
                return [self._item("response.output_item.done", item)]
            case FunctionCall(name=name):
                item.arguments = text
                done = ArgumentsDoneEvent(
                    sequence_number=self._number(), item_id=item.id, output_index=index, name=name, arguments=text
                )
                return [done, self._item("response.output_item.done", item)]
            case OutputMessage():
                item.content = [OutputText(text)]
                done = TextDoneEvent(sequence_number=self._number(), item_id=item.id, output_index=index, text=text)
            case ReasoningItem():
                item.content = [ReasoningText(text)]
                done = ReasoningDoneEvent(
                    sequence_number=self._number(), item_id=item.id, output_index=index, text=text
                )
        return [
            done,
            self._part("response.content_part.done", item.content[0]),
            self._item("response.output_item.done", item),
        ]

    def _closed(self) -> list[Event]:
        """The events that close the open item before its end was told. Of a call it never comes: that is cut."""
        return self.close("incomplete" if self.items and isinstance(self.items[-1], Call) else "completed")

    def _message(self) -> list[Event]:
        """The events that open a message, unless one is open."""
        if self._is_open and isinstance(self.items[-1], OutputMessage):
            return []
        message = OutputMessage(self._id("msg"), [], "in_progress")
        return [*self._closed(), *self._opened(message)]

    def _reasoning(self) -> list[Event]:
        """The events that open reasoning, unless some is open."""
        if self._is_open and isinstance(self.items[-1], ReasoningItem):
            return []
        return [*self._closed(), *self._opened(ReasoningItem(self._id("rs"), [], "in_progress"))]

    def _opened(self, item: Item) -> list[Event]:
        self.items.append(item)
        self._is_open = True
        added = self._item("response.output_item.added", item)
        match item:
            case OutputMessage():
                return [added, self._part("response.content_part.added", OutputText(""))]
            case ReasoningItem():
                return [added, self._part("response.content_part.added", ReasoningText(""))]
            case FunctionCall() | CustomToolCall() | ToolSearchCall():
                return [added]

    def _call(self, call_id: str, name: str) -> Call:
        meaning = self._meanings.get(name, Meaning(name))
        if meaning.kind == "search":
            return ToolSearchCall(self._id("ts"), call_id, {}, "in_progress")
        space = UNSET if meaning.namespace is None else meaning.namespace
        if meaning.kind == "custom":
            return CustomToolCall(self._id("ctc"), call_id, meaning.name, "", "in_progress", space)
        return FunctionCall(self._id("fc"), call_id, meaning.name, "", "in_progress", space)

    def _delta(self, text: str) -> DeltaEvent:
        self._pieces.append(text)
        kinds: dict[type, type[DeltaEvent]] = {
            OutputMessage: TextDeltaEvent,
            ReasoningItem: ReasoningDeltaEvent,
            FunctionCall: ArgumentsDeltaEvent,
        }
        item = self.items[-1]
        return kinds[type(item)](
            sequence_number=self._number(), item_id=item.id, output_index=len(self.items) - 1, delta=text
        )

    def _item(self, kind: str, item: Item) -> ItemEvent:
        shown = msgspec.structs.replace(item)  # the item goes on changing
        return ItemEvent(type=kind, sequence_number=self._number(), item=shown, output_index=len(self.items) - 1)  # type: ignore[arg-type]

    def _part(self, kind: str, part: OutputText | ReasoningText) -> PartEvent:
        index = len(self.items) - 1
        return PartEvent(
            type=kind,  # type: ignore[arg-type]
            sequence_number=self._number(),
            item_id=self.items[index].id,
            part=part,
            output_index=index,
        )

    def _id(self, prefix: str) -> str:
        return f"{prefix}-{self._suffix}-{len(self.items)}"

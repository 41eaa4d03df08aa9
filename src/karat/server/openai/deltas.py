"""From the parts of a choice to the deltas of a chat's events."""

from collections.abc import Collection

from karat.server.answers.parts import PartsReader
from karat.server.openai.custom_tools import text_of
from karat.server.schema import CustomDelta, Delta, FunctionDelta, ToolCallDelta
from karat.text.tools.events import CallArguments, CallBegin, CallEnd, Event, Reasoning, Text


class Deltas:
    """Of one choice. The end of a function's call has no event; the text of a custom tool comes there, in one."""

    def __init__(self, reader: PartsReader, customs: Collection[str]) -> None:
        """`customs` names the custom tools."""
        self._reader = reader
        self._customs = customs
        self._open: int | None = None  # the call of a custom tool that has not ended
        self._pieces: list[str] = []  # of its arguments

    def of(self, part: Event) -> list[Delta]:
        """The deltas of the next part."""
        match part:
            case Text(text):
                return [*self.rest(), Delta(content=text)]
            case Reasoning(text):
                return [Delta(reasoning_content=text, reasoning=text)]
            case CallBegin(index, name):
                before, call_id = self.rest(), self._reader.call_id(index)
                if name in self._customs:
                    self._open = index
                    begun = ToolCallDelta(index, custom=CustomDelta(name), id=call_id, type="custom")
                else:
                    begun = ToolCallDelta(index, FunctionDelta(name), id=call_id, type="function")
                return [*before, Delta(tool_calls=[begun])]
            case CallArguments(index, text) if index == self._open:
                self._pieces.append(text)
                return []
            case CallArguments(index, text):
                return [Delta(tool_calls=[ToolCallDelta(index, FunctionDelta(arguments=text))])]
            case CallEnd():
                return self.rest()

    def rest(self) -> list[Delta]:
        """The text of a custom tool whose call has not ended, as far as it came."""
        if self._open is None:
            return []
        call = ToolCallDelta(self._open, custom=CustomDelta(input=text_of("".join(self._pieces))))
        self._open, self._pieces = None, []
        return [Delta(tool_calls=[call])]

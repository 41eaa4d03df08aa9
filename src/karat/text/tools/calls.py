"""CallFinder: finds calls of tools in a text as it comes. What is no call of a given tool stays text."""

from collections.abc import Collection, Mapping
from typing import Any

from karat.text.tools.events import CallArguments, CallBegin, CallEnd, Event, Text
from karat.text.tools.format import Reading, ToolFormat
from karat.text.tools.values import SPACE, MalformedError


class CallFinder:
    """`tools` are the names that calls may have; a mapping has the schemas of their parameters too, or None.

    A call is told as it is written, from its first argument's value on: until then, what proves malformed is text. A
    call that proves malformed later stays what was told of it, a beginning of a JSON object, and has no end; the rest
    is text. What follows them in a call that the end of the answer cuts is dropped. A call whose name comes
    after its arguments is told when it is whole; so is every call with `whole_calls`, which changes nothing else.

    Where calls are `alone`, no mark begins one after text. White space before a call, and after the last one, is
    dropped. Each character is looked at once.
    """

    def __init__(
        self, form: ToolFormat, tools: Collection[str], *, whole_calls: bool = False, alone: bool = False
    ) -> None:
        self._form = form
        self._alone = alone
        self._has_text = False
        self._whole_calls = whole_calls
        self._calls = _Calls(tools)
        self._reading: Reading[None] | None = None
        self._held: list[str] = []  # of the calls that are read, after what is told
        self._is_told = False  # whether some of the calls that are read is told
        self._space: list[str] = []  # before it
        self._partial = ""  # the beginning of a mark
        self._at_start = True
        self._after_call = False
        self._events: list[Event] = []
        self._text: list[str] = []

    def feed(self, text: str) -> list[Event]:
        """The parts that `text` completes."""
        for char in text:
            if self._reading is not None:
                self._read(char)
            else:
                self._plain_or_mark(char)
        self._tell(whole_calls=self._whole_calls)
        return self._take()

    def finish(self) -> list[Event]:
        """The rest, at the end of the answer."""
        if self._reading is not None:
            self._read("")
        for char in self._partial:
            self._plain(char)
        self._partial = ""
        if self._reading is not None:  # it began with a character of a mark's beginning
            self._read("")
        if not self._after_call:
            self._flush()
        self._space = []
        return self._take()

    def open(self, opening: str) -> None:
        """A call begins with `opening`, whatever marks it. If the answer ends before it is told, it is dropped."""
        self._begin(opening)
        self._is_told = True

    def _take(self) -> list[Event]:
        self._add_text()
        events, self._events = self._events, []
        return events

    def _add_text(self) -> None:
        if self._text:
            self._events.append(Text("".join(self._text)))
            self._text = []

    def _flush(self) -> None:
        self._text += self._space
        self._space = []

    def _read(self, char: str) -> None:
        """One more character of a call; "" is the end of the answer."""
        assert self._reading is not None
        is_over = is_malformed = False
        try:
            self._reading.send(char)
        except StopIteration:
            is_over = True
        except MalformedError:
            is_malformed = True
        if self._calls.grew():
            self._is_told = True
            self._held = [char] if self._calls.holds else []
            self._space = []
        elif not is_malformed:
            self._held.append(char)
        if is_over:
            self._reading = None
            self._held = []
            self._after_call = self._at_start = True
            self._tell()
        elif is_malformed or not char:
            self._give_up(is_cut=not char)
            if char:
                self._plain_or_mark(char)

    def _give_up(self, *, is_cut: bool) -> None:
        """What was read is no call, or its end is none, or the end of the answer cut it (`is_cut`)."""
        self._reading = None
        self._tell()
        self._calls.drop()
        if not (is_cut and self._is_told):
            self._flush()
            self._text += self._held
        self._after_call = self._at_start = False
        self._held = []

    def _tell(self, *, whole_calls: bool = False) -> None:
        told = self._calls.take(whole_calls=whole_calls)
        if told:
            self._add_text()
            self._events += told

    def _plain_or_mark(self, char: str) -> None:
        if self._alone and self._has_text:
            self._text.append(char)
            return
        candidate = self._partial + char
        if any(mark.startswith(candidate) for mark in self._form.marks):
            self._partial = candidate
            if candidate in self._form.marks:
                self._partial = ""
                self._begin(candidate)
            return
        if self._partial:
            self._partial = ""
            self._plain(candidate[0])
            for later in candidate[1:]:
                if self._reading is not None:
                    self._read(later)
                else:
                    self._plain_or_mark(later)
            return
        self._plain(char)

    def _plain(self, char: str) -> None:
        """A character that begins no mark."""
        if self._reading is not None:
            self._read(char)
        elif char in SPACE or (self._at_start and self._after_call and char in self._form.parted_by):
            self._space.append(char)
        elif self._at_start and char in self._form.at_start:
            self._begin(char)
        else:
            self._flush()
            self._text.append(char)
            self._has_text = True
            self._after_call = self._at_start = False

    def _begin(self, opening: str) -> None:
        self._held, self._is_told = [opening], False
        self._reading = self._form.read(opening, self._calls)
        next(self._reading)


class _Calls:
    """The calls that are read, from which `take` takes what is to be told."""

    def __init__(self, tools: Collection[str]) -> None:
        self._tools = tools if isinstance(tools, Mapping) else dict.fromkeys(tools)
        self._index = 0
        self._name: str | None = None  # of the open call
        self.holds = False  # whether the last character is not among what was written
        self._has_begun = False  # whether the beginning of the open call is among what is told
        self._pieces: list[str] = []  # of its arguments
        self._told: list[Event] = []
        self._grew = False

    def begin(self, name: str) -> Mapping[str, Any] | None:
        if name not in self._tools:
            raise MalformedError
        self._name = name
        return self._tools[name]

    def write(self, text: str) -> None:
        if self._name is not None:
            self._begin()
        self.holds = False
        self._pieces.append(text)

    def hold(self) -> None:
        self.holds = True

    def end(self) -> None:
        self._begin()
        self.holds = False
        self._pieces.append("}")
        self._add_pieces()
        self._told.append(CallEnd(self._index))
        self._index += 1
        self._reset()

    def grew(self) -> bool:
        """Whether there is more to tell than at the last time this was asked."""
        grew, self._grew = self._grew, False
        return grew

    def take(self, *, whole_calls: bool) -> list[Event]:
        """What may be told now; with `whole_calls` nothing of the open call."""
        is_kept = whole_calls and self._has_begun
        if self._has_begun and not whole_calls:
            self._add_pieces()
        told, self._told = (self._told[:-1], self._told[-1:]) if is_kept else (self._told, [])
        return told

    def drop(self) -> None:
        """Close the open call, if there is one. It gets no end, and what was not taken of it is forgotten."""
        if self._has_begun:
            self._index += 1
        self._reset()

    def _begin(self) -> None:
        self._grew = True
        if not self._has_begun:
            assert self._name is not None
            self._has_begun = True
            self._told.append(CallBegin(self._index, self._name))

    def _add_pieces(self) -> None:
        if self._pieces:
            self._told.append(CallArguments(self._index, "".join(self._pieces)))
            self._pieces = []

    def _reset(self) -> None:
        self._name, self._has_begun, self._pieces = None, False, []

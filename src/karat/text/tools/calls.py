"""CallFinder: finds calls of tools in a text as it comes. What is no call of a given tool stays text."""

from collections.abc import Collection

from karat.text.tools.events import CallArguments, CallBegin, CallEnd, Event, Text
from karat.text.tools.format import Reading, ToolFormat
from karat.text.tools.values import SPACE, MalformedError


class CallFinder:
    """`tools` are the names that calls may have.

    A call is told when it is whole, for a malformed one is text. Where a grammar keeps calls well-formed (`is_forced`)
    it is told as it is written; one that is cut at the end of the answer then has a part of its arguments and no end.

    White space before a call, and after the last one, is dropped. Each character is looked at once.
    """

    def __init__(self, form: ToolFormat, tools: Collection[str], *, is_forced: bool = False) -> None:
        self._form = form
        self._calls = _Calls(tools, is_forced=is_forced)
        self._reading: Reading[None] | None = None
        self._held: list[str] = []  # of the call that is read
        self._space: list[str] = []  # before it
        self._partial = ""  # the beginning of a mark
        self._at_start = True
        self._after_call = False
        self._events: list[Event] = []
        self._text: list[str] = []

    def feed(self, text: str) -> list[Event]:
        """The parts that `text` completes."""
        self._calls.cut()
        for char in text:
            if self._reading is not None:
                self._read(char)
            else:
                self._plain_or_mark(char)
        if self._reading is not None and self._calls.is_forced:
            self._tell()
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
        self._held.append(char)
        try:
            self._reading.send(char)
        except StopIteration:
            self._reading = None
            self._held, self._space = [], []
            self._after_call = self._at_start = True
            self._tell()
            self._calls.close()
        except MalformedError:
            self._held.pop()
            self._give_up()
            if char:
                self._plain_or_mark(char)
        else:
            if not char:
                self._give_up()

    def _give_up(self) -> None:
        """What was read is no call, or one that is cut."""
        self._reading = None
        if self._calls.is_forced:
            self._tell()
        if not self._calls.drop():
            self._flush()
            self._text += self._held
            self._after_call = self._at_start = False
        self._held = []

    def _tell(self) -> None:
        told = self._calls.take()
        if told:
            self._space = []
            self._add_text()
            self._events += told

    def _plain_or_mark(self, char: str) -> None:
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
            self._after_call = self._at_start = False

    def _begin(self, opening: str) -> None:
        self._held = [opening]
        self._reading = self._form.read(opening, self._calls)
        next(self._reading)


class _Calls:
    """The calls of one reading, told at its end or as they come."""

    def __init__(self, tools: Collection[str], *, is_forced: bool) -> None:
        self.is_forced = is_forced
        self._tools = frozenset(tools)
        self._num_calls = 0
        self._told: list[Event] = []
        self._name: str | None = None
        self._pieces: list[list[str]] = [[]]  # arguments, of which each piece came in one part of the text
        self._is_begun = False  # whether anything of this reading was told

    def begin(self, name: str) -> None:
        if name not in self._tools:
            raise MalformedError
        self._name = name
        self._told.append(CallBegin(self._num_calls, name))
        self._tell_pieces()

    def write(self, text: str) -> None:
        self._pieces[-1].append(text)

    def cut(self) -> None:
        """A new part of the text begins."""
        if self._name is not None:
            self._tell_pieces()
        elif self._pieces[-1]:
            self._pieces.append([])

    def end(self) -> None:
        self._tell_pieces()
        self._told.append(CallEnd(self._num_calls))
        self._num_calls += 1
        self._name = None

    def take(self) -> list[Event]:
        """What may be told now."""
        if self._name is not None:
            self._tell_pieces()
        told, self._told = self._told, []
        self._is_begun |= bool(told)
        return told

    def close(self) -> None:
        """The reading ended, and all was taken."""
        self._is_begun = False

    def drop(self) -> bool:
        """Forget what was not told. Returns whether a part of a call was told, which then stays."""
        was_begun = self._is_begun
        self._num_calls -= sum(isinstance(event, CallEnd) for event in self._told)
        self._told, self._name, self._pieces, self._is_begun = [], None, [[]], False
        return was_begun

    def _tell_pieces(self) -> None:
        self._told += [CallArguments(self._num_calls, "".join(piece)) for piece in self._pieces if piece]
        self._pieces = [[]]

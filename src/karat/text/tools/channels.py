"""ChannelReader: parts of an answer that is a row of messages (`Channels`), as its text comes."""

from karat.text.tools.calls import CallFinder
from karat.text.tools.events import Event, Reasoning, Text
from karat.text.tools.format import MESSAGE, ROLE, START, Channels, Reading, literal, space
from karat.text.tools.values import SPACE, MalformedError

_TO = "to="
_MAX_HEADER = 256  # characters; a tool's name has up to 128
_BETWEEN = "\n\n"  # texts of two messages, or thoughts


class ChannelReader:
    """What `channels` say: a message is reasoning, or a call of a tool, which `finder` reads; any other is text.

    A message ends where the next one begins, or the answer. Marks elsewhere are text, and so is an answer, up to the
    first header, that begins with none. A header that the end of the answer cuts is dropped. Texts of several messages
    are told with a blank line between them, and so are thoughts. `begun` is what the prompt has of the first header.
    Each character is looked at a bounded number of times.
    """

    def __init__(self, channels: Channels, finder: CallFinder, begun: str = "") -> None:
        self.in_reasoning = False
        self._channels = channels
        self._finder = finder
        self._in_call = False
        self._run: list[str] = []  # of the open message, not yet told
        self._told: set[type[Event]] = set()  # kinds of parts of which something is told
        self._is_new = False  # whether nothing of the open message is told
        self._events: list[Event] = []
        self._held: list[str] = []  # what is read of a header, and the mark before it
        self._reading: Reading[str] | None = None
        self._read_header(_first_header(self._channels))
        self.feed(begun)

    @property
    def in_header(self) -> bool:
        """Whether the last character may be of a header, or of the mark before it."""
        return self._reading is not None

    def feed(self, text: str) -> list[Event]:
        """The parts that `text` completes."""
        for char in text:
            self._push(char)
        return self._take()

    def finish(self) -> list[Event]:
        """The rest, at the end of the answer."""
        held = "".join(self._held)
        if not held.lstrip(SPACE).startswith((*self._channels.ends, START, *self._channels.first, _TO)):
            self._run.append(held)
        self._reading, self._held = None, []
        events = self._take()
        return events + self._finder.finish() if self._in_call else events

    def _read_header(self, reading: Reading[str]) -> None:
        self._reading, self._held = reading, []
        next(reading)

    def _push(self, char: str) -> None:
        if self._reading is None:
            if char != "<":
                self._run.append(char)
                return
            self._read_header(_next_header(self._channels))
        assert self._reading is not None
        self._held.append(char)
        try:
            self._reading.send(char)
        except StopIteration as over:
            self._reading, self._held = None, []
            self._begin(over.value)
        except MalformedError:
            held, self._reading, self._held = self._held, None, []
            self._run.append(held[0])
            for later in held[1:]:
                self._push(later)

    def _begin(self, header: str) -> None:
        """A message of this header begins; the one before is over."""
        self._tell()
        if self._in_call:
            self._events += self._finder.finish()
        self._in_call = bool(self._channels.tool_of(header))
        self.in_reasoning = not self._in_call and self._channels.is_thought(header)
        self._is_new = True
        if self._in_call:
            self._finder.open(header)

    def _tell(self) -> None:
        text, self._run = "".join(self._run), []
        if self._in_call:
            self._events += self._finder.feed(text)
        elif text:
            kind = Reasoning if self.in_reasoning else Text
            if self._is_new and kind in self._told:
                text = _BETWEEN + text
            self._events.append(kind(text))
            self._told.add(kind)
            self._is_new = False

    def _take(self) -> list[Event]:
        self._tell()
        events, self._events = self._events, []
        return events


def _first_header(channels: Channels) -> Reading[str]:
    """The header of the first message, of which the prompt may have the role."""
    char = yield from space()
    if char == _TO[0]:
        yield from literal(_TO, char)
        return (yield from _rest(f" {_TO}", channels))
    return (yield from _after((START, *channels.first), char, channels))


def _next_header(channels: Channels) -> Reading[str]:
    """The end of a message, if it is marked, and the header of the next one. At the end of the answer it is over."""
    return (yield from _after((*channels.ends, START), (yield), channels))


def _after(marks: tuple[str, ...], char: str, channels: Channels) -> Reading[str]:
    """A header, without the role, from one of these marks on."""
    mark = ""
    while mark not in marks:
        mark += char
        if not any(each.startswith(mark) for each in marks):
            raise MalformedError
        if mark not in marks:
            char = yield
    if mark in channels.ends:
        return (yield from _after((START, *channels.first), (yield from space()), channels))
    if mark == START:
        yield from literal(ROLE, (yield))
    return (yield from _rest("" if mark == START else mark, channels))


def _rest(text: str, channels: Channels) -> Reading[str]:
    """A header that begins with `text`, up to its last mark."""
    marks = (*channels.inner, MESSAGE)
    while not text.endswith(MESSAGE):
        text += (char := (yield))
        inner = text[max(text.rfind("<"), 0) :]
        is_mark = not inner.startswith("<") or any(inner.startswith(m) or m.startswith(inner) for m in marks)
        if char == "\n" or len(text) > _MAX_HEADER or not is_mark:
            raise MalformedError
    return text

"""ToolFormat: how a family of models writes calls of tools. A format is one file beside this one and one line in
`karat.text.tools.registry`.

A reading is a generator that is sent the characters of a call one by one, and "" at the end of the answer. It ends with
the last character of the call. It raises MalformedError at a character that does not fit; that character is not used.
"""

import json
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from karat.text.tools.values import SPACE, MalformedError, ValueScan

T = TypeVar("T")
Reading = Generator[None, str, T]
_NAME_CHAR = re.compile(r"[A-Za-z0-9_.-]")
_ARGUMENTS = ("arguments", "parameters")
START, ROLE, MESSAGE = "<|start|>", "assistant", "<|message|>"  # of answers in channels
_RECIPIENT = re.compile(r"(?:^|[\s>])to=([^\s<]+)")


class Sink(Protocol):
    """Takes what a reading finds, call by call."""

    def begin(self, name: str) -> Mapping[str, Any] | None:
        """A call of this tool. MalformedError if there is no such tool. Some arguments may have come before.

        The schema of its parameters, where it is known.
        """

    def write(self, text: str) -> None:
        """More of the arguments, as JSON, but for the brace that closes them: what is cut is never a whole object.

        The first piece comes with the first argument's value, or with the closing brace: until then it may be text.
        """

    def hold(self) -> None:
        """The last character of the reading is not among what was written."""

    def end(self) -> None:
        """The call is whole, and so are its arguments."""


@dataclass(frozen=True, slots=True)
class CallShape:
    """How a format writes calls, for the grammar that forces them.

    `opening` and `closing` stand around all calls, each call is `before`, its name, `between`, its arguments and
    `after`, and calls are parted by `separator`. With `again` that follows the name, and then the name again. `each`:
    every call has its own opening and closing. `keywords`: arguments are `name=value`. `parameter`: each argument
    stands between these, with its name between the first two, and is bare text. `quote`: they are `name:value,…`, and
    each text stands between two of these. Otherwise they are one JSON object.
    """

    opening: str
    before: str
    between: str
    after: str
    separator: str
    closing: str = ""
    each: bool = False
    again: str = ""
    keywords: bool = False
    parameter: tuple[str, str, str] | None = None
    quote: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        around = (
            self.opening,
            self.before,
            self.again,
            self.between,
            self.after,
            self.separator,
            self.closing,
            self.quote,
        )
        return around + (self.parameter or ())


@dataclass(frozen=True, slots=True)
class Channels:
    """How an answer that is a row of messages says what each of them is (`karat.text.tools.channels`).

    A message is START, ROLE, the rest of its header, MESSAGE, and its text. `turn_ends` are the special tokens that end
    an answer, `message_end` the one that ends a message and no answer. `first` are marks that begin a header whose role
    the prompt has, or that is left out; `inner` are marks in a header. Of a header `tool_of` tells the tool that it
    calls, or "", `is_thought` whether its text is reasoning, `is_answer` whether it may be the answer.

    For the grammar of an answer: `before_call` is what stands before the arguments of a call of this tool, and `rules`
    are `thought` and `last`, the headers of messages before the last one and of the answer, and what they need. It is
    asked whether texts may come before the last message, and whether the answer has a form. Both get what makes terms
    of texts.
    """

    turn_ends: tuple[str, ...]
    message_end: str
    first: tuple[str, ...]
    inner: tuple[str, ...]
    tool_of: Callable[[str], str]
    is_thought: Callable[[str], bool]
    is_answer: Callable[[str], bool]
    before_call: Callable[[str, Callable[[str], str]], str]
    rules: Callable[[bool, bool, Callable[[str], str]], dict[str, str]]

    @property
    def ends(self) -> tuple[str, ...]:
        """What ends a message."""
        return self.message_end, *self.turn_ends


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`marks` begin calls wherever they stand. One of the characters `at_start` begins them where the answer begins.

    After a call, more may follow: after white space and the characters `parted_by`, where a call began `at_start`.
    `read` reads calls after an opening, one of `marks` or of `at_start`. `hints` are texts of templates that ask for
    this format, for templates that write no calls themselves. `short_ids`: ids of calls have nine letters and digits.

    `channels`: all of an answer has a form, which says what is reasoning, what is a call, and what is text. `efforts`
    are the levels of reasoning that such models know; any where none is listed. `turn_end` is a special token that ends
    an answer after calls, beside the one that the template writes after a text.
    """

    name: str
    read: Callable[[str, Sink], Reading[None]]
    shape: CallShape
    marks: tuple[str, ...] = ()
    at_start: str = ""
    parted_by: str = ""
    hints: tuple[str, ...] = ()
    short_ids: bool = False
    channels: Channels | None = None
    turn_end: str = ""
    efforts: tuple[str, ...] = ()

    @property
    def in_channels(self) -> bool:
        """Whether all of an answer has a form."""
        return self.channels is not None


def recipient_of(header: str) -> str:
    """Whom a message is for. Empty where the header, in neither of its places, names nobody."""
    found = _RECIPIENT.search(header)
    return found[1] if found else ""


def space() -> Reading[str]:
    """The next character that is no white space."""
    while (char := (yield)) and char in SPACE:
        pass
    return char


def literal(text: str, char: str) -> Reading[None]:
    """Exactly `text`, of which `char` is the first character."""
    for index, expected in enumerate(text):
        if index:
            char = yield
        if char != expected:
            raise MalformedError


def name(char: str) -> Reading[tuple[str, str]]:
    """A tool's name from `char` on, and the character after it."""
    found = []
    while char and _NAME_CHAR.match(char):
        found.append(char)
        char = yield
    if not found:
        raise MalformedError
    return "".join(found), char


def string(char: str) -> Reading[str]:
    """The value of a JSON string from its quote on."""
    if char != '"':
        raise MalformedError
    found: list[str] = []
    yield from json_value(char, found.append)
    value: str = json.loads("".join(found))
    return value


def json_value(char: str, write: Callable[[str], None]) -> Reading[None]:
    """A JSON string, object or array from its first character on."""
    if char not in ('"', "{", "["):
        raise MalformedError
    scan = ValueScan(write)
    while True:
        scan.push(char)
        if scan.done:
            return
        char = yield


def passed_over(char: str) -> Reading[str]:
    """The next character after a JSON value from `char` on that is no white space."""
    scan = ValueScan(lambda _: None)
    while scan.push(char):
        char = yield
        if scan.done:
            break
    return (yield from space()) if char and char in SPACE else char


def json_object(char: str, sink: Sink) -> Reading[None]:
    """Arguments as a JSON object, from its brace on."""
    if char != "{":
        raise MalformedError
    written: list[str] = []
    scan = ValueScan(written.append)
    while True:
        try:
            scan.push(char)
        finally:
            if scan.done:
                written.pop()
            if scan.done or scan.has_inner:
                for text in written:
                    sink.write(text)
                written.clear()
        if scan.done:
            sink.hold()
            return
        char = yield


def call_object(char: str, sink: Sink) -> Reading[None]:
    """{"name": …, "arguments": {…}} from its brace on, its keys in any order. Others are passed over (id, type …)."""
    yield from literal("{", char)
    found: set[str] = set()
    while True:
        key = yield from string((yield from space()))
        yield from literal(":", (yield from space()))
        char = yield from space()
        kind = "arguments" if key in _ARGUMENTS else key
        if kind in found:
            raise MalformedError
        found.add(kind)
        match kind:
            case "name":
                sink.begin((yield from string(char)))
                char = yield from space()
            case "arguments":
                yield from json_object(char, sink)
                char = yield from space()
            case _:
                char = yield from passed_over(char)
        if char == "}":
            break
        yield from literal(",", char)
    if not {"name", "arguments"} <= found:
        raise MalformedError
    sink.end()


def call_objects(char: str, sink: Sink) -> Reading[None]:
    """One call as an object, or several as an array of objects, from the bracket on."""
    if char != "[":
        yield from call_object(char, sink)
        return
    yield from call_list((yield from space()), sink)


def call_list(char: str, sink: Sink) -> Reading[None]:
    """Several calls as objects, from the first brace on, and the bracket that closes their array."""
    while True:
        yield from call_object(char, sink)
        char = yield from space()
        if char == "]":
            return
        yield from literal(",", char)
        char = yield from space()

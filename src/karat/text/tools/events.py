"""The parts of an answer, in the order in which a stream tells them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of the tool `name` begins. Calls are numbered from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments. All of them together are a JSON object, or the beginning of one that is cut."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is whole."""

    index: int


Event = Text | Reasoning | CallBegin | CallArguments | CallEnd


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of the tool `name`; `arguments` is a JSON object as the model wrote it.

    Of a call that was cut, or was malformed after its arguments had begun (`is_whole` is false), it is the beginning of
    an object, which is no JSON.
    """

    name: str
    arguments: str
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """An answer in parts. Each text is empty where there is none."""

    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]


def gathered(events: list[Event]) -> ParsedAnswer:
    """All events of an answer, or of its later part, in one."""
    calls: dict[int, tuple[str, list[str]]] = {}
    whole: set[int] = set()
    texts: list[str] = []
    reasoning: list[str] = []
    for event in events:
        match event:
            case Text(text):
                texts.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallBegin(index, name):
                calls[index] = name, []
            case CallArguments(index, text):
                calls[index][1].append(text)
            case CallEnd(index):
                whole.add(index)
    made = tuple(ToolCall(name, "".join(parts), index in whole) for index, (name, parts) in calls.items())
    return ParsedAnswer("".join(texts), "".join(reasoning), made)

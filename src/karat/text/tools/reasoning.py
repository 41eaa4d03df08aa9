"""ReasoningSplitter: parts the reasoning, between <think> and </think>, from the answer, as text comes."""

from karat.text.tools.events import Event, Reasoning, Text
from karat.text.tools.values import SPACE

TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought\n", "<channel|>"),
)


class ReasoningSplitter:
    """`tags` open and close the reasoning, which the prompt may have opened (`is_open`).

    Otherwise the answer has reasoning if it begins with the opening tag. Reasoning that is never closed is reasoning to
    the end. White space around it belongs to neither part. Each character is looked at once.
    """

    def __init__(self, tags: tuple[str, str], *, is_open: bool) -> None:
        self._tags = tags
        self._state = self._inside if is_open else self._before
        self._held: list[str] = []  # white space and the beginning of a tag
        self._num_matched = 0  # characters of the tag at the end of _held
        self._has_begun = False  # whether some reasoning was told

    def feed(self, text: str) -> list[Event]:
        """The parts that `text` completes."""
        events: list[Event] = []
        for place, char in enumerate(text):
            if self._state == self._answer:
                events.append(Text(text[place:]))
                break
            self._state(char, events)
        return events

    def finish(self) -> list[Event]:
        """The rest, at the end of the answer."""
        events: list[Event] = []
        if self._state == self._before and self._held:
            events.append(Text("".join(self._held)))
        elif self._state == self._inside and self._num_matched:
            self._tell(events)
        self._held = []
        return events

    def _before(self, char: str, events: list[Event]) -> None:
        """Before the answer's first word, which may be the opening tag."""
        self._held.append(char)
        opening = self._tags[0]
        if self._num_matched == 0 and char in SPACE:
            return
        if char == opening[self._num_matched]:
            self._num_matched += 1
            if self._num_matched == len(opening):
                self._held, self._num_matched = [], 0
                self._state = self._inside
            return
        events.append(Text("".join(self._held)))
        self._held = []
        self._state = self._answer

    def _inside(self, char: str, events: list[Event]) -> None:
        closing = self._tags[1]
        if self._num_matched and char != closing[self._num_matched]:
            # No tag has its first character twice: nothing of what was matched begins another match.
            self._num_matched = 0
            self._tell(events)
        self._held.append(char)
        if char == closing[self._num_matched]:
            self._num_matched += 1
            if self._num_matched == len(closing):
                self._held, self._num_matched = [], 0
                self._state = self._after
        elif char not in SPACE:
            self._tell(events)

    def _tell(self, events: list[Event]) -> None:
        """Tell what is held, except white space at the beginning."""
        held = "".join(self._held)
        self._held = []
        if not self._has_begun:
            held = held.lstrip(SPACE)
        if held:
            self._has_begun = True
            if events and isinstance(events[-1], Reasoning):
                held = events.pop().text + held  # type: ignore[union-attr]
            events.append(Reasoning(held))

    def _after(self, char: str, events: list[Event]) -> None:
        """White space between the reasoning and the answer."""
        if char not in SPACE:
            events.append(Text(char))
            self._state = self._answer

    def _answer(self, char: str, events: list[Event]) -> None:
        events.append(Text(char))

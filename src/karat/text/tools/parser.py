"""AnswerParser: reasoning, text and calls of an answer, as its text comes."""

from collections.abc import Collection

from karat.text.tools.calls import CallFinder
from karat.text.tools.channels import ChannelReader
from karat.text.tools.events import Event, ParsedAnswer, Text, gathered
from karat.text.tools.format import ToolFormat
from karat.text.tools.reasoning import ReasoningSplitter


class AnswerParser:
    """Parses one answer. However its text is split, the parts are the same.

    `tags` are those of reasoning, None where the model has none; `is_open`: the prompt has opened it. `form` is the
    format of calls, None to find none, and `tools` are as in CallFinder. `whole_calls` is as in
    CallFinder. Calls inside the reasoning are reasoning. `calls_alone`: an answer is either calls or text, so no mark
    begins a call after text. Where the format is in channels, these alone say what is reasoning, and `begun` is what
    the prompt has of the first header.
    """

    def __init__(
        self,
        tags: tuple[str, str] | None = None,
        *,
        is_open: bool = False,
        form: ToolFormat | None = None,
        tools: Collection[str] = (),
        whole_calls: bool = False,
        calls_alone: bool = False,
        begun: str = "",
    ) -> None:
        self._splitter: ReasoningSplitter | ChannelReader | None
        self._finder = None if form is None else CallFinder(form, tools, whole_calls=whole_calls, alone=calls_alone)
        if self._finder is not None and form is not None and form.channels is not None:
            self._splitter, self._finder = ChannelReader(form.channels, self._finder, begun), None
        else:
            self._splitter = None if tags is None else ReasoningSplitter(tags, is_open=is_open)

    def feed(self, text: str) -> list[Event]:
        """The parts that `text` completes, in order."""
        return self._with_calls([Text(text)] if self._splitter is None else self._splitter.feed(text))

    def finish(self) -> list[Event]:
        """The rest, at the end of the answer."""
        events = self._with_calls([] if self._splitter is None else self._splitter.finish())
        return events if self._finder is None else events + self._finder.finish()

    def parse(self, text: str) -> ParsedAnswer:
        """A whole answer. Nothing else may have been fed."""
        return gathered(self.feed(text) + self.finish())

    def _with_calls(self, events: list[Event]) -> list[Event]:
        if self._finder is None:
            return [event for event in events if not (isinstance(event, Text) and not event.text)]
        found: list[Event] = []
        for event in events:
            found += self._finder.feed(event.text) if isinstance(event, Text) else [event]
        return found

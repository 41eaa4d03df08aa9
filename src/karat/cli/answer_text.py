"""AnswerText: what an answer says to the user, where the model answers in channels."""

from typing import TYPE_CHECKING, Any

from karat.cli.terminal import note

if TYPE_CHECKING:
    from karat.engine.llm import LLM
    from karat.outputs import StreamChunk


class AnswerText:
    """Of one answer. For models of tags, or none, it is the text as it comes.

    In channels it is the text of the messages that are no analysis, which is shown dim on stderr unless `quiet`.
    `settings` are those of the sampling that it needs.
    """

    def __init__(self, llm: "LLM", prompt: str, *, quiet: bool) -> None:
        from karat.text.tools.dialect import Dialect
        from karat.text.tools.parser import AnswerParser
        from karat.text.tools.registry import asked_for

        form = asked_for(llm.tokenizer.template_sources)
        self._parser: AnswerParser | None = None
        self._quiet = quiet
        self._is_thinking = False
        self.settings: dict[str, Any] = {}
        if form is not None and form.in_channels:
            self._parser = AnswerParser(form=form, begun=Dialect(form=form).begun(prompt))
            self.settings = {"skip_special_tokens": False}

    def add(self, chunk: "StreamChunk") -> str:
        """The text of one more chunk."""
        from karat.text.tools.events import Reasoning, Text

        if self._parser is None:
            return chunk.text
        said = ""
        for part in self._parser.feed(chunk.text) + (self._parser.finish() if chunk.finish_reason else []):
            if isinstance(part, Reasoning) and not self._quiet:
                note(part.text, end="")
                self._is_thinking = True
            elif isinstance(part, Text):
                self.end()
                said += part.text
        return said

    def end(self) -> None:
        """Reasoning on stderr is over."""
        if self._is_thinking:
            note("")
        self._is_thinking = False

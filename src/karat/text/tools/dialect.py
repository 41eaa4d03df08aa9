"""Dialect: how a model, by its chat template, is told of tools, writes calls and reasons."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from karat.errors import TemplateError
from karat.text.tokenizer import Tokenizer
from karat.text.tools.format import ToolFormat
from karat.text.tools.parser import AnswerParser
from karat.text.tools.reasoning import TAGS
from karat.text.tools.registry import FORMATS

_NAME, _KEY, _VALUE, _ID = "probe_of_karat", "probe_key", "probe-value", "probe0001"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A tool.",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "A value."}},
            "required": [_KEY],
        },
    },
}
_USER = {"role": "user", "content": "Hello"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """What `dialect_of` found.

    `knows_tools`: the template tells the model of tools. `form` is the format in which the model writes calls, None if
    it is none of FORMATS. `writes_calls`: the template writes calls of earlier answers; then `arguments_are_text` says
    whether it takes their arguments as JSON text, not as values. `tags` are those of reasoning, None where there is
    none. `variables` are those of _SWITCHES that the template reads. `hides_marks`: some of the marks of calls and
    reasoning are special tokens, which texts leave out unless special tokens are shown.
    """

    knows_tools: bool = False
    form: ToolFormat | None = None
    writes_calls: bool = False
    arguments_are_text: bool = False
    tags: tuple[str, str] | None = None
    variables: frozenset[str] = frozenset()
    hides_marks: bool = False

    def opens_reasoning(self, prompt: str) -> bool:
        """Whether a rendered prompt ends inside the reasoning."""
        return self.tags is not None and prompt.rstrip().endswith(self.tags[0])

    def shown(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """A call of an earlier answer, {"id", "type", "function": {"name", "arguments": JSON text}}, for the template.

        Raises TemplateError for arguments that are no JSON object.
        """
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"] or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise TemplateError(
                f"the arguments of a call of {function['name']} are no JSON object; expected one; mend the conversation"
            )
        given = function["arguments"] or "{}" if self.arguments_are_text else arguments
        return {**call, "function": {**function, "arguments": given}}


_SWITCHES = frozenset({"enable_thinking", "reasoning_effort"})


def dialect_of(tokenizer: Tokenizer) -> Dialect:
    """The dialect of a tokenizer's templates, found by rendering a small conversation with them.

    The format is the one in which the template writes a call; where it writes none, the one that its text asks for.
    """
    source = "\n".join(tokenizer.template_sources.values())
    tags = next((tags for tags in TAGS if tags[1] in source), None)
    variables = frozenset(name for name in _SWITCHES if name in source)
    knows_tools = _NAME in _rendered(tokenizer, [_USER], [_TOOL])
    form = next((each for each in FORMATS.values() if any(hint in source for hint in each.hints)), None)
    tools = [_TOOL] if knows_tools else None
    begun = _rendered(tokenizer, [_USER], tools)
    writes_calls = arguments_are_text = False
    for is_text in (False, True):
        whole = _rendered(tokenizer, [_USER, _answer(is_text=is_text), _result()], tools)
        written = whole.rpartition(_USER["content"])[2]
        if f'"{_KEY}"' in written or f"{_KEY}=" in written:
            writes_calls, arguments_are_text = True, is_text
            form = form or _written_in(written, whole.removeprefix(begun) if begun else "")
            break
    marks = "\0".join((*(tags or ()), *(form.marks + form.shape.texts if form else ())))
    special = (tokenizer.added_tokens[token_id] for token_id in tokenizer.special_ids)
    hides_marks = any(token and token in marks for token in special)
    return Dialect(knows_tools, form, writes_calls, arguments_are_text, tags, variables, hides_marks)


def _answer(*, is_text: bool) -> dict[str, Any]:
    arguments = {_KEY: _VALUE}
    function = {"name": _NAME, "arguments": json.dumps(arguments) if is_text else arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": _ID, "type": "function", "function": function}]}


def _result() -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": _ID, "name": _NAME, "content": "It is done."}


def _rendered(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], tools: Any) -> str:
    """The prompt; empty where the template fails or there is none."""
    try:
        return tokenizer.render_chat(messages, tools=tools)
    except TemplateError:
        return ""


def _written_in(text: str, answer: str) -> ToolFormat | None:
    """The format in which the call of the probe stands in `text`, or at the beginning of `answer`."""
    for form in FORMATS.values():
        starts = [text[text.index(mark) :] for mark in form.marks if mark in text]
        if answer[:1] and answer[0] in form.at_start:
            starts.append(answer)
        for start in starts:
            found = AnswerParser(form=form, tools=[_NAME]).parse(start)
            if found.calls and json.loads(found.calls[0].arguments) == {_KEY: _VALUE}:
                return form
    return None

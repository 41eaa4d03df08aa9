"""Dialect: how a model, by its chat template, is told of tools, writes calls and reasons."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from karat.errors import TemplateError
from karat.request import shown
from karat.text.tokenizer import Tokenizer
from karat.text.tools.arguments import read_arguments
from karat.text.tools.format import ToolFormat
from karat.text.tools.parser import AnswerParser
from karat.text.tools.reasoning import TAGS
from karat.text.tools.registry import FORMATS
from karat.text.tools.xml import written_parameters

_SHORT = 9  # characters of a short id
_NAME, _KEY, _VALUE, _ID = "probe_of_karat", "probe_key", "probe-value", "probe0001"
_ARGUMENTS = {_KEY: _VALUE}
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
    whether it takes their arguments as JSON text, not as values. A template may write calls in a form that is none of
    FORMATS: a history is shown, and answers are not read. `tags` are those of reasoning, None where there is none.
    `variables` are those of _SWITCHES that the template reads. `hides_marks`: some of the marks of calls and reasoning
    are special tokens, which texts leave out unless special tokens are shown.
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

    def shown(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """A conversation for the template. Its calls are in OpenAI's form; arguments are JSON text, or values.

        Of arguments that were cut the template gets what they tell (`read_arguments`).
        Where the template writes no calls, they are written into the contents in the model's format. Ids are made short
        for models of short ids. Raises TemplateError for calls of another form, and where nothing writes them.
        """
        return [self._message(message) for message in messages]

    def _message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if isinstance(message.get("tool_call_id"), str):
            message = {**message, "tool_call_id": self._id(message["tool_call_id"])}
        if not message.get("tool_calls"):
            return message
        calls = [_read_call(call) for call in message["tool_calls"]]
        content = message.get("content") or ""
        if not self.writes_calls:
            if self.form is None:
                raise TemplateError(
                    "the conversation has calls of tools, which the model's chat template does not write; expected "
                    "messages of text; use another model, or tell the calls in a text"
                )
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            text = written(self.form, [(name, arguments) for _, name, arguments in calls])
            if isinstance(content, list):
                return {**rest, "content": [*content, {"type": "text", "text": f"\n{text}"}]}
            return {**rest, "content": f"{content}\n{text}" if content else text}
        told = []
        for call_id, name, arguments in calls:
            given = json.dumps(arguments, ensure_ascii=False) if self.arguments_are_text else arguments
            told.append({"id": self._id(call_id), "type": "function", "function": {"name": name, "arguments": given}})
        return {**message, "content": content, "tool_calls": told}

    def _id(self, call_id: str) -> str:
        is_short = self.form is not None and self.form.short_ids
        if not is_short or (len(call_id) == _SHORT and call_id.isascii() and call_id.isalnum()):
            return call_id
        return sha256(call_id.encode(errors="replace")).hexdigest()[:_SHORT]


def written(form: ToolFormat, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Calls of tools, by name and arguments, in a format."""
    shape = form.shape
    opening, closing = (shape.opening, shape.closing) if shape.each else ("", "")
    texts = []
    for name, arguments in calls:
        given = json.dumps(arguments, ensure_ascii=False)
        if shape.keywords:
            given = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
        if shape.parameter is not None:
            given = written_parameters(shape, arguments)
        texts.append(f"{opening}{shape.before}{name}{shape.between}{given}{shape.after}{closing}")
    text = shape.separator.join(texts)
    return text if shape.each else f"{shape.opening}{text}{shape.closing}"


def _read_call(call: Any) -> tuple[str, str, Mapping[str, Any]]:
    """Id, name and arguments of a call in OpenAI's form."""
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise TemplateError(
            f"a call of the conversation is {shown(call)}; expected id, type function, and function with name and "
            "arguments; mend it"
        )
    assert isinstance(function, Mapping)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = read_arguments(arguments)
    if not isinstance(arguments, Mapping):
        raise TemplateError(
            f"the arguments of a call of {name[:80]} are no JSON object; expected one; mend the conversation"
        )
    call_id = call.get("id")
    return call_id if isinstance(call_id, str) else "", name, arguments


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
    from_values, from_text = (
        _rendered(tokenizer, [_USER, _answer(is_text=is_text), _result()], tools) for is_text in (False, True)
    )
    arguments_are_text = _wants_text(from_values, from_text, begun)
    whole = from_text if arguments_are_text else from_values
    writes_calls = _tells(whole, begun)
    if writes_calls and form is None:
        form = _written_in(whole.rpartition(_USER["content"])[2], whole.removeprefix(begun) if begun else "")
    marks = "\0".join((*(tags or ()), *(form.marks + form.shape.texts if form else ())))
    special = (tokenizer.added_tokens[token_id] for token_id in tokenizer.special_ids)
    hides_marks = any(token and token in marks for token in special)
    return Dialect(knows_tools, form, writes_calls, arguments_are_text, tags, variables, hides_marks)


def _answer(*, is_text: bool) -> dict[str, Any]:
    function = {"name": _NAME, "arguments": json.dumps(_ARGUMENTS) if is_text else _ARGUMENTS}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": _ID, "type": "function", "function": function}]}


def _result() -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": _ID, "name": _NAME, "content": "It is done."}


def _tells(whole: str, begun: str) -> bool:
    """Whether a rendered conversation holds the argument of the probe's call. Its key stands in the tools as well."""
    return _VALUE in whole and whole.count(_KEY) > begun.count(_KEY)


def _wants_text(from_values: str, from_text: str, begun: str) -> bool:
    """Whether calls are to be given with their arguments as JSON text: values fail, or come out as Python prints them.

    Otherwise they are given as values, as transformers asks, in whatever form the template writes them.
    """
    if not _tells(from_text, begun):
        return False
    return not _tells(from_values, begun) or (str(_ARGUMENTS) in from_values and json.dumps(_ARGUMENTS) in from_text)


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
            if found.calls and found.calls[0].is_whole and json.loads(found.calls[0].arguments) == _ARGUMENTS:
                return form
    return None

"""Dialect: how a model, by its chat template, is told of tools, writes calls and reasons."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from karat.errors import TemplateError, UsageError
from karat.text.chat_prompt import REASONING
from karat.text.control_tokens import Written
from karat.text.tokenizer import Tokenizer
from karat.text.tools.format import MESSAGE, ToolFormat
from karat.text.tools.gemma import written_members
from karat.text.tools.history import apart, described, read_call, text_of, with_one_system, with_tools
from karat.text.tools.parser import AnswerParser
from karat.text.tools.pythonic import written_value
from karat.text.tools.reasoning import TAGS
from karat.text.tools.registry import FORMATS, asked_for
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
    are special tokens, which texts leave out unless special tokens are shown. `calls_apart`: of several calls of one
    message the template writes the first alone, or fails. `text_or_reasoning`: beside calls it takes one of both.
    `one_system`: of several system messages it writes one. `needs_descriptions`: it fails with a tool that has none.
    `bare_tools`: it reads name and parameters of a tool itself, not of its key `function`. `tools_in_system`: it reads
    the tools of the system message, as one text.
    """

    knows_tools: bool = False
    form: ToolFormat | None = None
    writes_calls: bool = False
    arguments_are_text: bool = False
    tags: tuple[str, str] | None = None
    variables: frozenset[str] = frozenset()
    hides_marks: bool = False
    calls_apart: bool = False
    text_or_reasoning: bool = False
    one_system: bool = False
    needs_descriptions: bool = False
    bare_tools: bool = False
    tools_in_system: bool = False

    def require_tools(self, *, read: bool) -> None:
        """UsageError if the template tells of no tools or, where calls are to be `read`, has no known form of them."""
        if not self.knows_tools:
            raise UsageError(
                "tools: the model's chat template has no place for tools; use another model, a template that has one "
                "(--chat-template FILE, LLM(chat_template=…)), or tool_choice none",
                param="tools",
            )
        if read and self.form is None:
            raise UsageError(
                "tools: the model's chat template writes calls in a form that Karat does not read; use another model, "
                "or tool_choice none",
                param="tools",
            )

    @property
    def in_channels(self) -> bool:
        """Whether all of an answer has a form, calls or not."""
        return self.form is not None and self.form.in_channels

    @property
    def reasons(self) -> bool:
        """Whether answers have reasoning that is told apart."""
        return self.tags is not None or self.in_channels

    def reads(self, tools: bool) -> ToolFormat | None:
        """The format that answers are read in; `tools`: some may be called."""
        return self.form if tools or self.in_channels else None

    def begun(self, prompt: str) -> str:
        """The header of the message that a rendered prompt has opened, but for its role; empty where it has none."""
        if self.form is None or self.form.channels is None:
            return ""
        _, found, after = prompt.rpartition(self.form.marks[0])
        if not found or any(mark in after for mark in self.form.channels.ends):
            return ""
        header, mark, _ = after.partition(MESSAGE)
        return header + mark

    def opens_reasoning(self, prompt: str) -> bool:
        """Whether a rendered prompt ends inside the reasoning."""
        return self.tags is not None and prompt.rstrip().endswith(self.tags[0].rstrip())

    def shown(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """A conversation for the template. Its calls are in OpenAI's form; arguments are JSON text, or values.

        Of arguments that were cut the template gets what they tell (`read_arguments`).
        Where the template writes no calls, they are written into the contents in the model's format. Ids are made short
        for models of short ids. Where a template takes one call a message, each has its own, and its result follows it;
        where it takes no text beside reasoning and calls, the text is at the end of the reasoning. Where it writes one
        system message, all are one, at the beginning. Raises TemplateError for calls of another form, and where nothing
        writes them.
        """
        given = with_one_system(messages) if self.one_system else messages
        told = [self._message(message) for message in given]
        return apart(told) if self.calls_apart else told

    def described(self, tools: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Tools in OpenAI's form as the template reads them."""
        told = [described(tool) for tool in tools] if self.needs_descriptions else tools
        return [tool.get("function", tool) for tool in told] if self.bare_tools else told

    def with_tools(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> Sequence[Mapping[str, Any]]:
        """A conversation for the template; these tools are in it where the template reads them there."""
        return with_tools(messages, tools) if self.tools_in_system else messages

    def _message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if isinstance(message.get("tool_call_id"), str):
            message = {**message, "tool_call_id": self._id(message["tool_call_id"])}
        if not message.get("tool_calls"):
            return message
        calls = [read_call(call) for call in message["tool_calls"]]
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
                return {**rest, "content": [*content, {"type": "text", "text": Written(("\n", False), *text.pieces)}]}
            return {**rest, "content": Written((f"{content}\n", False), *text.pieces) if content else text}
        told = []
        for call_id, name, arguments in calls:
            given = json.dumps(arguments, ensure_ascii=False) if self.arguments_are_text else arguments
            told.append({"id": self._id(call_id), "type": "function", "function": {"name": name, "arguments": given}})
        key = next((each for each in REASONING if message.get(each)), None)
        if self.text_or_reasoning and key is not None:
            message, content = {**message, key: "\n\n".join(filter(None, [message[key], text_of(message)]))}, ""
        return {**message, "content": content, "tool_calls": told}

    def _id(self, call_id: str) -> str:
        is_short = self.form is not None and self.form.short_ids
        if not is_short or (len(call_id) == _SHORT and call_id.isascii() and call_id.isalnum()):
            return call_id
        return sha256(call_id.encode(errors="replace")).hexdigest()[:_SHORT]


def written(form: ToolFormat, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> Written:
    """Calls of tools, by name and arguments, in a format, whose marks may be control tokens."""
    shape = form.shape
    pieces = [] if shape.each else [(shape.opening, True)]
    for number, (name, arguments) in enumerate(calls):
        given = json.dumps(arguments, ensure_ascii=False)
        if shape.keywords:
            given = ", ".join(f"{key}={written_value(value)}" for key, value in arguments.items())
        if shape.quote:
            given = written_members(shape.quote, arguments)
        if shape.parameter is not None:
            given = written_parameters(shape, arguments)
        head, tail = (shape.opening, shape.closing) if shape.each else ("", "")
        head = (shape.separator if number else "") + head + shape.before
        named = [(name, False), (shape.again, True), (name, False)] if shape.again else [(name, False)]
        pieces += [(head, True), *named, (shape.between, True), (given, False), (shape.after + tail, True)]
    return Written(*pieces, *([] if shape.each else [(shape.closing, True)]))


LEVELS = ("reasoning_effort", "reasoning_strength")  # variables that take how much a model is to reason
_SWITCHES = frozenset({"enable_thinking", *LEVELS})


def dialect_of(tokenizer: Tokenizer) -> Dialect:
    """The dialect of a tokenizer's templates, found by rendering a small conversation with them.

    The format is the one in which the template writes a call; where it writes none, the one that its text asks for.
    """
    source = "\n".join(tokenizer.template_sources.values())
    # A template may only open the reasoning, at the prompt's end.
    tags = next((tags for tags in TAGS if tags[1] in source or tags[0] in source), None)
    variables = frozenset(name for name in _SWITCHES if name in source)
    knows_tools = _NAME in _rendered(tokenizer, [_USER], [_TOOL])
    bare_tools = not knows_tools and _NAME in _rendered(tokenizer, [_USER], [_TOOL["function"]])
    tools_in_system = not (knows_tools or bare_tools) and _NAME in _rendered(
        tokenizer, with_tools([_USER], [_TOOL]), None
    )
    asked = with_tools([_USER], [_TOOL]) if tools_in_system else [_USER]
    knows_tools |= bare_tools or tools_in_system
    form = asked_for(tokenizer.template_sources)
    tools = [_TOOL["function"] if bare_tools else _TOOL] if knows_tools else None
    begun = _rendered(tokenizer, asked, tools)
    from_values, from_text = (
        _rendered(tokenizer, [*asked, _answer(is_text=is_text), _result()], tools) for is_text in (False, True)
    )
    arguments_are_text = _wants_text(from_values, from_text, begun)
    whole = from_text if arguments_are_text else from_values
    writes_calls = _tells(whole, begun)
    calls_apart = text_or_reasoning = False
    if writes_calls:
        one = _answer(is_text=arguments_are_text)
        both, several = {**one, "content": "A text.", "reasoning_content": "A thought."}, [*one["tool_calls"]] * 2
        text_or_reasoning = not _rendered(tokenizer, [*asked, both, _result()], tools)
        two = _rendered(tokenizer, [*asked, {**one, "tool_calls": several}, _result()], tools)
        calls_apart = two.count(_VALUE) < begun.count(_VALUE) + 2
    if writes_calls and form is None:
        form = _written_in(whole.rpartition(_USER["content"])[2], whole.removeprefix(begun) if begun else "")
    texts = [f"{number}-{_VALUE}" for number in range(2)]
    instructed = _rendered(tokenizer, [*({"role": "system", "content": text} for text in texts), _USER], None)
    one_system = sum(text in instructed for text in texts) == 1
    needs_descriptions = knows_tools and not _rendered(tokenizer, [_USER], [_undescribed(bare=bare_tools)])
    marks = "\0".join((*(tags or ()), *(form.marks + form.shape.texts if form else ())))
    special = (tokenizer.added_tokens[token_id] for token_id in tokenizer.special_ids)
    hides_marks = any(token and token in marks for token in special)
    return Dialect(
        knows_tools,
        form,
        writes_calls,
        arguments_are_text,
        tags,
        variables,
        hides_marks,
        calls_apart,
        text_or_reasoning,
        one_system,
        needs_descriptions,
        bare_tools,
        tools_in_system,
    )


def _undescribed(*, bare: bool) -> dict[str, Any]:
    function = _TOOL["function"]
    assert isinstance(function, dict)
    told = {name: value for name, value in function.items() if name != "description"}
    return told if bare else {**_TOOL, "function": told}


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

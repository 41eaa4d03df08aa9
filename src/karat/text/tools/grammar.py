"""CallGrammar: the form of an answer in which calls are well-formed, as a grammar for llguidance.

A token that a tokenizer has as a special one, such as [TOOL_CALLS], is asked for by its id: special tokens are no text.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from karat.errors import RequestError
from karat.request import StructuredOutputs, shown
from karat.text.tokenizer import Tokenizer
from karat.text.tools import channel_grammar
from karat.text.tools.dialect import Dialect
from karat.text.tools.format import CallShape, Channels, ToolFormat
from karat.text.tools.marked import marked
from karat.text.tools.parameters import parameters
from karat.text.tools.registry import FORMATS

Schema = Mapping[str, Any]
# Keywords of a tool's parameters that a call of the form name=value, … can keep to.
_OF_KEYWORDS = frozenset(
    "type properties required additionalProperties $defs definitions title description $schema $id default examples "
    "strict".split()
)
# Keywords by which a schema says itself which names there may be beside its properties.
_OF_NAMES = frozenset(
    "additionalProperties unevaluatedProperties patternProperties propertyNames minProperties allOf anyOf oneOf $ref "
    "if then else not dependentSchemas dependentRequired".split()
)
_ANY_TEXT = r"/(?s:.*)/"
# In JSON: a space, or a line end with its indentation. White space cannot go on for ever.
WHITESPACE = r"[ ]|\n[ \t]{0,32}"


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that may be called. `parameters` is the JSON Schema that its arguments keep to; None: any object.

    `text`, a field of StructuredOutputs: the arguments are one, `input`, a text of this form.
    """

    name: str
    parameters: dict[str, Any] | None = None
    text: dict[str, str] | UnsetType = UNSET


class CallGrammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an answer may be.

    It has calls of `tools` in the format named `form`: one at least if it `must_call`, else text that may have calls;
    and at most one if it is to be `single`. With `answer`, fields of StructuredOutputs, it is either calls or of that
    form. Before it comes reasoning between `tags`: none, perhaps ("may"), or the rest of some that the prompt has
    opened ("open"). Of a form in channels these have no part: `begun` is the header that the prompt has opened, and
    there may be no tools but an `answer`.
    """

    form: str
    tools: tuple[Tool, ...]
    must_call: bool
    single: bool
    reasoning: Literal["none", "may", "open"] = "none"
    tags: tuple[str, str] = ("", "")
    answer: dict[str, str | list[str]] | UnsetType = UNSET
    begun: str | UnsetType = UNSET

    @classmethod
    def of(
        cls,
        dialect: Dialect,
        tools: Sequence[Tool],
        *,
        must_call: bool,
        single: bool,
        prompt: str,
        answer: StructuredOutputs | None = None,
    ) -> Self:
        """For the answer to a rendered prompt by a model of this dialect, which has a format of calls."""
        assert dialect.form is not None
        return cls(
            form=dialect.form.name,
            tools=tuple(tools),
            must_call=must_call,
            single=single,
            reasoning="none" if dialect.tags is None else "open" if dialect.opens_reasoning(prompt) else "may",
            tags=dialect.tags or ("", ""),
            answer=UNSET if answer is None else _fields(answer),
            begun=dialect.begun(prompt) or UNSET,
        )

    def encoded(self) -> str:
        """As the text for StructuredOutputs(tool_calls=…)."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decoded(cls, text: str) -> "CallGrammar":
        """RequestError for a text that `encoded` does not make."""
        try:
            found = msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RequestError(
                f"structured_outputs: tool_calls={shown(text)}: {error}; leave it out", param="structured_outputs"
            ) from error
        form = FORMATS.get(found.form)
        if form is None or not (found.tools or (form.channels and found.answer is not UNSET)):
            raise RequestError(
                f"structured_outputs: tool_calls: form={shown(found.form)} with {len(found.tools)} tools; expected one "
                f"of {', '.join(FORMATS)} and a tool",
                param="structured_outputs",
            )
        return found

    @property
    def other(self) -> StructuredOutputs | None:
        """The form of an answer that is no call, if it has one. RequestError for none that there is."""
        return None if self.answer is UNSET else StructuredOutputs(**self.answer)  # type: ignore[arg-type]


def lark_of(
    asked: CallGrammar,
    tokenizer: Tokenizer,
    checked: Callable[[Schema], Schema],
    term: Callable[[StructuredOutputs], str],
    in_json: Callable[[StructuredOutputs], str],
) -> str:
    """The grammar in llguidance's Lark syntax. `checked` adds the compiler's options to a schema, or refuses it.

    `term` makes a form that is no calls a term of a grammar, or refuses it; `in_json` makes the form of a text one of
    what JSON writes between quotes for it.
    """
    form = FORMATS[asked.form]
    terms = _Terms(tokenizer)
    rules = dict(_calls(asked, form, terms, checked, term, in_json)) if asked.tools else {}
    if form.channels is not None:
        return _joined(rules | _in_channels(asked, form.channels, terms, term))
    if asked.must_call:
        rules["body"] = "calls"
    elif (other := asked.other) is not None:
        rules |= {"body": "calls | answer", "answer": term(other)}
    elif form.at_start:
        rules["body"] = "calls | NO_CALL"
        rules["NO_CALL"] = rf"/([ \t\r\n]*[^ \t\r\n{_escaped(form.at_start)}](?s:.*))?/"
    else:
        rules |= _within_text(asked, form, terms)
    rules["start"] = "body"
    if asked.reasoning != "none":
        rules |= _reasoning(asked, terms)
    return _joined(rules)


def _joined(rules: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {rule}" for name, rule in rules.items())


class _Terms:
    """Texts as terms of a grammar. `special`: the special tokens and their ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.special = {tokenizer.added_tokens[token_id]: token_id for token_id in tokenizer.special_ids}

    def __call__(self, text: str) -> str:
        """Exactly `text`."""
        found = [token for token in self.special if token and token in text]
        if not found:
            return json.dumps(text, ensure_ascii=False) if text else ""
        token = max(found, key=len)
        before, _, after = text.partition(token)
        return f"{self(before)} <[{self.special[token]}]> {self(after)}"


def _calls(
    asked: CallGrammar,
    form: ToolFormat,
    terms: _Terms,
    checked: Callable[[Schema], Schema],
    term: Callable[[StructuredOutputs], str],
    in_json: Callable[[StructuredOutputs], str],
) -> Iterator[tuple[str, str]]:
    """The rules `call`, and `calls` for an answer that consists of calls."""
    shape = form.shape
    for number, tool in enumerate(asked.tools):
        head, tail = terms(shape.before + tool.name + shape.between), terms(shape.after)
        if form.channels is not None:
            head = form.channels.before_call(tool.name, terms)
        yield f"call_{number}", f"{head} arguments_{number} {tail}"
        with _faults_of(tool):
            if tool.text is not UNSET:
                yield from _of_text(tool, shape, f"arguments_{number}", terms, term, in_json)
            elif shape.keywords:
                yield from _keywords(f"arguments_{number}", tool, checked)
            elif shape.parameter is not None:
                yield from parameters(f"arguments_{number}", tool.name, _of_bound(tool), shape.parameter, checked)
            elif shape.quote:
                bound = None if tool.parameters is None else object_schema(tool)
                yield from marked(f"arguments_{number}", tool.name, bound, shape.quote, terms, checked)
            else:
                yield f"arguments_{number}", f"%json {_json(checked(object_schema(tool)))}"
    yield "call", " | ".join(f"call_{number}" for number in range(len(asked.tools)))
    opening, closing, separator = terms(shape.opening), terms(shape.closing), terms(shape.separator)
    if asked.single:
        yield "calls", f"{opening} call {closing}"
    elif shape.each:
        yield "one", f"{opening} call {closing}"
        yield "calls", f"one ({separator} one)*"
    else:
        yield "calls", f"{opening} call ({separator} call)* {closing}"


@contextmanager
def _faults_of(tool: Tool) -> Iterator[None]:
    """Errors of the tool."""
    try:
        yield
    except RequestError as error:
        raise RequestError(str(error), param=f"tools.{tool.name}") from error


def _in_channels(
    asked: CallGrammar, channels: Channels, terms: _Terms, term: Callable[[StructuredOutputs], str]
) -> dict[str, str]:
    other = None if asked.must_call else asked.other
    return channel_grammar.messages(
        channels,
        "calls" if asked.must_call else "either" if asked.tools else "answer",
        "" if asked.begun is UNSET else asked.begun,
        speaks=other is None,
        answer="" if other is None else term(other),
        is_special=channels.message_end in terms.special,
        terms=terms,
    )


def _within_text(asked: CallGrammar, form: ToolFormat, terms: _Terms) -> dict[str, str]:
    """Text in which a mark begins a call. Where the mark ends, the call has begun: the text before is read lazily."""
    mark, shape = form.marks[0], form.shape
    more = "" if asked.single or shape.each else f"({terms(shape.separator)} call)*"
    rest = f"{terms(shape.opening.removeprefix(mark))} call {more} {terms(shape.closing)}"
    rules = {"TEXT": _ANY_TEXT, "text": "TEXT"}
    for other in form.marks[1:]:
        if other not in terms.special:
            rules["TEXT"] += f" & ~(/(?s:.*){_exactly(other)}(?s:.*)/)"
    if asked.reasoning == "may" and asked.tags[0] not in terms.special:
        # What may be a call is one, also where reasoning may be read: so text begins with no reasoning.
        rules["TEXT"] += f" & ~(/{_exactly(asked.tags[0])}(?s:.*)/)"
    if mark in terms.special:
        rules["in_text"] = f"text {terms(mark)} {rest}"
    else:
        rules["before_call[lazy]"] = f"TEXT {terms(mark)}"
        rules["in_text"] = f"before_call {rest}"
    rules["body"] = "in_text | text" if asked.single else "in_text* text"
    return rules


def _exactly(text: str) -> str:
    """A regular expression for a text, without line ends."""
    return re.escape(text).replace("\\\n", "\\n")


def _reasoning(asked: CallGrammar, terms: _Terms) -> dict[str, str]:
    opening, closing = asked.tags
    rules = {"AFTER": r"/\n{0,2}/"}
    if closing in terms.special:
        rules |= {"REASONING": _ANY_TEXT, "reasoned": f"REASONING {terms(closing)} AFTER"}
    else:
        rules |= {"REASONING": _ANY_TEXT, "closed[lazy]": f"REASONING {terms(closing)}", "reasoned": "closed AFTER"}
    rules["start"] = "reasoned body" if asked.reasoning == "open" else f"({terms(opening)} reasoned)? body"
    return rules


def object_schema(tool: Tool) -> Schema:
    """The schema of the arguments: an object, with no names that it does not know unless it says something of them."""
    schema = tool.parameters or {}
    if schema.get("type", "object") != "object":
        raise RequestError(
            f"the parameters of the tool {tool.name} have type {shown(schema['type'])}; expected object; change it"
        )
    properties, required = schema.get("properties", {}), schema.get("required", ())
    is_listed = isinstance(required, list | tuple) and all(isinstance(name, str) for name in required)
    if not isinstance(properties, Mapping) or not is_listed:
        raise RequestError(
            f"the parameters of the tool {tool.name}: properties={shown(properties)}, required={shown(required)}; "
            "expected an object and a list of names; change them"
        )
    if "properties" in schema and schema.keys().isdisjoint(_OF_NAMES):
        is_closed = all(name in properties for name in required)
        return {"type": "object", **schema, **({"additionalProperties": False} if is_closed else {})}
    return {"type": "object", **schema}


def _of_text(
    tool: Tool,
    shape: CallShape,
    rule: str,
    terms: _Terms,
    term: Callable[[StructuredOutputs], str],
    in_json: Callable[[StructuredOutputs], str],
) -> Iterator[tuple[str, str]]:
    """The rules for the argument `input` of a form. RequestError, which names the tool, for one that is refused."""
    assert tool.text is not UNSET
    form = StructuredOutputs(**tool.text)  # type: ignore[arg-type]
    try:
        text = term(form) if shape.parameter is not None or shape.quote else in_json(form)
    except RequestError as error:
        raise RequestError(f"the text of the tool {tool.name}: {error}") from error
    if shape.parameter is None and not shape.quote:
        space, upper = f"(/{WHITESPACE}/)?", rule.upper()
        head = (_json("{"), space, _json('"input"'), space, _json(":"), space)
        yield f"{upper}_BEGIN", " ".join([*([_json("input=")] if shape.keywords else head), _json('"')])
        yield f"{upper}_END", " ".join([_json('"'), *(() if shape.keywords else (space, _json("}")))])
        yield f"{rule}_text", text
        yield rule, f"{upper}_BEGIN {rule}_text {upper}_END"
        return
    before, between, after = shape.parameter or ("", f":{shape.quote}", shape.quote)
    begin, end = terms(f"{before}input{between}"), terms(after)
    if form.regex is None or after in terms.special:
        yield f"{rule}_text", text
        yield rule, f"{begin} {rule}_text {end}"
    else:
        name = f"{rule}_text".upper()
        yield name, text
        yield f"{rule}_text[lazy]", f"{name} {end}"
        yield rule, f"{begin} {rule}_text"


def _of_bound(tool: Tool) -> Schema | None:
    return None if tool.parameters is None else _listed(tool, "parameter by parameter")


def _listed(tool: Tool, how: str) -> Schema:
    """The schema of arguments that are written one by one: an object of named properties. RequestError for another."""
    schema = object_schema(tool)
    if unknown := schema.keys() - _OF_KEYWORDS:
        raise RequestError(
            f"the parameters of the tool {tool.name}: this model writes calls {how}, which cannot keep to "
            f"{min(unknown)} of the schema; expected properties and required; leave it out, or take tool_choice auto"
        )
    if missing := frozenset(schema.get("required", ())) - schema.get("properties", {}).keys():
        raise RequestError(
            f"the parameters of the tool {tool.name} require {min(missing)}, which is no property; add it"
        )
    return schema


def _keywords(rule: str, tool: Tool, checked: Callable[[Schema], Schema]) -> Iterator[tuple[str, str]]:
    """The rules for name=value, …, in the schema's order: required ones always, the others perhaps."""
    if tool.parameters is None:
        raise RequestError(
            f"the parameters of the tool {tool.name}: this model writes calls as name=value, which cannot keep to "
            "arguments without a schema; give one"
        )
    schema = _listed(tool, "as name=value")
    properties, required = schema.get("properties", {}), frozenset(schema.get("required", ()))
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    yield rule, f"{rule}_0_first"
    for number, (name, value) in enumerate(properties.items()):
        if not name.isidentifier() or not name.isascii():
            raise RequestError(
                f"the parameters of the tool {tool.name}: {shown(name)} is no name for name=value; change it"
            )
        inner = value if isinstance(value, Mapping) else {}
        yield f"{rule}_{number}", f"{_json(name + '=')} %json {_json(checked({**inner, **shared}))}"
        for place, comma in (("first", ""), ("later", '", "')):
            given = f"{comma} {rule}_{number} {rule}_{number + 1}_later"
            skipped = "" if name in required else f" | {rule}_{number + 1}_{place}"
            yield f"{rule}_{number}_{place}", given + skipped
    for place in ("first", "later"):
        yield f"{rule}_{len(properties)}_{place}", '""'


def _fields(form: StructuredOutputs) -> dict[str, str | list[str]]:
    """The field that is given."""
    given = {name: getattr(form, name) for name in ("json", "regex", "choice", "grammar")}
    return {name: list(value) if name == "choice" else value for name, value in given.items() if value is not None}


def _escaped(chars: str) -> str:
    return "".join("\\" + char for char in chars)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)

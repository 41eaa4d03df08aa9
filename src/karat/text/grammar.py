"""Grammars of structured outputs: which tokens may come next, by llguidance. Imported by the first request with one."""

import json
import re
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from decimal import Decimal
from math import isfinite, lcm
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark
from numpy.typing import NDArray

from karat.errors import RequestError
from karat.request import StructuredOutputs, shown
from karat.text.grammar_source import MAX_REPEATS, check_repeats, in_lark
from karat.text.json_lark import written
from karat.text.name_spelling import escapes
from karat.text.schema_closing import without_nulls
from karat.text.schema_rewriting import MAX_WHOLE, rewritten
from karat.text.tokenizer import Tokenizer
from karat.text.tools.grammar import WHITESPACE, CallGrammar, lark_of, object_schema

MASK_THREADS = 1  # of all sequences together, beside the kernels
MAX_DEPTH = 32  # of a schema
MAX_NODES = 4096  # values in a schema
MAX_MULTIPLE = 10_000  # least common multiple of all multipleOf: the compiler makes about that many states
MAX_TEXT = 8192  # characters of one text in a form: each step looks at all text that is forced
MAX_PROPERTIES = 400  # of an object, in the order of a schema
# llguidance would choose the tokens of a text that is forced, instead of the model.
_HEADER = '%llguidance {"no_forcing": true}\n'
_FAULTS = {  # how llguidance's errors begin, the keyword that they are about, and what is told instead of them
    "Invalid type:": ("type", None),
    "Resource ": ("$ref", None),
    "Pointer ": ("$ref", None),
    "regex parse error": ("pattern", None),
    "invalid multiple of": ("multipleOf", None),
    "Unsatisfiable schema: anyOf is empty": ("enum or anyOf", "there is nothing to choose from"),
    "Unsatisfiable schema: incompatible types": ("type", "the types that are asked for exclude each other"),
    "Unsatisfiable schema: Regex is empty": ("pattern, format, enum or lengths", "no text keeps to all of them"),
    "oneOf constraints are not supported": ("oneOf", "more than one of its schemas may fit a value; write anyOf"),
    "Failed to generate regex for": ("minimum or maximum", "the compiler has no such numbers; take others"),
}
_TOO_MUCH = "it takes too much work to keep to; expected a simpler form; change it"
_DEAD_END = (
    "no text goes on from here: the form contradicts itself, or asks for a token that ends answers; expected one that "
    "can be kept to; change it"
)


class GrammarCompiler:
    """Compiles forms of answers for one tokenizer. Threads may share it.

    Masks have `vocab_size` tokens, which may be more or fewer than the tokenizer's.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._plain_tokenizer = tokenizer
        self._tokenizer = _as_llguidance(tokenizer, vocab_size)
        # The time of compiling and of a mask is bounded by counts of work, which do not depend on the machine.
        self._limits = LLParserLimits(
            max_items_in_row=20_000,  # a choice of that many texts; step_max_items bounds the time
            initial_lexer_fuel=500_000,
            step_lexer_fuel=100_000,
            step_max_items=20_000,
            max_lexer_states=20_000,
            max_grammar_size=100_000,
            precompute_large_lexemes=False,
            verbose_errors=False,
        )
        self._threads = ThreadPoolExecutor(MASK_THREADS, "karat-masks")

    def compile(self, form: StructuredOutputs) -> "Grammar":
        """RequestError for a form that is too large, malformed, or that cannot be kept to the letter."""
        kind, source = _source(form, self._plain_tokenizer)
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        if matcher.is_error():
            reason = _reason(matcher)
            if kind != "grammar":
                reason = _with_keyword(str(form.json or form.tool_calls), reason)
            param = self._param(form)
            where = f"{param}: {kind}" if param == "structured_outputs" else param
            raise RequestError(
                f"{where}: {reason}; expected what a grammar can keep to; change it or leave it out", param=param
            )
        return Grammar(self._after(matcher, form.begun or ""), self._vocab_size, self._threads)

    def _param(self, form: StructuredOutputs) -> str:
        """What is at fault of a form that cannot be compiled: the first tool whose schema alone cannot be, if any."""
        for tool in () if form.tool_calls is None else CallGrammar.decoded(form.tool_calls).tools:
            if tool.parameters is not None:
                source = _lark(f"start: %json {json.dumps(_checked(object_schema(tool)), ensure_ascii=False)}")
                if LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits).is_error():
                    return f"tools.{tool.name}"
        return "structured_outputs"

    def _after(self, matcher: LLMatcher, begun: str) -> LLMatcher:
        """The matcher after a text that stands before the answer, or as it is if the form does not begin so."""
        tokens = self._tokenizer.greedy_tokenize(begun)
        if self._tokenizer.decode_bytes(tokens) != begun.encode():
            return matcher
        further = matcher.deep_copy()
        return further if further.try_consume_tokens(tokens) == len(tokens) else matcher


class Grammar:
    """A compiled form; `begin` starts one answer. RequestError for one that takes too much time from the start."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, threads: ThreadPoolExecutor) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._threads = threads
        self._first = matcher.compute_bitmask()
        _require_no_error(matcher)

    def begin(self, end_token_ids: Collection[int]) -> "Form":
        """The form of an answer that has no token yet. No token of `end_token_ids` counts as text.

        RequestError where no token can be the first, and the answer is not whole without one.
        """
        form = Form(self._matcher.deep_copy(), self._first, end_token_ids, self._vocab_size, self._threads)
        form.fitting(())
        return form


class Form:
    """How far one answer is in its grammar.

    The mask after a token is made in a thread while the next step's kernels run, or at once where the answer may end:
    there it says whether it does. Only one of both uses the matcher at a time.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        first: bytes,
        end_token_ids: Collection[int],
        vocab_size: int,
        threads: ThreadPoolExecutor,
    ) -> None:
        """`first` is the mask of the first token."""
        self._matcher = matcher
        self._end_ids = list(end_token_ids)
        self._vocab_size = vocab_size
        self._threads = threads
        self._mask: bytes | Future[bytes] = first
        self.may_end = matcher.is_accepting()  # whether the answer is whole as it is

    @property
    def is_complete(self) -> bool:
        """Whether the answer is whole and no token can follow."""
        return self.may_end and not self._text_fits().any()

    def fitting(self, stop_ids: Collection[int]) -> NDArray[np.bool_]:
        """True for every token [vocab] that may come next; `stop_ids` too where the answer may end.

        RequestError for a grammar that takes too much time, and where the answer is not whole and nothing can follow.
        """
        fitting = self._text_fits()
        if self.may_end:
            fitting[list(stop_ids)] = True
        elif not fitting.any():
            raise RequestError(f"structured_outputs: {_DEAD_END}", param="structured_outputs")
        return fitting

    def push(self, token_id: int) -> None:
        """Take the next token. RequestError if it does not fit, or for a grammar that takes too much time."""
        self._packed()
        self._matcher.consume_token(token_id)
        _require_no_error(self._matcher)
        self.may_end = self._matcher.is_accepting()
        make = self._matcher.compute_bitmask
        self._mask = make() if self.may_end else self._threads.submit(make)

    def _text_fits(self) -> NDArray[np.bool_]:
        bits = np.unpackbits(np.frombuffer(self._packed(), np.uint8), count=self._vocab_size, bitorder="little")
        fits = bits.view(np.bool_)
        fits[self._end_ids] = False
        return fits

    def _packed(self) -> bytes:
        """The mask, a bit for each token; now the matcher is free."""
        if isinstance(self._mask, Future):
            self._mask = self._mask.result()
        _require_no_error(self._matcher)
        return self._mask


def _require_no_error(matcher: LLMatcher) -> None:
    if matcher.is_error():
        is_dead = "NoExtension" in matcher.get_error()
        raise RequestError(f"structured_outputs: {_DEAD_END if is_dead else _TOO_MUCH}", param="structured_outputs")


def _reason(matcher: LLMatcher) -> str:
    """llguidance's error in one line, without the lines of the grammar that it shows."""
    told = re.split(r"\n\s*\d+ \| |<non-verbose/>", matcher.get_error())[0]
    return " ".join(re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", told).split())[:300]


def _with_keyword(schema: str, reason: str) -> str:
    """llguidance's error about a JSON Schema, with the keyword that it is about, in words of users."""
    if found := re.match(r"Unimplemented keys: \[\"([^\"]*)", reason):
        return f"{found[1]}: no grammar can keep to it"
    for words, (keyword, told) in _FAULTS.items():
        if reason.startswith(words):
            name = keyword if keyword != "pattern" or '"pattern"' in schema else "patternProperties"
            return f"{name}: {told or reason}"
    return reason.replace("Unsatisfiable schema: ", "nothing fits it: ").replace(
        "patternProperty ", "patternProperties: "
    )


def _as_llguidance(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    """The tokens as bytes, with one more, which stands for every end. Special tokens are no text."""
    special = {token_id for token_id in tokenizer.special_ids if token_id < vocab_size}
    tokens = [
        tokenizer.added_tokens[token_id].encode() if token_id in special else tokenizer.token_bytes(token_id)
        for token_id in range(vocab_size)
    ]
    described = _Described([*tokens, b"<|end of the form|>"], sorted(special | {vocab_size}))
    return LLTokenizer(TokenizerWrapper(described), n_vocab=vocab_size + 1, eos_token=[vocab_size])


class _Described:
    """A tokenizer in the terms of llguidance, which splits no text with it (_HEADER)."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_token_ids: list[int]) -> None:
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.eos_token_id = len(tokens) - 1

    def __call__(self, _text: bytes) -> list[int]:
        return []


def _source(form: StructuredOutputs, tokenizer: Tokenizer) -> tuple[str, str]:
    """The name of the field that is given, and llguidance's grammar for it."""
    if form.tool_calls is not None:
        asked = CallGrammar.decoded(form.tool_calls)
        return "tool_calls", _lark(lark_of(asked, tokenizer, _checked, lambda other: _term(other)[1], _in_json))
    if form.grammar is not None:
        return "grammar", _lark(in_lark(form.grammar))
    name, term = _term(form)
    return name, _lark(f"start: {term}")


def _term(form: StructuredOutputs) -> tuple[str, str]:
    """The name of the field that is given, not tool_calls, and a term of a grammar for it."""
    if form.json is not None:
        assert isinstance(form.json, str)
        return "json", f"%json {json.dumps(_with_options(_schema(form.json)), ensure_ascii=False)}"
    for text in (form.regex, *(form.choice or ())):
        _check_text(text)
    if form.regex is not None:
        check_repeats("regex", form.regex)
        return "regex", f"/{regex_to_lark(form.regex, '')}/"
    if form.choice is not None:
        return "choice", " | ".join(json.dumps(text, ensure_ascii=False) for text in dict.fromkeys(form.choice))
    assert form.grammar is not None
    return "grammar", f"%lark {{\n{in_lark(form.grammar)}\n}}"


def _in_json(form: StructuredOutputs) -> str:
    """A term for what JSON writes between quotes for a text of this form."""
    _term(form)  # refuses what is too large
    return f"%lark {{\n{written(form)}\n}}"


def _with_options(schema: Mapping[str, Any]) -> dict[str, Any]:
    made = rewritten(schema)
    options: Any = {"whitespace_pattern": WHITESPACE, "lenient": False, "coerce_one_of": False}
    return {**made, "x-guidance": options | {"json_allowed_escapes": escapes(made)}}


def _checked(schema: Mapping[str, Any]) -> dict[str, Any]:
    return _with_options(_schema(json.dumps(schema)))


def _lark(text: str) -> str:
    return LLMatcher.grammar_from_lark(_HEADER + text)


def _schema(text: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"structured_outputs: json is no JSON: {error}; expected a JSON Schema; mend it", param="structured_outputs"
        ) from error
    if not isinstance(schema, dict):
        raise RequestError(
            f"structured_outputs: json is {type(schema).__name__}; expected a JSON Schema: an object",
            param="structured_outputs",
        )
    level: list[Any] = [schema]
    nodes, multiple = 0, 1
    for _ in range(MAX_DEPTH):
        nodes += len(level)
        if nodes > MAX_NODES:
            raise RequestError(
                f"structured_outputs: json has over {MAX_NODES} values; expected fewer; shorten it",
                param="structured_outputs",
            )
        for value in level:
            _check_text(value)
            if isinstance(value, Mapping):
                _check_keywords(value)
                multiple = lcm(multiple, _digits(value.get("multipleOf")))
        if multiple > MAX_MULTIPLE:
            raise RequestError(
                f"structured_outputs: json: multipleOf: the digits of all have the least common multiple {multiple}; "
                f"expected at most {MAX_MULTIPLE}; take rounder numbers",
                param="structured_outputs",
            )
        level = [inner for value in level for inner in _inner(value)]
        if not level:
            return without_nulls(schema)
    raise RequestError(
        f"structured_outputs: json is nested over {MAX_DEPTH} levels; expected fewer; flatten it",
        param="structured_outputs",
    )


def _inner(value: Any) -> Collection[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def _digits(value: object) -> int:
    """The digits of a number without its point; 1 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return 1
    return int("".join(map(str, Decimal(repr(value)).normalize().as_tuple().digits))) or 1


def _check_text(text: object) -> None:
    if isinstance(text, str) and len(text) > MAX_TEXT:
        raise RequestError(
            f"structured_outputs: a text of {len(text)} characters; expected at most {MAX_TEXT}; shorten it",
            param="structured_outputs",
        )


def _check_keywords(schema: Mapping[str, Any]) -> None:
    """RequestError for keywords that take too long to compile, or that llguidance takes but does not keep to."""
    if "x-guidance" in schema:
        raise RequestError(
            "structured_outputs: json: x-guidance sets options of the compiler; leave it out",
            param="structured_outputs",
        )
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and len(properties) > MAX_PROPERTIES:
        raise RequestError(
            f"structured_outputs: json: {len(properties)} properties; expected at most {MAX_PROPERTIES}; group them",
            param="structured_outputs",
        )
    for name, most in (("minItems", MAX_REPEATS), ("minLength", MAX_REPEATS)):
        value = schema.get(name)
        if isinstance(value, int | float) and not value <= most:
            raise RequestError(
                f"structured_outputs: json: {name}={value}; expected at most {most}; lower it",
                param="structured_outputs",
            )
    least, required = schema.get("minProperties"), schema.get("required")
    if isinstance(least, int | float) and least > max(1, len(required) if isinstance(required, list) else 0):
        raise RequestError(
            f"structured_outputs: json: minProperties={least}: keys that are not required may repeat; "
            "expected at most the number of required keys; name them in required",
            param="structured_outputs",
        )
    _check_integers(schema)
    for name in ("pattern", "patternProperties"):
        value = schema.get(name)
        for expression in value if isinstance(value, Mapping) else [value]:
            if isinstance(expression, str):
                check_repeats(f"json: {name}", expression)


def _check_integers(schema: Mapping[str, Any]) -> None:
    """RequestError for values that are integers that the compiler would round to others."""
    for name in ("enum", "const"):
        values = [schema.get(name)]
        while values:
            value = values.pop()
            values += _inner(value)
            if isinstance(value, int) and abs(value) > MAX_WHOLE:
                raise _too_large(name, value)


def _too_large(name: str, value: int) -> RequestError:
    return RequestError(
        f"structured_outputs: json: {name} has {shown(value)}; expected integers from -2^53 to 2^53; write it as a "
        "text",
        param="structured_outputs",
    )

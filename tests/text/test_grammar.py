"""Grammars of structured outputs: masks against a check of every token, tokenizers of three kinds, bombs."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from karat.config import embedded_model_path
from karat.errors import RequestError
from karat.models.opening import open_model
from karat.request import StructuredOutputs
from karat.text import Tokenizer
from karat.text.grammar import Form, Grammar, GrammarCompiler
from karat.text.tools.calling import Offer
from karat.text.tools.grammar import CallGrammar, Tool
from tests.engine.fakes import BYTES, END, piece_tokenizer

PIECES = [*(bytes([i]) for i in range(256)), b"tr", b"true", b"ue", b"fal", b' "', b"22", b"2-", "é".encode(), b"\xa9]"]


def sentencepiece(folder: Path) -> Tokenizer:
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for piece in ("▁", "▁true", "tr", "ue", "true", "fal", '▁"', "22", "2-", "é", '"', "2"):
        vocab[piece] = len(vocab)
    backend = Backend(models.BPE(vocab, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    backend.save(str(folder / "tokenizer.json"))
    return Tokenizer.from_folder(folder)


KINDS: dict[str, Callable[[Path], Tokenizer]] = {
    "bytes": lambda _: piece_tokenizer(PIECES),
    "sentencepiece": sentencepiece,
    "embedded": lambda _: Tokenizer.of(open_model(embedded_model_path())),
}


def prefixes(texts: list[str]) -> set[bytes]:
    return {text.encode()[:end] for text in texts for end in range(len(text.encode()) + 1)}


@pytest.mark.parametrize("kind", KINDS)
def test_masks_are_those_of_every_token_tried(kind: str, tmp_path: Path) -> None:
    """A language of a few texts: a token fits exactly if a text begins with what is written and it."""
    tokenizer = KINDS[kind](tmp_path)
    size = tokenizer.vocab_size + 3
    texts = ["true", "tree", "false", 'a "b"', "22-é", "22-22", "2"]
    grammar = GrammarCompiler(tokenizer, size).compile(StructuredOutputs(choice=tuple(texts)))
    begun = prefixes(texts)
    pieces = [b"" if i in tokenizer.special_ids else tokenizer.token_bytes(i) for i in range(size)]

    def walk(written: bytes, ids: list[int]) -> int:
        form = grammar.begin(())
        for token_id in ids:
            form.push(token_id)
        expected = [i for i, piece in enumerate(pieces) if piece and written + piece in begun]
        assert form.fitting(()).nonzero()[0].tolist() == expected, written
        assert form.may_end == (written.decode(errors="replace") in texts)
        assert form.is_complete == (form.may_end and not expected)
        ends = sorted(tokenizer.special_ids)
        assert form.fitting(ends)[ends].all() == form.may_end
        return 1 + sum(walk(written + pieces[i], [*ids, i]) for i in expected)

    assert walk(b"", []) > 30


def test_end_tokens_are_no_text() -> None:
    grammar = GrammarCompiler(BYTES, 258).compile(StructuredOutputs(regex="a+|b"))
    form: Form = grammar.begin([ord("a"), END])
    assert form.fitting([END]).nonzero()[0].tolist() == [ord("b")], "an end token that is a letter"


def test_a_choice_of_thousands_is_kept_to() -> None:
    """Refused in the middle of an answer once, by a limit of the parser that has nothing to do with time."""
    texts = [f"{i} {i * 7919 % 3001}" for i in range(3000)]
    form = GrammarCompiler(BYTES, 258).compile(StructuredOutputs(choice=tuple(texts))).begin(())
    for byte in texts[2345].encode():
        assert form.fitting(())[byte] and not form.fitting(())[ord("x")]
        form.push(byte)
    assert form.is_complete


def test_white_space_cannot_go_on() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": False}
    form = GrammarCompiler(BYTES, 258).compile(StructuredOutputs(json=schema)).begin(())
    form.push(ord("{"))
    count = 0
    while blanks := [i for i in b"\n \t\r" if form.fitting(())[i]]:
        form.push(blanks[0])
        count += 1
        assert count < 40
    assert count > 0


BOMBS = {
    "nested repeats": ({"regex": "(a{1000}){1000}"}, "regex"),
    "a large repeat": ({"regex": "a{60000}{1000}"}, "regex"),
    "open groups": ({"regex": "(" * 20000}, "characters"),
    "nested groups": ({"regex": "(" * 4000 + "a" + ")" * 4000}, "regex"),
    "many rules": ({"grammar": "start: A0\n" + "\n".join(f"A{i}: A{i + 1}" for i in range(3000))}, "rules"),
    "doubling terminals": (
        {"grammar": "start: A0\n" + "\n".join(f"A{i}: A{i + 1} A{i + 1}" for i in range(40)) + '\nA40: "x"'},
        "grammar",
    ),
    "deep": ({"json": '{"items":' * 100 + "{}" + "}" * 100}, "nested"),
    "deeper than Python": ({"json": '{"a":' * 10000}, "json"),
    "wide": ({"json": {"enum": list(range(10000))}}, "values"),
    "large": ({"json": {"description": "x" * 100_000}}, "characters"),
    "multiples": ({"json": {"type": "integer", "multipleOf": 999983}}, "multipleOf"),
    "multiples of multiples": ({"json": {"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}}, "multipleOf"),
    "pattern": ({"json": {"type": "string", "pattern": "(a{1000}){1000}"}}, "pattern"),
    "items": ({"json": {"type": "array", "items": {"const": 1}, "minItems": 10**9}}, "minItems"),
    "properties": ({"json": {"properties": {f"p{i}": {} for i in range(900)}}}, "properties"),
    "a schema in a grammar": ({"grammar": 'start: %json {"multipleOf": 999983}'}, "%json"),
    "a grammar in an expression": ({"regex": 'a/\nb: %json {"multipleOf": 999983}\nc: /'}, "regex"),
    "a long choice": ({"choice": ["x" * 60000]}, "characters"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_quickly(name: str) -> None:
    fields, named = BOMBS[name]
    compiler = GrammarCompiler(BYTES, 258)
    begun = time.perf_counter()
    with pytest.raises(RequestError, match=named):
        compiler.compile(StructuredOutputs(**fields))  # type: ignore[arg-type]
    assert time.perf_counter() - begun < 10, "a second would be long"


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {}},
        {"uniqueItems": True},
        {"contains": {}},
        {"dependentRequired": {"a": ["b"]}},
        {"x-guidance": {"lenient": True}},
        {"minProperties": 2},
        {"enum": [1, 2**53 + 1]},
        {"const": {"a": [-(2**53) - 1]}},
        {"type": "integer", "exclusiveMinimum": 2**63},
        {"type": "integer", "maximum": -(2**63)},
        {"then": False, "if": {"properties": {"a": {"const": 1}}}},
        {"type": "object", "propertyNames": {"not": {"const": "a"}}},
        {"anyOf": [{"type": "integer"}, {}], "unevaluatedProperties": False},
        {"type": "foo"},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"type": "string", "pattern": "(?=a)"},
        {"type": "object", "patternProperties": {"(?=a)": {}}},
        {"type": "integer", "multipleOf": 0},
        {"type": "string", "enum": []},
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.com/schema"},
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_name(schema: dict[str, object]) -> None:
    key = list(schema)[-1]
    with pytest.raises(RequestError, match=r"json: .*" + re.escape(key)):
        GrammarCompiler(BYTES, 258).compile(StructuredOutputs(json=schema))


@pytest.mark.parametrize("sign", [1, -1])
def test_large_integers_are_kept_to(sign: int) -> None:
    """The upper bound of 64 bits, which programs write for "any integer", and the last of those that are exact."""
    for schema, fitting, unfitting in [
        ({"maximum": 2**63 - 1, "minimum": -(2**62)}, 2**53 + 1, 2**63 + 1),
        ({"const": sign * 2**53}, 2**53, 2**53 + 1),
        ({"maximum": 2**53, "minimum": -(2**53)}, 2**53, 2**53 + 1),
    ]:
        grammar = GrammarCompiler(BYTES, 258).compile(StructuredOutputs(json={"type": "integer", **schema}))
        for value, fits in ((fitting, True), (unfitting, False)):
            assert takes(grammar, str(sign * value).encode()) == fits, (schema, value)


def takes(grammar: Grammar, text: bytes) -> bool:
    form = grammar.begin(())
    for byte in text:
        if not form.fitting(())[byte]:
            return False
        form.push(byte)
    return form.may_end


DEAD_ENDS: dict[str, Any] = {  # a form, the tokens up to where no text fits, and whether that is found before them
    "an end token": ({"grammar": f"start: <[{END}]>"}, "", True),
    "an end token later": ({"grammar": f'start: "a" <[{END}]> "b"'}, "a", False),
    "no text": ({"grammar": 'start: "a" X\nX: /a/ & /b/'}, "a", False),
}


@pytest.mark.parametrize("name", DEAD_ENDS)
def test_where_no_text_fits_the_form_is_at_fault(name: str) -> None:
    fields, begun, is_early = DEAD_ENDS[name]
    grammar = GrammarCompiler(BYTES, 258).compile(StructuredOutputs(**fields))

    def follow() -> None:
        form = grammar.begin([END])
        assert not is_early
        for byte in begun.encode():
            form.push(byte)
        form.fitting([END])

    with pytest.raises(RequestError, match="structured_outputs: no text goes on from here"):
        follow()


CONTRADICTIONS: dict[str, tuple[dict[str, object], str]] = {
    "lengths": (
        {"type": "string", "pattern": "^a$", "minLength": 2},
        "pattern, format, enum or lengths: no text keeps",
    ),
    "types": ({"allOf": [{"type": "string"}, {"type": "null"}]}, "type: the types"),
    "numbers": (
        {"type": "integer", "minimum": 3, "maximum": 2},
        "nothing fits it: minimum .3. is greater than maximum",
    ),
    "names": ({"type": "object", "required": ["a"], "additionalProperties": False}, "required property 'a'"),
    "patterns": ({"patternProperties": {"^a": {}, "b$": {"type": "null"}}}, "patternProperties: regexes"),
    "unknown": ({"contains": {}}, "contains: no grammar can keep to it"),
}


NULLABLE = """
    minimum maximum exclusiveMinimum multipleOf minLength pattern format items minItems maxItems uniqueItems properties
    required additionalProperties patternProperties propertyNames minProperties unevaluatedProperties enum type anyOf
    oneOf allOf not if then else $ref $defs contains prefixItems dependentRequired dependentSchemas default
""".split()


def test_null_is_no_keyword() -> None:
    compiler = GrammarCompiler(BYTES, 258)
    for name in NULLABLE:
        schema: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer"}}, name: None}
        compiler.compile(StructuredOutputs(json=schema))
        inside: dict[str, object] = {"properties": {"a": {"type": "string", name: None}}}
        compiler.compile(StructuredOutputs(json=inside))
        offer = Offer("f", schema)
        for form in ("hermes", "qwen-xml", "pythonic"):
            asked = CallGrammar(form=form, tools=(Tool("f", offer.bound()),), must_call=True, single=True)
            compiler.compile(StructuredOutputs(tool_calls=asked.encoded()))


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_schema_that_nothing_fits_is_told_in_words_of_users(name: str) -> None:
    schema, words = CONTRADICTIONS[name]
    inside = f"({words}|nothing fits it: required property 'a')"
    for given, told in (({"json": schema}, words), ({"tool_calls": _calls(schema)}, inside)):
        with pytest.raises(RequestError, match=f": {told}") as caught:
            GrammarCompiler(BYTES, 258).compile(StructuredOutputs(**given))  # type: ignore[arg-type]
        assert "Regex" not in str(caught.value) and "llguidance" not in str(caught.value)


def _calls(schema: dict[str, object]) -> str:
    parameters = {"properties": {"a": schema}, "required": ["a"]}
    return CallGrammar(form="hermes", tools=(Tool("f", parameters),), must_call=True, single=True).encoded()

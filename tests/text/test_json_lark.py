"""Grammars of a text as JSON writes it: a text keeps to a grammar exactly if its JSON keeps to the rewritten one.

Covers: karat.text.json_regex, karat.text.lark_syntax.
"""

import json
import random
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, regex_to_lark

from karat.errors import RequestError
from karat.request import StructuredOutputs
from karat.text.json_lark import written
from karat.text.schema_rewriting import byte_tokenizer

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
GRAMMARS = {
    "patch": PATCH,
    "sums": """
        // Numbers, and sums of them in brackets.
        ?start: sum
        ?sum: product | sum "+" product -> add | sum "-" product -> subtract
        ?product: atom | product "*" atom | product "/" atom
        ?atom: NUMBER -> number | "-" atom | "(" sum ")" | NAME
        %import common.CNAME -> NAME
        %import common.NUMBER
        %import common.WS_INLINE
        %ignore WS_INLINE
        """,
    "json": r"""
        start: value
        value: object | array | ESCAPED_STRING | SIGNED_NUMBER | "true" | "false" | "null"
        object: "{" [pair ("," pair)*] "}"
        array: "[" [value ("," value)*] "]"
        pair: ESCAPED_STRING ":" value
        %import common (ESCAPED_STRING, SIGNED_NUMBER, WS)
        %ignore WS
        """,
    "query": r"""
        start: "SELECT"i SP columns SP "FROM"i SP NAME (SP where)? (SP "LIMIT"i SP INT)? ";"
        columns: "*" | NAME ("," SP NAME)*
        where: "WHERE"i SP condition (SP ("AND"i | "OR"i) SP condition)~0..3
        condition: NAME SP OPERATOR SP (INT | QUOTED)
        OPERATOR: "=" | "<>" | "<" | ">" | "LIKE"i
        QUOTED: "'" /[^']/* "'"
        NAME: /[a-z_][a-z0-9_]{0,9}|"[^"]+"/
        SP: /[ \n\t]+/
        INT: DIGIT+
        DIGIT: "0".."9"
        """,
    "times": r"""
        start: DAY ("T" HOUR ":" MINUTE)?
        DAY: /\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])/
        HOUR: /[01]\d|2[0-3]/
        MINUTE: /[0-5]\d/
        """,
    "lines": "start: (LINE /\\n/)* LINE?\nLINE: /[^\\n]+/",
    "quoted": 'start: "\\"" INNER* "\\""\nINNER: /[^"\\\\]/ | "\\\\" ESCAPE\nESCAPE: /["\\\\n\\n]/',
    "tabs": 'start: row{1,3}\nrow: CELL ("\\t" CELL)* "\\r"? "\\n"\nCELL: /[^\\t\\r\\n]*/',
    "csv": 'start: (cell ",")~2 cell\ncell: BARE | "\\"" (/[^"]+/ | "\\"\\"")* "\\""\nBARE: /[^",\\x00-\\x1f]+/',
    "nested": 'start: item*\nitem: "\\n" | "\\\\" item "\\"" | ("a" | "\\t")+ ";"',
    "not": 'start: A B\nA: /[a-z\\n"]{0,6}/ & ~/(?s:.*)\\n\\n(?s:.*)/\nB: /(?s:.*)/ & ~(/(?s:.*)"(?s:.*)/ | "\\n")',
    "endless": 'start: even\neven: | "\\n" odd\nodd: "\\n" even | "\\"" odd',
    "cases": 'start: "straße\\n\\"K\\""i /(?i:ab\\n[c-e])+/ /(?-i:x)\\x{22}?/i',
    "controls": 'start: /[\\x00-\\x08]/ /[[:cntrl:]&&[^\\n]]{2}/ "\\u0001\\u007f\\x1f"? /\\f|\\v/',
    "verbose": "start: /a b\\ # a comment\n [\\ \\n] {1,2} /x",
}
REGEXES = {
    "any": r"(?s).*",
    "line": r".+",
    "words": r"\w+(\s+\w+){0,3}",
    "spaces": r"\s*\S+\s*",
    "digits": r"^\d{1,3}(?:[.,]\D)?$",
    "path": r'([A-Za-z]:\\|/)?([^\\/:*?"<>|\r\n]+[\\/])*[^\\/:*?"<>|\r\n]*',
    "class": r"[]\n-]+[^]a]?[\[\]^]{0,2}",
    "sets": r"[\w--[aeiou]]+[[^\s]&&\W]?|[\x00-\x20~~\n]",
    "letters": r"(?P<first>\p{Lu})\pL?(?i)z(?-i:Z)|y",
    "lazy": r"(a|\n)*?\"{2,}?b??",
    "nullable": r"(\n?\"?\\?){1,3}(a|)*",
    "ascii": r"(?-u:\w\s)\u0022[\u{5c}\x7f]",
}
FORMS = {name: StructuredOutputs(grammar=text) for name, text in GRAMMARS.items()} | {
    name: StructuredOutputs(regex=text) for name, text in REGEXES.items()
}
EXAMPLES = {
    "patch": [
        '*** Begin Patch\n*** Add File: a "b"\\c.py\n+print("\\n")\n+\n*** End Patch',
        "*** Begin Patch\n*** Delete File: é\n*** Update File: a\n*** Move to: b\n@@ f\n \n-\t1\n+\t2\n*** End Patch\n",
        "*** Begin Patch\n*** Update File: a\n@@\n+\x01\n*** End of File\n*** End Patch",
    ],
    "query": ['SELECT a, "b\n" from c\n\tWHERE a = \'"\' and b <> 1 LIMIT 10;', "select * from t;"],
    "letters": ["ÉzZ", "AΩZZ", "Y"],
}
CHARS = st.sampled_from([*'ab"\\\n\r\t\x00\x1f\x7f\x0b /nu0+-*,;(){}[]é😀', "\u2028", "ſ", "K"])


@cache
def compiled(name: str, *, in_json: bool) -> LLMatcher:
    form = FORMS[name]
    return matcher_of(written(form) if in_json else form.grammar or f"start: /{regex_to_lark(form.regex or '', '')}/")


def matcher_of(told: str) -> LLMatcher:
    source = LLMatcher.grammar_from_lark(f'%llguidance {{"no_forcing": true}}\n{told}')
    made = LLMatcher(byte_tokenizer(), source, log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def accepts(matcher: LLMatcher, text: str) -> bool:
    matcher, wanted = matcher.deep_copy(), list(text.encode())
    return bool(matcher.try_consume_tokens(wanted) == len(wanted) and matcher.is_accepting())


def takes(name: str, text: str, *, in_json: bool = False) -> bool:
    matcher = compiled(name, in_json=in_json)
    return accepts(matcher, json.dumps(text, ensure_ascii=False)[1:-1] if in_json else text)


def drawn(name: str, rng: random.Random) -> str:
    """A text of a grammar, or the beginning of one."""
    if name in EXAMPLES and rng.random() < 0.7:
        return rng.choice(EXAMPLES[name])
    matcher = compiled(name, in_json=False).deep_copy()
    found, most = bytearray(), rng.choice([5, 20, 80])
    while len(found) < most and not (matcher.is_accepting() and rng.random() < 0.1):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        fits = [value for value in range(256) if mask >> value & 1]
        if not fits:
            break
        likely = [value for value in fits if value in b'\n"\\\r\t,']
        found.append(rng.choice(likely if likely and rng.random() < 0.4 else fits))
        assert matcher.consume_token(found[-1])
    return found.decode(errors="ignore")


def check(name: str, text: str) -> bool:
    """Whether a text keeps to a grammar; so must its JSON."""
    if "%ignore" in GRAMMARS.get(name, ""):
        text = text.rstrip()  # after the last terminal, Lark ignores what llguidance does not
    found = takes(name, text)
    assert takes(name, text, in_json=True) == found
    return found


@given(
    st.sampled_from(sorted(FORMS)),
    st.integers(0),
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from("+-="), CHARS), max_size=3),
)
def test_a_text_keeps_to_a_grammar_exactly_if_its_json_keeps_to_the_rewritten_one(
    name: str, seed: int, changes: list[tuple[int, str, str]]
) -> None:
    text = drawn(name, random.Random(seed))
    for place, kind, char in changes:
        at = place % (len(text) + 1)
        text = text[:at] + (char if kind != "-" else "") + text[at + (kind != "+") :]
    check(name, text)


@given(st.sampled_from(sorted(FORMS)), st.text(CHARS | st.characters(codec="utf-8"), max_size=12))
def test_so_does_any_text(name: str, text: str) -> None:
    check(name, text)


ATOMS = st.sampled_from(
    [
        *('"a"', r'"\n"', r'"\""', r'"\\"', r'"a\n"', r'"\"b"', r'"A\n"i', '""'),
        *(
            "/./",
            "/[^a]/",
            r"/[a\n]/",
            r"/\s/",
            "/.+/",
            "/.*/",
            '/[^"]*/',
            r'/\n|"/',
            r'/(a|\n)?"/',
            r"/\\./",
            "/(?s:.)b/",
        ),
    ]
)


def expressions(atoms: st.SearchStrategy[str], *, of_terminal: bool) -> st.SearchStrategy[str]:
    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        parts = st.lists(inner, min_size=2, max_size=3)
        marks = st.sampled_from([" ", " | ", " & "] if of_terminal else [" ", " | "])
        joined = st.builds(lambda mark, some: f"({mark.join(some)})", marks, parts)
        repeated = st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?", "~2", "{0,2}", "{1,}"]))
        others = [st.builds("(/(?s:.*)/ & ~{})".format, inner)] if of_terminal else []
        return st.one_of(joined, repeated, *others)

    return st.recursive(atoms, larger, max_leaves=6)


@given(
    expressions(ATOMS | st.just("x") | st.just("A"), of_terminal=False),
    expressions(ATOMS | st.just("A"), of_terminal=False),
    expressions(ATOMS, of_terminal=True),
    st.lists(st.text('aAb"\\\n', max_size=6), min_size=8, max_size=8),
)
def test_so_does_any_text_for_any_grammar(start: str, inner: str, terminal: str, texts: list[str]) -> None:
    told = f"start: {start}\nx: {inner}\nA: {terminal}"
    plain, made = matcher_of(told), matcher_of(written(StructuredOutputs(grammar=told)))
    for text in texts:
        assert accepts(plain, text) == accepts(made, json.dumps(text)[1:-1]), (told, text)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_some_texts_keep_to_each(name: str) -> None:
    rng = random.Random(name)
    assert sum(check(name, drawn(name, rng)) for _ in range(40)) > 3
    assert all(check(name, text) for text in EXAMPLES.get(name, ()))


def test_escapes_are_those_of_json() -> None:
    made = LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_lark(written(StructuredOutputs(regex="(?s:.)"))))
    for text, is_one in {"a": True, "é": True, r"\n": True, r"\u001f": True, r"\u001F": False, r"\/": False}.items():
        matcher = made.deep_copy()
        assert (matcher.try_consume_tokens(list(text.encode())) == len(text.encode())) == is_one, text
    for text in ("\n", '"', r"\u000a", r"\u0061", r"\x"):
        assert made.deep_copy().try_consume_tokens(list(text.encode())) < len(text), text


REFUSED = {
    'start: %json {"type": "object"}': "%json",
    'start: %lark {\nstart: "a"\n}': "%lark",
    'start: %regex {"substring_chars": "ab"}': "%regex",
    'start: "a"\n%llguidance {"no_forcing": true}': "%llguidance",
    "start: <[65]>": "<[65]>",
    "start: <|end|>": "<|end|>",
    "start: @other": "@other",
    'start: x "b"\nx[lazy]: /a+/': "attributes",
    'start: "a"\n%declare B': "declare",
    'start: "a"\n%override start: "b"': "override",
    'start: a{"b"}\na{x}: x': "params",
    'start: A\nA.2: "a"': "priority",
    "start: /a(?=b)/": "look-around",
    "start: /a(?!b)/": "look-around",
    "start: /(?<=a)b/": "look-",
    r"start: /(a)\1/": "backreferences",
    r"start: /\ba/": "lookarounds",
    "start: /a^b/": "lookarounds",
    "start: b": "unknown name",
    'start: "a" b\nb: "c" b': "no text",
    "%import python.NAME\nstart: NAME": "python.NAME",
    'begin: "a"': "start",
    "start: 'a'": "lexer error",
    "start: /" + "(" * 70 + "a" + ")" * 70 + "/": "deeper",
    "start: /" + r"a?\n?" * 600 + "/": "too long",
    "start: r0\n" + "\n".join(f'r{n}: (((r{n + 1} "\\n"?) "x")*)* /./' for n in range(400)) + "\nr400: /b/": "levels",
    "start: T0\n" + "\n".join(f'T{n}: T{n + 1} "\\n"?' for n in range(400)) + '\nT400: "b"': "too deep",
}


@pytest.mark.parametrize(("grammar", "words"), REFUSED.items(), ids=[text[:30] for text in REFUSED])
def test_what_cannot_be_rewritten_is_refused_by_name(grammar: str, words: str) -> None:
    with pytest.raises(RequestError, match="a text in JSON cannot be kept to it") as caught:
        written(StructuredOutputs(grammar=grammar))
    assert words in str(caught.value)

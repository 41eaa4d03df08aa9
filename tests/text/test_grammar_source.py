"""GBNF is read as llama.cpp means it, and grammars that repeat too much are refused before they are compiled."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from karat.errors import RequestError
from karat.text.grammar_source import MAX_REPEATS, check_repeats, in_lark
from karat.text.schema_rewriting import byte_tokenizer

JSON = r"""
# as llama.cpp's collection has it in kind: objects, arrays, strings with escapes, numbers, bounded white space
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""


def accepts(lark: str, text: str) -> bool:
    matcher = LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("gbnf", "right", "wrong"),
    [
        ('root ::= "yes" | "no"', ["yes", "no"], ["", "yesno", "maybe"]),
        ('root ::= [0-9]+ ("," [0-9]+)*', ["1", "12,3"], ["", "1,", ",1"]),
        ('root ::= line{2,3}\nline ::= "- " [a-z ]+ "\\n"', ["- a\n- b c\n"], ["- a\n", "- a\n" * 4]),
        ('root ::= ([^"\\n] | "\\"")*', ["", 'a "b" c'], ["a\nb"]),
    ],
)
def test_gbnf(gbnf: str, right: list[str], wrong: list[str]) -> None:
    lark = in_lark(gbnf)
    assert [accepts(lark, text) for text in right] == [True] * len(right)
    assert [accepts(lark, text) for text in wrong] == [False] * len(wrong)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(st.characters(min_codepoint=32), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=3))
def test_the_json_of_llama_cpp_takes_json(value: dict[str, object]) -> None:
    lark = in_lark(JSON)
    text = json.dumps(value, separators=(",", ":"))
    assert accepts(lark, text) and not accepts(lark, text[:-1]) and not accepts(lark, text + ",")


@pytest.mark.parametrize("grammar", ['start: "a"', "%llguidance {}\nstart: /a/", 'start: "::="'])
def test_lark_stays_as_it_is(grammar: str) -> None:
    if "%" in grammar:
        with pytest.raises(RequestError, match="%llguidance is not supported"):
            in_lark(grammar)
    else:
        assert in_lark(grammar) == grammar


@pytest.mark.parametrize("gbnf", ["root ::= x", "root ::= ((", 'a ::= "b"', "root ::= " + "(" * 5000])
def test_what_is_no_gbnf_says_which_languages_there_are(gbnf: str) -> None:
    with pytest.raises(RequestError, match=r"read as GBNF: .*expected GBNF or llguidance's Lark syntax"):
        in_lark(gbnf)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: ("a"{60}){60}',
        'start: b{60}\nb: "a"{60}',
        'start: b{20}\nb: c{20}\nc: "a"{20}',
        'start: b{60} "x"\nb: ("a" | start){60}',
        "start: /a{60}/{60}",
        'start: ("a"~60)~60',
    ],
)
def test_repetitions_of_repetitions_are_few(grammar: str) -> None:
    with pytest.raises(RequestError, match=f"may repeat a part .* expected at most {MAX_REPEATS}"):
        in_lark(grammar)


def test_repetitions_side_by_side_do_not_multiply() -> None:
    rules = "\n".join(f'r{i}: "a"{{100}} "b"{{0,100}}' for i in range(200))
    in_lark(f"start: {' '.join(f'r{i}' for i in range(200))}\n{rules}")
    check_repeats("regex", "[a-z]{100}x{100}(y{5}){20}")
    with pytest.raises(RequestError, match=re.escape("regex may repeat a part 1e+04 times")):
        check_repeats("regex", "(x{100}){100}")


@pytest.mark.parametrize("text", ["kOY?", "yes", "a{60}", " "])
def test_a_text_without_rules_is_left_to_the_compiler(text: str) -> None:
    assert in_lark(text) == text

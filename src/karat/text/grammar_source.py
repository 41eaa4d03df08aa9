"""Grammars and expressions as their author wrote them: GBNF read as Lark, and limits of what they repeat."""

import re
from graphlib import TopologicalSorter
from math import prod

from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

from karat.errors import RequestError

MAX_REPEATS = 2000  # of a part of an expression or a grammar, and of items that a schema demands
MAX_RULES = 500  # definitions of a grammar: the compiler follows them by recursion
_REPEAT = re.compile(r"(.?)(?:\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}|~\s*(\d+)(?:\s*\.\.\s*(\d+))?)")
_CLASS = re.compile(r"/(\[(?:\\.|[^\]\\])*\])/")  # an expression that is a class alone
_REPEATED = frozenset(")}?*+/")  # the ends of what may have repetitions inside
_DIRECTIVE = re.compile(r"%(?:json|lark|llguidance|regex)\b")
_DEFINITION = re.compile(r"^\s*[?!]?([A-Za-z_]\w*)[^:\n]*:", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_]\w*")


def in_lark(grammar: str) -> str:
    """A grammar in llguidance's Lark syntax, checked; it may be given in GBNF, llama.cpp's. RequestError."""
    if not is_lark_syntax(grammar) and "::=" in grammar:
        try:
            grammar = gbnf_to_lark(grammar).removeprefix("%llguidance {}")
        except Exception as error:  # the library raises nothing narrower for a rule that is missing
            raise _refused(
                f"grammar, read as GBNF: {' '.join(str(error).split())[:200]}; expected GBNF or llguidance's Lark "
                "syntax; change it or leave it out"
            ) from error
    if found := _DIRECTIVE.search(grammar):
        raise _refused(f"grammar: {found[0]} is not supported; use json or regex, or leave it out")
    if len(_DEFINITION.findall(grammar)) > MAX_RULES or grammar.count("->") > MAX_RULES:
        raise _refused(f"grammar has too many rules; expected at most {MAX_RULES}; shorten it")
    _require_few("grammar", _repeats_of_rules(grammar))
    return grammar


def check_repeats(what: str, expression: str) -> None:
    """RequestError where repetitions of repetitions may come to more than MAX_REPEATS."""
    _require_few(what, _repeats(expression))


def _repeats(text: str) -> int:
    """How often a part is repeated at most: only a repetition of what may hold others multiplies them."""
    outer, inner = [1], [1]
    for before, *numbers in _REPEAT.findall(_CLASS.sub(r"\1", text)):
        count = max((int(number[:12]) for number in numbers if number), default=1)
        (outer if before in _REPEATED else inner).append(max(1, count))
    return prod(outer) * max(inner) if len(outer) < 1000 else MAX_REPEATS + 1


def _repeats_of_rules(grammar: str) -> int:
    """The same along every chain of definitions. Definitions that refer to each other in a circle count as one."""
    heads = list(_DEFINITION.finditer(grammar))
    ends = [*(head.start() for head in heads[1:]), len(grammar)][: len(heads)]
    bodies: dict[str, str] = {}
    for head, end in zip(heads, ends, strict=True):
        bodies[head[1]] = bodies.get(head[1], "") + grammar[head.end() : end]
    uses = {name: {word for word in _NAME.findall(body) if word in bodies} for name, body in bodies.items()}
    reached = {name: _reached(name, uses) for name in bodies}
    circle = {name: min({name, *(other for other in reached[name] if name in reached[other])}) for name in bodies}
    own: dict[str, int] = {}
    after: dict[str, set[str]] = {}
    for name, body in bodies.items():
        own[circle[name]] = min(own.get(circle[name], 1) * _repeats(body), MAX_REPEATS + 1)
        after.setdefault(circle[name], set()).update(circle[word] for word in uses[name])
    total: dict[str, int] = {}
    for name in TopologicalSorter({name: others - {name} for name, others in after.items()}).static_order():
        total[name] = own[name] * max((total[other] for other in after[name] - {name}), default=1)
    return max(total.values(), default=1)


def _reached(name: str, uses: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = uses[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _require_few(what: str, repeats: int) -> None:
    if repeats > MAX_REPEATS:
        raise _refused(
            f"{what} may repeat a part {repeats:.0e} times; expected at most {MAX_REPEATS}; lower the numbers in its "
            "braces"
        )


def _refused(why: str) -> RequestError:
    return RequestError(f"structured_outputs: {why}", param="structured_outputs")

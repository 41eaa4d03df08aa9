"""A Lark grammar of a text, rewritten as a grammar of the text in JSON: of what stands between the quotes.

llguidance ends a terminal at the first byte that cannot extend it, and never goes back. Take `/.+/ "\\n"` and
the text `ab`, line end, in JSON `ab\\n`. The backslash extends `.+`, which may go on with `\\"`; at the `n` it is too
late to end `.+` before the backslash. So the backslash of an escape belongs to the terminal before it, and the next
terminal begins with the rest of the escape. A rule or terminal has up to four forms, one for each `Mode`: whether the
backslash of its first character has been read, and whether it ends with that of the character after it.
"""

import json
import re
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import product

from llguidance import LLMatcher, LLParserLimits, regex_to_lark

from karat.errors import RequestError
from karat.request import StructuredOutputs, shown
from karat.text import lark_syntax as syntax
from karat.text.json_regex import (
    NOTHING,
    Escaped,
    UnwritableError,
    both,
    choice,
    literal,
    negated,
    of_regex,
    one_of,
    repeated,
    sequence,
)
from karat.text.schema_rewriting import byte_tokenizer

Mode = tuple[int, int]
Alternatives = tuple[tuple[str, ...], ...]  # of a rule, each a sequence of names; () is no text at all, ((),) the empty
Forms = Mapping[Mode, Alternatives]

_MODES: tuple[Mode, ...] = ((0, 0), (0, 1), (1, 0), (1, 1))
_EMPTY: Alternatives = ((),)
_NO_TEXT = '""'
_MAX_RULES = 10_000  # of the grammar that is made
_MAX_CHAIN = 1000  # of rules that refer to each other: the compiler follows them by recursion


def written(form: StructuredOutputs) -> str:
    """A Lark grammar of what JSON writes between quotes for a text of this form, a regex or a grammar.

    RequestError, which names it, for what llguidance does not take, and for what cannot be rewritten.
    """
    told = form.grammar if form.regex is None else f"start: /{regex_to_lark(form.regex, '')}/"
    assert told is not None
    try:
        _check(told)
        return _LarkRewriting(syntax.read(told)).grammar()
    except (UnwritableError, RecursionError) as error:
        why = str(error) if isinstance(error, UnwritableError) else "it is nested too deep"
        raise RequestError(
            f"{'grammar' if form.regex is None else 'regex'}: {why}: a text in JSON cannot be kept to it; expected "
            "rules, terminals, strings and regexes; change it, or take the format text"
        ) from error


def _check(grammar: str) -> None:
    """What is written wrong is told by llguidance."""
    limits = LLParserLimits(initial_lexer_fuel=500_000, max_grammar_size=100_000, verbose_errors=False)
    source = LLMatcher.grammar_from_lark(f'%llguidance {{"no_forcing": true}}\n{grammar}')
    matcher = LLMatcher(byte_tokenizer(), source, log_level=0, limits=limits)
    if matcher.is_error():
        told = re.split(r"\n\s*\d+ \| |<non-verbose/>", matcher.get_error())[0]  # without the grammar
        raise UnwritableError(" ".join(told.split())[:300])


class _LarkRewriting:
    """Of one grammar. Its own rules and terminals are named by numbers."""

    def __init__(self, read: syntax.LarkGrammar) -> None:
        self._read = read
        self._terminals: dict[str, str] = {}  # names by expressions
        self._rules: dict[str, Alternatives] = {}
        self._named: dict[Alternatives, str] = {}
        self._escaped: dict[str, Escaped] = {}
        self._used = ["start"]
        self._between = [self._star(self._token(self._terminal(read.ignored)))] if read.ignored is not None else []

    def grammar(self) -> str:
        for name in self._used:  # which grows
            for mode, found in self._rule(self._read.rules[name]).items():
                self._rules[self._form(name, mode)] = found
        rules = _productive(self._rules, self._terminals.values())
        first = self._form("start", (0, 0))
        if first not in rules:
            raise UnwritableError("no text keeps to it")
        lines = [f"start: {first}"]
        for name in _reached(rules, first):
            ways = [" ".join(way) or _NO_TEXT for way in rules[name]]
            lines.append(f"{name}: {' | '.join(ways)}")
        return "\n".join([*lines, *(f"{name}: {expression}" for expression, name in self._terminals.items())])

    def _form(self, rule: str, mode: Mode) -> str:
        return f"r{self._used.index(rule)}_{mode[0]}{mode[1]}"

    # -- terminals

    def _terminal(self, node: syntax.Node) -> Escaped:
        match node:
            case syntax.LarkSequence(parts):
                return sequence([self._terminal(part) for part in parts])
            case syntax.LarkChoice(parts):
                return choice([self._terminal(part) for part in parts])
            case syntax.Both(parts):
                return both([self._terminal(part) for part in parts])
            case syntax.Negated(part):
                return negated(self._terminal(part))
            case syntax.Repeated(part, least, most):
                return repeated(self._terminal(part), least, most)
            case syntax.LarkText(text, flags):
                return of_regex(_quoted(text), flags) if flags else literal(text)
            case syntax.Range(first, last):
                return one_of(f"[{_quoted(first)}-{_quoted(last)}]")
            case syntax.Regex(text, flags):
                return of_regex(text, flags)
            case syntax.Name(name):
                return self._defined(name)
        raise UnwritableError(f"{shown(node)}")

    def _defined(self, name: str) -> Escaped:
        """A terminal of the grammar, by its name."""
        if name not in self._escaped:
            if name not in self._read.terminals:
                raise UnwritableError(f"{name} is not defined")
            found = self._terminal(self._read.terminals[name]).as_lark()
            rest = None if found.rest is None else self._named_terminal(found.rest)
            self._escaped[name] = Escaped(self._named_terminal(found.whole), rest, found.nullable, in_lark=True)
        return self._escaped[name]

    def _named_terminal(self, expression: str) -> str:
        return self._terminals.setdefault(expression, f"T{len(self._terminals)}")

    def _token(self, part: Escaped) -> Forms:
        """The forms of a terminal where a rule has it."""
        if part == NOTHING:
            return _same()
        part, backslash = part.as_lark(), json.dumps("\\")
        forms: dict[Mode, Alternatives] = dict.fromkeys(_MODES, ())
        for start, expression in ((0, part.whole), (1, part.rest)):
            if expression is not None:
                forms[start, 0] = ((self._named_terminal(expression),),)
                forms[start, 1] = ((self._named_terminal(f"{expression} {backslash}"),),)
        if part.nullable:
            forms[1, 1] = self._short(_EMPTY + forms[1, 1])
        return forms

    # -- rules

    def _rule(self, node: syntax.Node) -> Forms:
        match node:
            case syntax.LarkSequence(parts):
                return self._all([self._rule(part) for part in parts])
            case syntax.LarkChoice(parts):
                return self._any([self._rule(part) for part in parts])
            case syntax.Repeated(part, least, most):
                return self._repeated(self._rule(part), least, most)
            case syntax.Name(name) if name in self._read.rules:
                if name not in self._used:
                    self._used.append(name)
                return {mode: ((self._form(name, mode),),) for mode in _MODES}
            case syntax.LarkText("", _):
                return _same()
        return self._all([self._token(self._terminal(node)), *self._between])

    def _all(self, parts: list[Forms]) -> Forms:
        """One after the other. Halves, so that rules refer to each other in few levels."""
        if len(parts) < 2:
            return parts[0] if parts else _same()
        before, after = self._all(parts[: len(parts) // 2]), self._all(parts[len(parts) // 2 :])
        return {
            (start, end): self._short(
                tuple(
                    one + other
                    for middle in (0, 1)
                    for one, other in product(before[start, middle], after[middle, end])
                )
            )
            for start, end in _MODES
        }

    def _any(self, parts: list[Forms]) -> Forms:
        return {mode: self._short(tuple(way for part in parts for way in part[mode])) for mode in _MODES}

    def _star(self, part: Forms) -> Forms:
        number = len(self._rules)
        forms: Forms = {(start, end): ((f"s{number}_{start}{end}",),) for start, end in _MODES}
        for start, end in _MODES:
            more = (forms[start, middle][0] + way for middle in (0, 1) for way in part[middle, end])
            self._add(f"s{number}_{start}{end}", (*(_EMPTY if start == end else ()), *more))
        return forms

    def _repeated(self, part: Forms, least: int, most: int | None) -> Forms:
        found = [self._power(part, least)]
        if most is None:
            found.append(self._star(part))
        elif most > least:
            found.append(self._power(self._any([_same(), part]), most - least))
        return self._all(found)

    def _power(self, part: Forms, times: int) -> Forms:
        """Exactly so often."""
        found = []
        while times:
            if times & 1:
                found.append(part)
            times >>= 1
            if times:
                part = self._all([part, part])
        return self._all(found)

    def _short(self, ways: Alternatives) -> Alternatives:
        """The same in at most one name."""
        ways = tuple(dict.fromkeys(ways))
        if len(ways) == 0 or (len(ways) == 1 and len(ways[0]) < 2):
            return ways
        if ways not in self._named:
            self._named[ways] = f"a{len(self._named)}"
            self._add(self._named[ways], ways)
        return ((self._named[ways],),)

    def _add(self, name: str, ways: Alternatives) -> None:
        if len(self._rules) >= _MAX_RULES:
            raise UnwritableError("the grammar is too large")
        self._rules[name] = ways


def _same() -> Forms:
    """The forms of the empty text."""
    return {(start, end): _EMPTY if start == end else () for start, end in _MODES}


def _productive(rules: Mapping[str, Alternatives], terminals: Iterable[str]) -> dict[str, Alternatives]:
    """The rules and alternatives to which some text keeps."""
    good = set(terminals)
    users: dict[str, list[str]] = {}
    for name, ways in rules.items():
        for inner in {each for way in ways for each in way}:
            users.setdefault(inner, []).append(name)
    waiting = deque(rules)
    while waiting:
        name = waiting.popleft()
        if name not in good and any(all(each in good for each in way) for way in rules[name]):
            good.add(name)
            waiting.extend(users.get(name, ()))
    kept = {name: tuple(way for way in ways if all(each in good for each in way)) for name, ways in rules.items()}
    return {name: ways for name, ways in kept.items() if ways}


def _reached(rules: Mapping[str, Alternatives], first: str) -> list[str]:
    """The rules that are used, depth first, as the compiler follows them."""
    seen, chain = [first], [(name for way in rules[first] for name in way)]
    known = {first}
    while chain:
        name = next(chain[-1], None)
        if name is None:
            chain.pop()
        elif name in rules and name not in known:
            known.add(name)
            seen.append(name)
            chain.append(each for way in rules[name] for each in way)
            if len(chain) > _MAX_CHAIN:
                raise UnwritableError("its rules refer to each other in too many levels")
    return seen


def _quoted(text: str) -> str:
    """A text as a regex."""
    return "".join(f"\\x{{{ord(char):x}}}" for char in text)

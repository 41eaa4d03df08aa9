"""Grammars in llguidance's Lark syntax, read into rules and terminals: what tools' grammars use of it."""

import json
import re
from dataclasses import dataclass, field

from karat.text.json_regex import UnwritableError

_MAX_DEPTH = 64  # of groups
_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t]|(?:\#|//)[^\n]*)+)
    |(?P<line>(?:\r?\n)+[ \t]*)
    |(?P<string>"(?:\\.|[^"\\\n])*"i?)
    |(?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    |(?P<name>!?[_?]{0,2}[A-Za-z][A-Za-z0-9_\-]*)
    |(?P<number>[0-9]+)
    |(?P<directive>%[a-z]+)
    |(?P<special><[^<>\s]+>|@[A-Za-z0-9_\-]*)
    |(?P<mark>->|\.\.|::|[:,.(){}\[\]~|&=+*?])""",
    re.VERBOSE,
)
_COMMON = {  # of Lark's library, as llguidance has them
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9A-Fa-f]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "_EXP": "[Ee][+-]?[0-9]+",
    "FLOAT": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[Ee][+-]?[0-9]+)?|[0-9]+[Ee][+-]?[0-9]+",
    "NUMBER": r"[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[Ee][+-]?[0-9]+)?|[0-9]+[Ee][+-]?[0-9]+",
    "ESCAPED_STRING": r'"(?:[^"\\]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "C_COMMENT": r"\/\*[^*]*\*+(?:[^\/*][^*]*\*+)*\/",
    "SQL_COMMENT": r"--[^\n]*",
}
_COMMON |= {f"SIGNED_{name}": f"[+-]?(?:{_COMMON[name]})" for name in ("FLOAT", "NUMBER")}


@dataclass(frozen=True, slots=True)
class LarkText:
    text: str
    flags: str = ""


@dataclass(frozen=True, slots=True)
class Range:
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class Regex:
    """`text` as it stands between the slashes."""

    text: str
    flags: str = ""


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class LarkSequence:
    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class LarkChoice:
    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Both:
    """What is all of them."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """Any text but these."""

    part: "Node"


@dataclass(frozen=True, slots=True)
class Repeated:
    """`most` None: without an end."""

    part: "Node"
    least: int
    most: int | None


Node = LarkText | Range | Regex | Name | LarkSequence | LarkChoice | Both | Negated | Repeated


@dataclass(slots=True)
class LarkGrammar:
    """By their names; `ignored` may stand between terminals."""

    rules: dict[str, Node] = field(default_factory=dict)
    terminals: dict[str, Node] = field(default_factory=dict)
    ignored: Node | None = None


def read(text: str) -> LarkGrammar:
    """UnwritableError, which names it, for what is none of the syntax here."""
    return _LarkReading(text).grammar()


class _LarkReading:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise UnwritableError(f"{text[at : at + 20]!r}")
            at = found.end()
            if found.lastgroup != "space":
                self._tokens.append((found.lastgroup or "", found[0]))
        self._tokens.append(("end", ""))
        self._at = 0

    def grammar(self) -> LarkGrammar:
        found = LarkGrammar()
        while True:
            kind, word = self._take()
            if kind == "end":
                break
            if kind == "name":
                self._define(found, word.lstrip("!").removeprefix("?"))
            elif word == "%import":
                self._import(found)
            elif word == "%ignore":
                ignored = self._choice(0)
                found.ignored = ignored if found.ignored is None else LarkChoice((found.ignored, ignored))
            elif kind != "line":
                raise UnwritableError(word)
        if "start" not in found.rules:
            raise UnwritableError("no rule is named start")
        return found

    def _define(self, found: LarkGrammar, name: str) -> None:
        word = self._take()[1]
        if word != ":":
            raise UnwritableError(f"{word} after the name {name} (attributes, priorities, templates)")
        of = found.terminals if _is_terminal(name) else found.rules
        if name in of:
            raise UnwritableError(f"{name} is defined twice")
        of[name] = self._choice(0)

    def _import(self, found: LarkGrammar) -> None:
        words = []
        while self._peek()[0] not in ("line", "end"):
            words.append(self._take()[1])
        match words:
            case ["common", ".", name] | ["common", ".", name, "->", _]:
                pairs = [(name, words[-1])]
            case ["common", "(", *names, ")"]:
                pairs = [(name, name) for name in names if name != ","]
            case _:
                pairs = [(" ".join(words), "")]
        for name, own in pairs:
            if name not in _COMMON:
                raise UnwritableError(f"%import {name}")
            found.terminals[own] = Regex(_COMMON[name])

    def _choice(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise UnwritableError(f"it has groups deeper than {_MAX_DEPTH}")
        parts = [self._both(depth)]
        while self._skip_to("|"):
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else LarkChoice(tuple(parts))

    def _both(self, depth: int) -> Node:
        parts = [self._sequence(depth)]
        while self._peek()[1] == "&":
            self._take()
            parts.append(self._sequence(depth))
        if self._peek()[1] == "->":  # a name in the tree
            self._take()
            self._take()
        return parts[0] if len(parts) == 1 else Both(tuple(parts))

    def _sequence(self, depth: int) -> Node:
        parts = []
        while self._peek()[0] not in ("line", "end") and self._peek()[1] not in ("|", "&", "->", ")", "]"):
            parts.append(self._quantified(depth))
        return parts[0] if len(parts) == 1 else LarkSequence(tuple(parts))

    def _quantified(self, depth: int) -> Node:
        part = self._atom(depth)
        match self._peek()[1]:
            case "+" | "*" | "?" as word:
                self._take()
                return Repeated(part, 1 if word == "+" else 0, 1 if word == "?" else None)
            case "~":
                self._take()
                first = self._number()
                if self._peek()[1] != "..":
                    return Repeated(part, first, first)
                self._take()
                return Repeated(part, first, self._number())
            case "{":
                self._take()
                least = 0 if self._peek()[1] == "," else self._number()
                most: int | None = least
                if self._peek()[1] == ",":
                    self._take()
                    most = None if self._peek()[1] == "}" else self._number()
                self._expect("}")
                return Repeated(part, least, most)
        return part

    def _atom(self, depth: int) -> Node:
        kind, word = self._take()
        if kind == "string":
            if self._peek()[1] != "..":
                return LarkText(_unquoted(word.removesuffix("i")), "i" if word.endswith("i") else "")
            self._take()
            return Range(_unquoted(word), _unquoted(self._take()[1]))
        if kind == "regex":
            text, _, flags = word[1:].rpartition("/")
            return Regex(text, flags)
        if word == "(":
            inner = self._choice(depth + 1)
            self._expect(")")
            return inner
        if word == "[":
            inner = self._choice(depth + 1)
            self._expect("]")
            return Repeated(inner, 0, 1)
        if word == "~":
            return Negated(self._atom(depth + 1))
        if kind == "name" and not (self._peek()[1] == "{" and self._peek(1)[0] == "name"):
            return Name(word)
        raise UnwritableError(word or "the end of the grammar")

    def _number(self) -> int:
        kind, word = self._take()
        if kind != "number":
            raise UnwritableError(f"{word} where a number is expected")
        return int(word)

    def _expect(self, wanted: str) -> None:
        if (word := self._take()[1]) != wanted:
            raise UnwritableError(f"{word!r} where {wanted} is expected")

    def _skip_to(self, mark: str) -> bool:
        """Whether this mark comes, perhaps in a new line; then it is taken."""
        ahead = 1 if self._peek()[0] == "line" else 0
        if self._peek(ahead)[1] != mark:
            return False
        self._at += ahead + 1
        return True

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _take(self) -> tuple[str, str]:
        found = self._peek()
        self._at += 1
        return found


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _unquoted(word: str) -> str:
    """A string without its quotes: JSON's, with escapes as \\x41 too."""
    try:
        text: str = json.loads(re.sub(r"\\(?:x([0-9A-Fa-f]{2})|.)", lambda m: f"\\u00{m[1]}" if m[1] else m[0], word))
    except ValueError as error:
        raise UnwritableError(word) from error
    return text

"""Regexes of a text, rewritten as expressions of the text as JSON writes it between quotes (`Escaped`).

The dialect is that of Rust's regex crate. A quote, a backslash and a control character have one escape each, that of
Python's json; every other character stands for itself.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from llguidance import LLMatcher

from karat.text.schema_rewriting import byte_tokenizer

_SPECIAL = ('"', "\\", *map(chr, range(32)))
_PLAIN = r'[^"\\\x00-\x1f]'
_PLAIN_ASCII = r"[ !#-\[\]-\x7f]"  # where a class without the flag u may have nothing else
_MAX_DEPTH = 64  # of groups in a regex
_MAX_LENGTH = 200_000  # of an expression
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_NUMBERED = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|[xuU]\{\s*([0-9A-Fa-f]+)\s*\})")
_GROUP = re.compile(r"\((?:\?(?:P?<(?P<name>[^>=!]+)>|(?P<on>[A-Za-z]*)(?P<off>-[A-Za-z]+)?(?P<end>[:)])))?")
_COUNT = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d+)?\s*)?\}")
_ASCII_CLASS = re.compile(r"\[:\^?[a-z]+:\]")


class UnwritableError(Exception):
    """What cannot be rewritten, in words for whoever wrote it."""


@dataclass(frozen=True, slots=True)
class Escaped:
    """Texts as JSON writes them: `whole`, a regex, or an expression in Lark where `in_lark`.

    `rest`: what comes after the first backslash of those that begin with one; None where none does.
    """

    whole: str
    rest: str | None
    nullable: bool
    in_lark: bool = False

    def as_lark(self) -> "Escaped":
        """As expressions of a Lark terminal, that a quantifier may follow."""
        if self.in_lark:
            return self
        return Escaped(_slashed(self.whole), None if self.rest is None else _slashed(self.rest), self.nullable, True)


NOTHING = Escaped("", None, True)


def literal(text: str) -> Escaped:
    """Exactly this text."""
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    return Escaped(_quoted(written), _quoted(written[1:]) if written.startswith("\\") else None, not text)


def sequence(parts: Sequence[Escaped]) -> Escaped:
    """One after the other."""
    parts, in_lark = _alike([part for part in parts if part != NOTHING])
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    wholes = [part.whole for part in parts]
    rests: list[str] = []
    length = left = sum(map(len, wholes))
    for number, part in enumerate(parts):
        left -= len(part.whole)
        if part.rest is not None:
            length += left  # before it is written: it grows with the square
            _check_length(length)
            rests.append(_after_another([part.rest, *wholes[number + 1 :]], in_lark))
        if not part.nullable:
            break
    return _made(_after_another(wholes, in_lark), rests, all(part.nullable for part in parts), in_lark)


def choice(parts: Sequence[Escaped]) -> Escaped:
    """One of them."""
    parts, in_lark = _alike(parts)
    if len(parts) == 1:
        return parts[0]
    rests = [part.rest for part in parts if part.rest is not None]
    whole = _one_of_several([part.whole for part in parts], in_lark)
    return _made(whole, rests, any(part.nullable for part in parts), in_lark)


def repeated(part: Escaped, least: int, most: int | None) -> Escaped:
    """`least` to `most` times; None: as often as one likes."""
    if most == 0 or part == NOTHING:
        return NOTHING
    rests = []
    if part.rest is not None:
        again = [_times(part, least - 1, None if most is None else most - 1)] if most != 1 else []
        rests.append(_after_another([part.rest, *again], part.in_lark))
    return _made(_times(part, least, most), rests, least == 0 or part.nullable, part.in_lark)


def both(parts: Sequence[Escaped]) -> Escaped:
    """What is all of them."""
    if len(parts) == 1:
        return parts[0]
    parts = [part.as_lark() for part in parts]
    rests = [part.rest for part in parts if part.rest is not None]
    rest = [f"({' & '.join(rests)})"] if len(rests) == len(parts) else []
    return _made(f"({' & '.join(part.whole for part in parts)})", rest, all(part.nullable for part in parts), True)


def negated(part: Escaped) -> Escaped:
    """Every other text."""
    part, every = part.as_lark(), repeated(one_of(".", "s"), 0, None).as_lark()
    assert every.rest is not None
    rest = every.rest if part.rest is None else f"({every.rest} & (~{part.rest}))"
    return _made(f"({every.whole} & (~{part.whole}))", [rest], not part.nullable, True)


def one_of(source: str, flags: str = "") -> Escaped:
    """The characters of a class: a regex of one character."""
    flagged = f"(?{flags}:{source})" if flags else source
    special, has_others = _held(flagged)
    if not special:
        return Escaped(flagged, None, False)
    rest = _escapes(special)
    wholes = [rf"\\{rest}"]
    if has_others:
        allowed = _PLAIN_ASCII if "u" in flags else _PLAIN
        plain = allowed if source == "." else f"[{source}&&{allowed}]"
        wholes.insert(0, f"(?{flags}:{plain})" if flags else plain)
    return Escaped(_one_of_several(wholes, in_lark=False), rest, False)


def of_regex(text: str, flags: str = "") -> Escaped:
    """A regex that llguidance takes, as it stands between slashes in Lark. UnwritableError for what is none of ours."""
    return _RegexReading(text).choice(flags, 0)


class _RegexReading:
    """Of one regex, from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def choice(self, flags: str, depth: int) -> Escaped:
        """Alternatives, up to the end of the group."""
        if depth > _MAX_DEPTH:
            raise UnwritableError(f"a regex has groups deeper than {_MAX_DEPTH}")
        found: list[Escaped] = []
        parts: list[Escaped] = []
        while (char := self._next(flags)) not in ("", ")"):
            if char == "|":
                self._at += 1
                found.append(sequence(parts))
                parts = []
            elif char == "(" and (group := self._group())["end"] == ")":
                flags = _changed(flags, group)
            elif char == "(":
                inner = self.choice(_changed(flags, group), depth + 1)
                self._at += 1
                parts.append(self._quantified(inner, flags))
            else:
                parts.append(self._quantified(self._one(char, flags), flags))
        return choice([*found, sequence(parts)])

    def _next(self, flags: str) -> str:
        """The next character that counts, unread."""
        while self._at < len(self._text):
            char = self._text[self._at]
            if "x" not in flags.partition("-")[0] or not (char.isspace() or char == "#"):
                return char
            end = self._text.find("\n", self._at) if char == "#" else self._at
            self._at = len(self._text) if end < 0 else end + 1
        return ""

    def _group(self) -> dict[str, str | None]:
        """The head of a group: its flags, and how it ends."""
        found = _GROUP.match(self._text, self._at)
        if found is None or self._text.startswith("(?", found.end() - 1):
            raise UnwritableError(f"{self._text[self._at : self._at + 4]} in a regex (look-around and the like)")
        self._at = found.end()
        return found.groupdict()

    def _one(self, char: str, flags: str) -> Escaped:
        start, kept = self._at, _of_chars(flags)
        if char == "[":
            self._at = self._class_end(start + 1)
            in_class = "x" + kept if "x" in flags.partition("-")[0] else kept
            return one_of(self._text[start : self._at], in_class)
        self._at += 1
        if char == ".":
            return one_of(char, kept)
        if char in "^$":
            return NOTHING  # llguidance takes them only where they say nothing
        if char != "\\":
            return _char(char, kept)
        if found := _NUMBERED.match(self._text, start):
            self._at = found.end()
            return _char(chr(int(next(filter(None, found.groups())), 16)), kept)
        char = self._text[start + 1 : start + 2]
        self._at += 1
        if char in ("A", "z"):
            return NOTHING
        if char in ("b", "B", "<", ">") or char.isdigit() or not char:
            raise UnwritableError(rf"\{char} in a regex (boundaries and back references)")
        if char in "pP":
            has_braces = self._text.startswith("{", self._at)
            self._at = self._text.find("}", self._at) + 1 if has_braces else self._at + 1
        if char in "pPdDsSwW":
            return one_of(self._text[start : self._at], kept)
        return _char(_CONTROLS.get(char, char), kept)

    def _class_end(self, at: int) -> int:
        """The place after a class, whose bracket stands before `at`."""
        if self._text.startswith("^", at):
            at += 1
        while self._text.startswith("-", at):
            at += 1
        if self._text.startswith("]", at):
            at += 1
        while at < len(self._text):
            char = self._text[at]
            if char == "]":
                return at + 1
            if char == "[":
                named = _ASCII_CLASS.match(self._text, at)
                at = named.end() if named else self._class_end(at + 1)
            else:
                at += 2 if char == "\\" else 1
        raise UnwritableError("a regex has a class without an end")

    def _quantified(self, part: Escaped, flags: str) -> Escaped:
        while (char := self._next(flags)) and char in "*+?{":
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char, (0, 0))
            if char == "{":
                found = _COUNT.match(self._text, self._at)
                if found is None:
                    raise UnwritableError(f"{self._text[self._at : self._at + 8]} in a regex")
                least = int(found[1])
                most = least if found[2] is None else None if found[3] is None else int(found[3])
                self._at = found.end()
            else:
                self._at += 1
            if self._text.startswith("?", self._at):
                self._at += 1  # lazy: the same texts
            part = repeated(part, least, most)
        return part


def _char(char: str, flags: str) -> Escaped:
    """A character; with the flag i its other cases too, none of which is escaped."""
    if "i" in flags.partition("-")[0] and (char.isalpha() or not char.isascii()):
        return one_of(f"[{char}]", flags)
    return literal(char)


def _changed(flags: str, group: dict[str, str | None]) -> str:
    """Flags that are on, and after a hyphen those that are off."""
    on, _, off = flags.partition("-")
    more, less = group["on"] or "", (group["off"] or "-")[1:]
    on = "".join(sorted({*on, *more} - {*less}))
    off = "".join(sorted({*off, *less} - {*more}))
    return f"{on}-{off}" if off else on


def _of_chars(flags: str) -> str:
    """The flags that say which characters a class has."""
    on, _, off = flags.partition("-")
    on = "".join(flag for flag in on if flag in "isR")
    return f"{on}-u" if "u" in off else on


@lru_cache(1024)
def _held(regex: str) -> tuple[tuple[str, ...], bool]:
    """The characters that JSON escapes among those of a regex of one character, and whether there are others."""
    matcher = LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_lark(f"start: /{regex}/"), log_level=0)
    if matcher.is_error():
        raise UnwritableError(f"{regex} in a regex")
    mask = int.from_bytes(matcher.compute_bitmask(), "little") & ((1 << 256) - 1)
    special = tuple(char for char in _SPECIAL if mask >> ord(char) & 1)
    return special, mask.bit_count() > len(special)


@cache
def _escapes(special: tuple[str, ...]) -> str:
    """A regex of their escapes without the backslash."""
    found = [json.dumps(char)[2:-1] for char in special]
    ways = [_quoted(escape) for escape in found if len(escape) == 1]
    for digit in "01":
        if ends := "".join(escape[-1] for escape in found if escape.startswith(f"u00{digit}")):
            ways.append(f"u00{digit}[{ends}]")
    return _one_of_several(ways, in_lark=False)


def _quoted(text: str) -> str:
    """A text as a regex between slashes."""
    return re.sub(r"[\\.+*?()|\[\]{}^$#&~/-]", r"\\\g<0>", text)


def _slashed(regex: str) -> str:
    return f"/{regex}/" if regex else json.dumps("")


def _alike(parts: Sequence[Escaped]) -> tuple[Sequence[Escaped], bool]:
    """All as regexes, or all in Lark."""
    in_lark = any(part.in_lark for part in parts)
    return [part.as_lark() for part in parts] if in_lark else parts, in_lark


def _after_another(expressions: Sequence[str], in_lark: bool) -> str:
    if not in_lark or len(expressions) == 1:
        return "".join(expressions)
    return f"({' '.join(expressions)})"


def _one_of_several(expressions: Sequence[str], in_lark: bool) -> str:
    if len(expressions) == 1:
        return expressions[0]
    return f"({' | '.join(expressions)})" if in_lark else f"(?:{'|'.join(expressions)})"


def _times(part: Escaped, least: int, most: int | None) -> str:
    least, no_end = max(0, least), "" if most is None else most
    mark = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most), f"{{{least},{no_end}}}")
    return f"({part.whole}{mark})" if part.in_lark else f"(?:{part.whole}){mark}"


def _made(whole: str, rests: Sequence[str], nullable: bool, in_lark: bool) -> Escaped:
    rest = _one_of_several(rests, in_lark) if rests else None
    _check_length(len(whole) + len(rest or ""))
    return Escaped(whole, rest, nullable, in_lark)


def _check_length(length: int) -> None:
    if length > _MAX_LENGTH:
        raise UnwritableError("a regex is too long")

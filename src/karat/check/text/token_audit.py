"""A model's files against each other: ends of texts, BOS, special tokens, ids. No other tokenizer takes part.

A *bug* has a name, and no right model has it. A *flag* may be meant. A *note* is common and worth knowing. The lines
between them were drawn on the tokenizers and templates of released models.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from karat.check.text.prompt import TokenFinding
from karat.text import Tokenizer

# How released models spell tokens that no text is meant to hold: <|im_end|>, <end_of_turn>, </s>, [/INST], <｜User｜>.
MARKER = re.compile(r"<[|｜][^<>|｜\s]{1,40}[|｜]>|</?[A-Za-z][\w:]{0,40}>|\[/?[A-Z][A-Z_]{0,40}\]")
_SILENT_ROLES = frozenset({"pad_token", "unk_token", "sep_token", "cls_token", "mask_token"})
_SHOWN = 8
Place = str  # where something is stated: a file, or "the tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What a model's files state about tokens, and what the engine makes of it.

    num_rows          rows of the embedding
    ends              end tokens by the place that states them; the tokenizer is one of the places
    adds_bos          `add_bos_token`: whether BOS comes before a text (None: not stated)
    stops, chat_stops the ids at which the engine ends a text, and an answer of a conversation
    """

    num_rows: int
    ends: Mapping[Place, tuple[int, ...]]
    adds_bos: bool | None = None
    stops: frozenset[int]
    chat_stops: frozenset[int]


@dataclass(slots=True)
class Audit:
    """What was found: bugs by name, flags, notes, and lines about what is right."""

    bugs: list[TokenFinding] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def bug(self, name: str, where: str, how: str) -> None:
        self.bugs.append(TokenFinding((name,), (how,), where))


@dataclass(frozen=True, eq=False)
class FileAudit:
    """The audit of one tokenizer and of the statements of the files; `run` adds its findings to an audit."""

    tokenizer: Tokenizer
    stated: Stated

    def run(self, audit: Audit) -> None:
        self._ends(audit)
        self._around(audit)
        self._added(audit)
        self._rows(audit)

    def shown(self, token_id: int) -> str:
        """An id with its token."""
        known = self.tokenizer.has_token(token_id)
        return f"{token_id} {self.tokenizer.id_to_token(token_id)!r}" if known else f"{token_id} (no token)"

    def named(self, ids: Sequence[int]) -> str:
        return ", ".join(self.shown(i) for i in ids) or "none"

    def _ends(self, audit: Audit) -> None:
        stops, tokenizer = self.stated.stops, self.tokenizer
        for place, ids in self.stated.ends.items():
            for token_id in ids:
                if token_id >= self.stated.num_rows or not tokenizer.has_token(token_id):
                    self._no_token(audit, place, token_id)
                elif token_id in tokenizer.ordinary_ids:
                    self._ordinary(audit, place, token_id)
        # generation_config.json comes before config.json, as in transformers; the others are all in force.
        over = "config.json" if self.stated.ends.get("generation_config.json") else None
        due = {i: place for place, ids in self.stated.ends.items() if place != over for i in ids}
        for token_id, place in due.items():
            usable = token_id < self.stated.num_rows and tokenizer.has_token(token_id)
            if usable and token_id not in stops:
                how = "a text runs on behind it"
                audit.bug("eos", f"{place} names {self.shown(token_id)}, and Karat does not end there", how)
        own = tokenizer.eos_token_id  # agrees with any longer list that has it
        sets = [set(ids) for ids in self.stated.ends.values() if ids]
        if any(ids != sets[0] and not (ids == {own} and own in sets[0]) for ids in sets[1:]):
            told = "; ".join(f"{place} {self.named(ids)}" for place, ids in self.stated.ends.items() if ids)
            audit.notes.append(f"end tokens differ by file: {told}; an engine that reads one of them alone may run on")
        if not stops:
            audit.notes.append("no end token is stated: texts end where --max-tokens says")
        audit.lines.append(f"a text ends at {self.named(sorted(stops))}")

    def _no_token(self, audit: Audit, place: Place, token_id: int) -> None:
        sizes = f"{self.tokenizer.vocab_size} tokens, the embedding {self.stated.num_rows} rows"
        where = f"{place} ends texts at {token_id}; the tokenizer has {sizes}"
        if any(self.tokenizer.has_token(i) for i in self.stated.stops):
            audit.flags.append(f"{where}: it is never generated, and only the other end tokens end a text")
        else:
            audit.bug("eos", where, "no text has such a token, so none ends before the token limit")

    def _ordinary(self, audit: Audit, place: Place, token_id: int) -> None:
        token = self.tokenizer.id_to_token(token_id)
        if MARKER.fullmatch(token):
            audit.notes.append(
                f"{place} ends texts at {self.shown(token_id)}, which is not declared as a special token"
            )
            return
        text = self.tokenizer.decode_continuation([token_id])
        where = f"{place} ends texts at {self.shown(token_id)}, an ordinary piece of text"
        audit.bug("eos", where, f"every text is cut off where it says {text!r}, and the model's own end token is none")

    def _around(self, audit: Audit) -> None:
        """The tokens that encoding puts before and behind a text."""
        head, tail = self._head_and_tail()
        stated, bos = self.stated.adds_bos, self.tokenizer.bos_token_id
        if len(head) != len(set(head)):
            where = f"'Hello' becomes {self.tokenizer.encode('Hello')}"
            audit.bug("bos", where, f"{self.shown(head[0])} comes twice before every text")
        if stated and bos is not None and bos not in head:
            where = f"add_bos_token is true and bos_token is {self.shown(bos)}; put before a text: {self.named(head)}"
            audit.bug("bos", where, "it is missing: the post_processor of tokenizer.json adds none")
        elif stated and bos is None:
            audit.notes.append("add_bos_token is true, and there is no bos_token: nothing is added")
        elif stated is False and bos is not None and bos in head:
            audit.flags.append(
                f"add_bos_token is false, and tokenizer.json begins every text with {self.shown(bos)}: one is wrong"
            )
        if ends := [i for i in tail if i in self.stated.stops]:
            audit.flags.append(f"{self.named(ends)} ends texts, and is put behind every one: a prompt is over at once")
        behind = f", {self.named(tail)} behind it" if tail else ""
        before = f"{self.named(head)} is added before a text" if head else "no BOS is added"
        audit.lines.append(before + behind)

    def _head_and_tail(self) -> tuple[list[int], list[int]]:
        """The ids that encoding adds before a text, and behind it."""
        whole = self.tokenizer.encode("Hello")
        inner = self.tokenizer.encode("Hello", add_special_tokens=False)
        for start in range(len(whole) - len(inner) + 1 if inner else 0):
            if whole[start : start + len(inner)] == inner:
                return whole[:start], whole[start + len(inner) :]
        return whole, []

    def _added(self, audit: Audit) -> None:
        """Added tokens are found whole, alone and within a text."""
        tokenizer, split = self.tokenizer, []
        for token_id, token in sorted(tokenizer.added_tokens.items()):
            if not token:
                continue
            alone = tokenizer.encode(token, add_special_tokens=False)
            within = tokenizer.encode(f"a {token} b", add_special_tokens=False)
            if alone != [token_id] or token_id not in within:
                split.append((token_id, token, alone if alone != [token_id] else within))
        special = [found for found in split if found[0] in tokenizer.special_ids]
        for token_id, token, got in special[:_SHOWN]:
            where = f"the special token {token!r} is {token_id}, and as text becomes {got}"
            audit.bug("special-tokens", where, f"{self.named(got[:6])}")
        if rest := [found for found in split if found[0] not in tokenizer.special_ids]:
            token_id, token, got = rest[0]
            more = f", and {len(rest) - 1} more" if len(rest) > 1 else ""
            audit.notes.append(f"the added token {token_id} {token!r} is not found in every text: {got}{more}")
        number = len(tokenizer.special_ids)
        others = len(tokenizer.added_tokens) - number
        found_whole = "each found whole, alone and within a text"
        if not special:
            audit.lines.append(f"{number} special and {others} other added tokens, {found_whole}")
        self._padding(audit)

    def _padding(self, audit: Audit) -> None:
        pad = self.tokenizer.special_tokens.get("pad_token")
        pad_id = None if pad is None else self.tokenizer.token_to_id(pad)
        if pad_id is not None and pad_id == self.tokenizer.eos_token_id:
            audit.notes.append(f"the padding token {self.shown(pad_id)} ends texts too: masking padding masks the end")

    def _rows(self, audit: Audit) -> None:
        """Each id of the tokenizer has a row of the embedding."""
        rows, tokenizer = self.stated.num_rows, self.tokenizer
        beyond = sorted(i for i in tokenizer.ordinary_ids if i >= rows)
        how = "take the tokenizer of these weights, or enlarge the embedding"
        if beyond:
            where = f"{len(beyond)} pieces of text from {self.shown(beyond[0])} on; the embedding has {rows} rows"
            audit.bug("token-range", where, "a text with one of them cannot be computed")
        for token_id in sorted(i for i in tokenizer.added_tokens if i >= rows)[:_SHOWN]:
            roles = {
                role for role, token in tokenizer.special_tokens.items() if token == tokenizer.added_tokens[token_id]
            }
            where = f"{self.shown(token_id)}; the embedding has {rows} rows"
            if roles & {"bos_token", "eos_token"}:
                audit.bug("token-range", f"{', '.join(sorted(roles))}: {where}", "a text with it cannot be computed")
            elif roles and roles <= _SILENT_ROLES:
                audit.notes.append(f"{', '.join(sorted(roles))} {where}: a text that spells it cannot be computed")
            else:
                audit.flags.append(f"the added token {where}: a text that spells it cannot be computed; {how}")
        if not beyond:
            audit.lines.append(f"{tokenizer.vocab_size} tokens, the embedding has {rows} rows")


def markers(text: str) -> Iterator[str]:
    """The parts of a text that look like control tokens, each once."""
    yield from dict.fromkeys(found[0] for found in MARKER.finditer(text))

"""Prompts of a load: drawn anew each time they are asked for, or read from a file of conversations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import msgspec
import numpy as np

from karat.bench.load.lengths import Lengths
from karat.errors import UsageError
from karat.text import Tokenizer

Prompt = str | tuple[int, ...]
_MAX_FILE = 2 << 30
_WORDS = (
    "the time way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work night point home water room mother area money story fact "
    "month lot right study book eye job word business issue side kind head house service friend father power hour game "
    "line end member law car city"
).split()  # a token each in nearly every vocabulary


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says, and how many tokens the answer may have."""

    prompt: Prompt
    max_tokens: int


@dataclass(frozen=True, slots=True)
class PlannedConversation:
    """Turns one after the other; each is asked with all that came before it. `prefix` comes first."""

    prefix: Prompt | None
    turns: tuple[Turn, ...]


class RandomText:
    """Pieces of random text: token ids if `as_ids`, or text.

    With a tokenizer, text has about the wanted number of tokens (its own token boundaries may differ by a few); without
    one it has that many common words.
    """

    def __init__(self, rng: np.random.Generator, tokenizer: Tokenizer | None, *, as_ids: bool) -> None:
        self.rng = rng
        self.as_ids = as_ids
        self._tokenizer = tokenizer
        self._ids = None if tokenizer is None else np.array(sorted(tokenizer.ordinary_ids), np.int64)

    def piece(self, num_tokens: int) -> Prompt:
        if self._ids is None or self._tokenizer is None:
            return " ".join(self.rng.choice(_WORDS, num_tokens))
        ids = tuple(self.rng.choice(self._ids, num_tokens).tolist())
        if self.as_ids:
            return ids
        text = self._tokenizer.decode(ids).replace("\ufffd", "?")
        ids = tuple(self._tokenizer.encode(text, add_special_tokens=False)[:num_tokens])
        return self._tokenizer.decode(ids).replace("\ufffd", "?")

    def read(self, text: str) -> Prompt:
        """Text of a file, in this source's form."""
        if self.as_ids and self._tokenizer is not None:
            return tuple(self._tokenizer.encode(text, add_special_tokens=False))
        return text

    def count(self, text: str) -> int | None:
        """Its tokens; None without a tokenizer."""
        if self._tokenizer is None:
            return None
        return len(self._tokenizer.encode(text, add_special_tokens=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationShape:
    """What conversations look like. `num_prefixes` beginnings of `prefix_tokens` tokens are shared, in turns."""

    prompt_tokens: Lengths
    answer_tokens: Lengths
    turns: int = 1
    prefix_tokens: int = 0
    num_prefixes: int = 1

    @property
    def most_tokens(self) -> int:
        """Of a whole conversation, without what a template adds."""
        return self.prefix_tokens + self.turns * (self.prompt_tokens.high + self.answer_tokens.high)


def drawn(source: RandomText, shape: ConversationShape) -> Iterator[PlannedConversation]:
    """Conversations without end; no two are the same but by chance. The shared beginnings are drawn once."""
    rng = source.rng
    prefixes = [source.piece(shape.prefix_tokens) for _ in range(shape.num_prefixes)] if shape.prefix_tokens else [None]
    for prefix in cycle(prefixes):
        lengths = [(shape.prompt_tokens.draw(rng), shape.answer_tokens.draw(rng)) for _ in range(shape.turns)]
        yield PlannedConversation(prefix, tuple(Turn(source.piece(prompt), answer) for prompt, answer in lengths))


class _Said(msgspec.Struct):
    speaker: str = msgspec.field(name="from")
    value: str


class _Talk(msgspec.Struct):
    conversations: list[_Said]


def read_file(path: Path, source: RandomText, shape: ConversationShape) -> list[PlannedConversation]:
    """Conversations of a file in ShareGPT's form, in the file's order, cut to `shape.turns` turns.

    It is a JSON list of {"conversations": [{"from": "human" | "gpt" | "system", "value": text}, …]}. An answer may
    have as many tokens as the file's has; without a tokenizer, as `shape` draws. Conversations that do not begin with
    a human's words, or whose turn has no answer, are left out. UsageError for another file.
    """
    try:
        with path.open("rb") as file:
            talks = msgspec.json.decode(file.read(_MAX_FILE), type=list[_Talk])
    except OSError as fault:
        raise UsageError(f"--dataset {path}: {fault.strerror}; give a file that can be read") from None
    except msgspec.DecodeError as fault:
        raise UsageError(f"--dataset {path}: {fault}; expected ShareGPT's form (docs/cli.md)") from None
    found = [read for talk in talks if (read := _conversation(talk.conversations, source, shape))]
    if not found:
        raise UsageError(
            f"--dataset {path}: none of its {len(talks)} conversations has {shape.turns} turns with answers"
        )
    return found


def _conversation(said: Sequence[_Said], source: RandomText, shape: ConversationShape) -> PlannedConversation | None:
    said = [each for each in said if each.speaker != "system"]
    turns = []
    for asked, answered in zip(said[::2], said[1::2], strict=False):
        if asked.speaker not in ("human", "user") or answered.speaker not in ("gpt", "assistant"):
            break
        if not asked.value or not answered.value:
            break
        length = source.count(answered.value)
        turns.append(Turn(source.read(asked.value), length or shape.answer_tokens.draw(source.rng)))
    return PlannedConversation(None, tuple(turns[: shape.turns])) if len(turns) >= shape.turns else None


class Supply:
    """The conversations of a measurement: those of a file in an order that is drawn, or new ones.

    A file that has fewer than are asked for is used again from its start, and `num_rounds` says so.
    """

    def __init__(self, source: RandomText, shape: ConversationShape, dataset: Path | None) -> None:
        self._rng = source.rng
        self._file = None if dataset is None else read_file(dataset, source, shape)
        self._drawn = drawn(source, shape)
        self._order: list[int] = []
        self.num_rounds = 0

    def take(self, number: int) -> list[PlannedConversation]:
        if self._file is None:
            return [next(self._drawn) for _ in range(number)]
        while len(self._order) < number:
            self.num_rounds += 1
            self._order += self._rng.permutation(len(self._file)).tolist()
        taken, self._order = self._order[:number], self._order[number:]
        return [self._file[i] for i in taken]

    @property
    def most_tokens(self) -> int | None:
        """Of the file's longest conversation by its answers' lengths; None without a file or where it is text."""
        if self._file is None:
            return None
        sizes: list[int] = []
        for conversation in self._file:
            if any(isinstance(turn.prompt, str) for turn in conversation.turns):
                return None
            sizes.append(sum(len(turn.prompt) + turn.max_tokens for turn in conversation.turns))
        return max(sizes)

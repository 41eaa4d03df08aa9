"""The training mixture as batches: padded rows of similar length, each row one sample, reproducible from (seed,
chunk).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.data import END_OF_TEXT, Document, load_classics, load_documents, load_passages, split, unwrap
from training.requests import SYSTEM, RequestMaker, Turn, chatml
from training.strangers import COUNT, SHARE, Strangers
from training.words import FUNCTION_WORDS, WORD, Lexicon, build_lexicon

CHUNK_BATCHES = 16
MULTIPLE = 16  # row lengths are padded to a multiple of this
MAX_TOKENS = 448


@dataclass(frozen=True)
class Mixture:
    """Shares of samples (not tokens) by kind; of the chats about one story, the share cut after its opening; the share
    of asked words that are swapped; the loss weight of an asked word's first use.
    """

    chat: float
    old_tale_chat: float
    two_turns: float
    echo: float
    plain_story: float
    plain_tale: float
    plain_classic: float
    opening: float
    swapped: float
    stress: float


# Mostly openings, where the words asked for are: copying is learned from many requests, not from long stories.
LEARN = Mixture(0.72, 0.03, 0.01, 0.12, 0.06, 0.04, 0.02, opening=0.85, swapped=0.85, stress=6)
# While the rate decays: whole stories, and fewer odd words.
SETTLE = Mixture(0.64, 0.03, 0.02, 0.07, 0.12, 0.08, 0.04, opening=0.65, swapped=0.8, stress=6)


@dataclass(frozen=True)
class Corpus:
    """Everything the training reads. `stories` are short and whole; `tales` are passages of longer ones; `held_out`
    is never trained on.
    """

    stories: list[Document]
    african: list[Document]
    tales: list[Document]
    classics: list[Document]
    held_out: list[Document]
    lexicon: Lexicon

    @classmethod
    def load(cls, folder: Path) -> Corpus:
        """Read the corpus folder; raises FileNotFoundError naming a missing file."""
        training, held_out = split(load_documents(folder))
        classics = load_classics(folder, held_out)
        lexicon = build_lexicon(document.text for document in training + classics)
        stories = [d for d in training if d.source == "tinystories" and len(d.text) < 1500]
        joined = [Document(d.source, unwrap(d.text)) for d in training if d.source == "african_storybook"]
        african = [passage for document in joined for passage in load_passages(document)]
        long = [d for d in training if d.source == "fairytales" or (d.source == "tinystories" and len(d.text) >= 1500)]
        tales = [passage for document in long for passage in load_passages(document)]
        return cls(stories, african, tales, classics, held_out, lexicon)


@dataclass(frozen=True)
class Batch:
    """Rows of one length. All tensors are [batch, length]; token_ids and targets int64, weights float32. Targets are
    shifted, -100 where nothing is learned.
    """

    token_ids: Tensor
    targets: Tensor
    weights: Tensor
    num_tokens: int


@dataclass(frozen=True)
class Row:
    """One sample, unshifted: token ids, targets (-100 where nothing is learned) and loss weights, all of one length."""

    ids: list[int]
    targets: list[int]
    weights: list[float]


class SampleMaker:
    """Draws token samples from the mixture; all chance comes from the `random.Random` passed in."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, mixture: Mixture) -> None:
        self.corpus, self.tokenizer, self.mixture = corpus, tokenizer, mixture
        self.requests = RequestMaker(corpus.lexicon)
        self.passages = corpus.tales + corpus.classics
        self.nouns = frozenset(Strangers.of(tokenizer, corpus.lexicon).nouns.tolist())

    def pieces(self, rng: random.Random) -> list[tuple[str, bool]]:
        """One sample as (text, learn) pieces."""
        mix, corpus = self.mixture, self.corpus
        shares = (
            mix.chat,
            mix.old_tale_chat,
            mix.two_turns,
            mix.echo,
            mix.plain_story,
            mix.plain_tale,
            mix.plain_classic,
        )
        kind = rng.choices(range(7), shares)[0]
        if kind == 3:
            return chatml(self.requests.echo(rng.choice(self.passages).text, rng))
        if kind >= 4:
            document = rng.choice((corpus.stories, corpus.tales + corpus.african, corpus.classics)[kind - 4])
            end = "<|endoftext|>" if document.source == "tinystories" else ""
            return [(document.text + end, True)]
        turns = [Turn("system", rng.choice(SYSTEM))] if rng.random() < 0.03 else []
        for _ in range(2 if kind == 2 else 1):
            if kind == 1:
                document = rng.choice(self.passages)
            else:
                document = rng.choice(corpus.african) if rng.random() < 0.03 else rng.choice(corpus.stories)
            request, story = self.requests.pair(document.text, rng, old_tale=kind == 1, share_swapped=mix.swapped)
            turns += [Turn("user", request), Turn("assistant", story)]
        pieces = chatml(turns)
        if kind < 2 and rng.random() < mix.opening:
            words = re.findall(r"\s*\S+", pieces[-1][0])
            pieces[-1] = ("".join(words[: rng.randint(25, 60)]).removesuffix("<|im_end|>"), True)
        return pieces

    def encode(self, samples: list[list[tuple[str, bool]]], rng: random.Random) -> list[Row]:
        """The samples as rows; those over MAX_TOKENS are left out. The words asked for weigh `stress` at first use, and
        one of them may be a stranger.
        """
        flat = self.tokenizer.encode_batch([text for sample in samples for text, _ in sample], add_special_tokens=False)
        encoded, index = [], 0
        for sample in samples:
            row, before = Row([], [], []), ""
            for text, learn in sample:
                piece = flat[index]
                index += 1
                spans = asked_spans(before, text) if learn else []
                row.ids.extend(piece.ids)
                row.targets.extend(piece.ids if learn else [-100] * len(piece.ids))
                for start, stop in piece.offsets:
                    hit = any(start < last and stop > first for first, last in spans)
                    row.weights.append(self.mixture.stress if hit else 1.0)
                before = text if "<|im_end|>" in text else before
            row = introduce(row, self.nouns, self.tokenizer.get_vocab_size(), rng)
            if len(row.ids) <= MAX_TOKENS:
                encoded.append(row)
        return encoded

    def chunk(self, seed: int, number: int, batch_tokens: int) -> list[Batch]:
        """The batches of one chunk of about CHUNK_BATCHES batches; a pure function of its arguments and the corpus."""
        rng = random.Random(f"{seed}:{number}")
        wanted = CHUNK_BATCHES * batch_tokens
        rows: list[Row] = []
        while sum(len(row.ids) for row in rows) < wanted:
            rows += self.encode([self.pieces(rng) for _ in range(64)], rng)
        rows.sort(key=lambda row: len(row.ids))
        batches: list[Batch] = []
        start = 0
        while start < len(rows):
            stop = start + 1
            while stop < len(rows) and padded(len(rows[stop].ids)) * (stop + 1 - start) <= batch_tokens:
                stop += 1
            batches.append(collate(rows[start:stop]))
            start = stop
        rng.shuffle(batches)
        return batches


def introduce(row: Row, nouns: frozenset[int], vocab_size: int, rng: random.Random) -> Row:
    """The row with a noun that it asks for, one token that weighs more than 1, replaced by a stranger; or as it is."""
    asked = [
        token_id for token_id, weight in zip(row.ids, row.weights, strict=True) if weight > 1 and token_id in nouns
    ]
    if not asked or rng.random() > SHARE:
        return row
    noun, stranger = rng.choice(asked), vocab_size + rng.randrange(COUNT)
    ids, targets = ([stranger if token_id == noun else token_id for token_id in of] for of in (row.ids, row.targets))
    return Row(ids, targets, row.weights)


def padded(length: int) -> int:
    return -(-(length - 1) // MULTIPLE) * MULTIPLE


def asked_spans(request: str, story: str) -> list[tuple[int, int]]:
    """Where in the story the first three words that it shares with the request are used first, function words aside."""
    left = {word.lower() for word in WORD.findall(request)} - FUNCTION_WORDS
    spans: list[tuple[int, int]] = []
    for match in WORD.finditer(story):
        if match.group().lower() in left and len(spans) < 3:
            left.remove(match.group().lower())
            spans.append(match.span())
    return spans


def collate(rows: list[Row]) -> Batch:
    """Right-pad rows to a common multiple of MULTIPLE; padding has no loss, and causal attention never looks at it."""
    width = padded(max(len(row.ids) for row in rows))
    token_ids = torch.full((len(rows), width), END_OF_TEXT, dtype=torch.int64)
    targets = torch.full((len(rows), width), -100, dtype=torch.int64)
    weights = torch.ones((len(rows), width))
    for i, row in enumerate(rows):
        last = len(row.ids) - 1
        token_ids[i, :last] = torch.tensor(row.ids[:-1])
        targets[i, :last] = torch.tensor(row.targets[1:])
        weights[i, :last] = torch.tensor(row.weights[1:])
    return Batch(token_ids, targets, weights, sum(len(row.ids) for row in rows))


def stream(maker: SampleMaker, seed: int, batch_tokens: int, first: int) -> Iterator[tuple[int, Batch]]:
    """Endless (chunk number after this batch's chunk is done, batch), from chunk `first` on; resuming repeats at most
    one chunk.
    """
    number = first
    while True:
        batches = maker.chunk(seed, number, batch_tokens)
        for i, batch in enumerate(batches):
            yield (number + 1 if i == len(batches) - 1 else number), batch
        number += 1

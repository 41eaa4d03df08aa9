"""Copying words that were never requested: nouns that exist in one batch only, and no pushing down of reserved ones.

At the place where a story first uses a word it was asked for, every other word is wrong. What can be requested is right
another time; a reserved word never is, and what the model learns of copying it learns of the embeddings it sees copied.
Two measures, neither of which shows the model a reserved word in a request:

- *Strangers.* In half of the chats a noun of one token is replaced, in request and story alike, by a token of its own,
  whose embedding is drawn anew for each batch from the distribution of the nouns' embeddings: the mean, and the
  differences of two nouns from it, mixed at a random angle. It is read and predicted as any other token is.
- Where a word that was asked for is predicted, reserved words take no part in the softmax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.words import Lexicon, inflections, is_reserved

COUNT = 64  # strangers of a batch
SHARE = 0.5


@dataclass(frozen=True)
class Strangers:
    """Nouns that are one token with the space before them.

    reserved  [vocab + COUNT] bool: a form of a reserved noun
    nouns     [n] int64: forms of nouns that can be requested
    begins    [vocab + COUNT] bool: a token that begins a word; every stranger does
    """

    reserved: Tensor
    nouns: Tensor
    begins: Tensor

    @classmethod
    def of(cls, tokenizer: Tokenizer, lexicon: Lexicon) -> Strangers:
        size = tokenizer.get_vocab_size()
        reserved = torch.zeros(size + COUNT, dtype=torch.bool)
        begins = torch.ones(size + COUNT, dtype=torch.bool)
        for token, token_id in tokenizer.get_vocab().items():
            begins[token_id] = token.startswith("Ġ")
        nouns = set()
        for noun in lexicon.counts:
            for form in inflections(noun):
                ids = tokenizer.encode(f" {form}", add_special_tokens=False).ids
                if len(ids) == 1 and is_reserved(noun):
                    reserved[ids[0]] = True
                elif len(ids) == 1:
                    nouns.add(ids[0])
        reserved[list(nouns)] = False
        return cls(reserved, torch.tensor(sorted(nouns)), begins)

    def to(self, device: torch.device) -> Strangers:
        return Strangers(self.reserved.to(device), self.nouns.to(device), self.begins.to(device))

    def draw(self, embedding: Tensor, seed: int) -> Tensor:
        """Embeddings of strangers [COUNT, hidden], made of those of the vocabulary [vocab, hidden], which do not learn
        from it. The same seed draws the same.
        """
        chance = torch.Generator().manual_seed(seed)
        nouns = embedding.detach()[self.nouns]
        mean = nouns.mean(0)
        first, second = (
            nouns[torch.randint(len(nouns), (COUNT,), generator=chance).to(nouns.device)] - mean for _ in range(2)
        )
        angle = torch.rand(COUNT, 1, generator=chance).to(nouns.device) * math.pi / 2
        return mean + torch.cos(angle) * first + torch.sin(angle) * second

    def masked(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Logits [positions, vocab + COUNT]. Where a word that was asked for begins (its weight is above 1), reserved
        words get -inf, except the target.
        """
        known = targets.clamp_min(0)
        asked = (weights > 1) & (targets >= 0) & self.begins[known]
        is_target = torch.zeros_like(logits, dtype=torch.bool).scatter(1, known[:, None], True)
        return logits.masked_fill(asked[:, None] & self.reserved & ~is_target, float("-inf"))

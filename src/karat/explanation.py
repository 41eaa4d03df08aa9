"""How one token was drawn: what `explain` reports, in Python and over HTTP."""

from dataclasses import dataclass
from typing import Literal

CutBy = Literal[
    "grammar",
    "min_tokens",
    "allowed_token_ids",
    "bad_words",
    "no_repeat_ngram_size",
    "top_n_sigma",
    "top_k",
    "typical_p",
    "top_p",
    "min_p",
    "xtc",
]


@dataclass(frozen=True, slots=True)
class Kept:
    """The number of tokens that each step left, in the order of the steps; None for a step that was not asked for.

    "grammar" is structured_outputs. Greedy, no step after it is made. xtc is what XTC left, whether it acted or not.
    """

    grammar: int | None = None
    top_n_sigma: int | None = None
    top_k: int | None = None
    typical_p: int | None = None
    top_p: int | None = None
    min_p: int | None = None
    xtc: int | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that could have come at a position.

    probability is the model's own: the softmax of its logits. rank counts by it from 1; of equal tokens the smaller id
    comes first. drawn is the probability with which it was drawn after everything: 0 for a token that was cut, and
    for all but one where the choice is greedy. cut_by is the step that took it out: a grammar; min_tokens, which bars
    tokens that end an answer; allowed_token_ids; bad_words (bad_words_ids too); no_repeat_ngram_size; or one of the
    steps at the temperature. penalty is what logit_bias and the penalties added to its logit, DRY's among them; dry is
    DRY's part of it. text is the token alone, special tokens included; part of a character shows as U+FFFD.
    """

    token: int
    text: str
    probability: float
    rank: int
    drawn: float
    cut_by: CutBy | None
    penalty: float
    dry: float = 0.0


@dataclass(frozen=True, slots=True)
class Explanation:
    """How one token was drawn. token, text, probability, rank and drawn are as in Alternative.

    position counts the tokens before it, the prompt's too. draw is the number in [0, 1) that drew it, keyed by (seed,
    choice index, position): the tokens that are left, by ascending id, divide [0, 1) by their `drawn`, and the token
    whose part it falls into is taken. It is None where temperature is 0, which is greedy. xtc_draw is the number that
    decided whether XTC acts: it does below xtc_probability; None where nothing was asked of XTC. alternatives are the 8
    likeliest by the model, and the token itself if it is none of these, in the order of their ranks.
    """

    token: int
    text: str
    position: int
    probability: float
    rank: int
    drawn: float
    draw: float | None
    temperature: float
    kept: Kept
    alternatives: tuple[Alternative, ...]
    xtc_draw: float | None = None

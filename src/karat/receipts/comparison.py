"""Comparison: where an answer would have gone on otherwise if the model had read other activations."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parting:
    """The first token that two widths of activations choose differently, after the same tokens and with the same draw.

    index: of the token in the answer, from 0. position: of the token in the context. margin: by how much the logit of
    the receipt's token is above that of the other, under the receipt's activations; other_margin: by how much that of
    the other token is above, under the others. A drawn token may have a margin below 0.
    """

    index: int
    position: int
    receipt_token: int
    other_token: int
    receipt_text: str
    other_text: str
    margin: float
    other_margin: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A receipt's answer, chosen again under other activations. parting: None if all of its tokens are the same.

    activations: of the receipt; other: those it was compared with. num_tokens: of the answer.
    """

    activations: str
    other: str
    num_tokens: int
    elapsed_s: float
    parting: Parting | None

    def __str__(self) -> str:
        number, time = self.num_tokens, f"{self.elapsed_s:.1f} s"
        if self.parting is None:
            return f"the same {number} tokens with {self.other} as with {self.activations}, {time}"
        at = self.parting
        return (
            f"{self.activations} and {self.other} part at token {at.index + 1} of {number}: {self.activations} takes "
            f"{at.receipt_token} {at.receipt_text!r} (margin {at.margin:+.4g}), {self.other} {at.other_token} "
            f"{at.other_text!r} (margin {at.other_margin:+.4g}), {time}"
        )

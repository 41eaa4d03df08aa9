"""Verdict: what verifying a receipt found; and what can be judged before anything is computed."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from karat.errors import OtherContractError
from karat.receipts.fingerprint import Fingerprint
from karat.receipts.receipt import Receipt
from karat.request import MAX_SEED

VerdictKind = Literal["identical", "different", "agrees", "undecided", "differs"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference, in words; and if it is a token, which one.

    index: of the token in the answer, from 0. position: of the token in the context. margin: the distance of the logits
    of both tokens; None where the model has no such token.
    """

    text: str
    index: int | None = None
    position: int | None = None
    receipt_token: int | None = None
    replayed_token: int | None = None
    margin: float | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Verdict:
    """identical or different is said by the engine that answers; agrees, undecided or differs by the reference.

    num_tokens: of the answer. num_undecided: tokens that the reference can neither confirm nor deny. signer: the public
    key of a signature that is right, None without a signature.
    """

    kind: VerdictKind
    num_tokens: int
    elapsed_s: float
    finding: Difference | None = None
    num_undecided: int = 0
    signer: str | None = None

    @property
    def is_confirmed(self) -> bool:
        """Whether nothing speaks against the receipt, and all of it was decided."""
        return self.kind in ("identical", "agrees")

    def __str__(self) -> str:
        if self.finding is not None:
            return f"{self.kind}: {self.finding}"
        undecided = f" at {self.num_undecided} positions" if self.kind == "undecided" else ""
        signer = "" if self.signer is None else f", signed by {self.signer}"
        return f"{self.kind}{undecided}, {self.num_tokens} tokens, {self.elapsed_s:.1f} s{signer}"


def require_same(receipt: Receipt, here: Fingerprint) -> None:
    """OtherContractError, with the names of the parts that differ, for a receipt of another model or other rules."""
    if names := receipt.fingerprint.differing(here):
        parts = [f"{name} ({getattr(receipt.fingerprint, name)}, here {getattr(here, name)})" for name in names]
        raise OtherContractError(
            f"the receipt is of another {', '.join(parts)}; no verdict: load what it was made with (model, "
            "--quantize, --kv-dtype, --activations, --executor), with a Karat of that numeric contract"
        )


def changed_since(receipt: Receipt) -> Difference | None:
    """The members of a receipt that were changed after it was written."""
    if names := receipt.altered():
        return Difference(f"the receipt was changed after it was written: {', '.join(names)}")
    return None


def impossible(
    receipt: Receipt, *, vocab_size: int, end_token_ids: Collection[int], chat_end_token_ids: Collection[int]
) -> Difference | None:
    """What no answer of the model has: other end tokens, a token beyond its vocabulary, a seed beyond all."""
    ends = tuple(sorted(end_token_ids))
    if receipt.end_token_ids not in (ends, tuple(sorted(chat_end_token_ids))):
        return Difference(f"end_token_ids {list(receipt.end_token_ids)} are not the model's, {list(ends)}")
    for name, ids in (("prompt", receipt.prompt.token_ids), ("output", receipt.output.token_ids)):
        if not isinstance(ids, str) and (largest := max(ids, default=0)) >= vocab_size:
            return Difference(f"{name}.token_ids: {largest} is no token of the model, which has {vocab_size}")
    if int(receipt.seed) > MAX_SEED:
        return Difference(f"seed: {receipt.seed} is no seed; the largest is {MAX_SEED}")
    return None

"""The field `karat` of a request, and its header: what is wished for beyond the protocols."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from karat.request import MAX_CHOICES, MAX_SEED, ReceiptWish, Resume
from karat.server.bodies import judge
from karat.server.errors import invalid
from karat.server.fields import Field, TokenId, keyed

MAX_DRAWN_SEED = 2**53  # every JSON reader keeps integers below it
RECEIPT_HEADER = "karat-receipt"
_HEADER_VALUES: Mapping[str, ReceiptWish] = {"1": True, "0": False, "digests": "digests"}
_RECEIPT = Field(
    "receipt", (), "honoured", "The answer carries a receipt; digests: without the tokens.", bool | Literal["digests"]
)
_RESUME = Field("resume", (), "honoured", "Goes on with an answer: its tokens so far, and its seed.", dict[str, Any])
_RESUMED: Mapping[str, Field] = keyed(
    Field("tokens", (), "honoured", "The token ids of the answer so far.", list[TokenId], required=True),
    Field("seed", (), "honoured", "The answer's seed.", Annotated[int, Meta(ge=0, le=MAX_SEED)]),
    Field("choice", (), "honoured", "Its number among n.", Annotated[int, Meta(ge=0, lt=MAX_CHOICES)]),
)


@dataclass(frozen=True, slots=True)
class KaratOptions:
    """receipt: of the answer. resume: the beginning of the answer. seed: that of the answer that is resumed."""

    receipt: ReceiptWish = False
    resume: Resume | None = None
    seed: int | None = None

    def with_header(self, value: str | None) -> "KaratOptions":
        """These, and what the header asks for. 400 for another value."""
        if value is None:
            return self
        if value not in _HEADER_VALUES:
            expected = ", ".join(_HEADER_VALUES)
            raise invalid(RECEIPT_HEADER, f"{RECEIPT_HEADER}: {value[:20]!r}: expected one of {expected}")
        return replace(self, receipt=self.receipt or _HEADER_VALUES[value])


NO_KARAT_OPTIONS = KaratOptions()


def read_karat_options(values: Mapping[str, Any], *, resumes: bool = False) -> KaratOptions:
    """The options of a body's honoured fields. resumes: whether answers of the route can be resumed."""
    fields = keyed(_RECEIPT, _RESUME) if resumes else keyed(_RECEIPT)
    given = judge(values.get("karat", {}), fields, "karat.").values
    resume, seed = None, None
    if "resume" in given:
        asked = judge(given["resume"], _RESUMED, "karat.resume.").values
        resume, seed = Resume(tuple(asked["tokens"]), asked.get("choice", 0)), asked.get("seed")
    return KaratOptions(given.get("receipt", False), resume, seed)


def seeded(given: Mapping[str, Any], karat_options: KaratOptions) -> dict[str, Any]:
    """Fields of SamplingParams with a seed: the given one, or one of the system's randomness.

    For an answer that is resumed: its own seed, and of its choices the one. 400 if the seed is missing or contradicted.
    """
    if karat_options.resume is None:
        return {**given, "seed": given.get("seed", drawn_seed())}
    seed, n = given.get("seed", karat_options.seed), given.get("n", 1)
    if seed is None or (karat_options.seed is not None and seed != karat_options.seed):
        raise invalid(
            "karat.resume.seed", f"karat.resume.seed={karat_options.seed}, seed={seed}: expected the answer's seed"
        )
    if "n" in given and karat_options.resume.choice >= n:
        raise invalid(
            "karat.resume.choice", f"karat.resume.choice={karat_options.resume.choice} with n={n}: expected less"
        )
    return {**given, "seed": seed, "n": 1}


def drawn_seed() -> int:
    """A seed from the system's randomness."""
    return secrets.randbelow(MAX_DRAWN_SEED)

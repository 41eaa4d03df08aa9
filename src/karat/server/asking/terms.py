"""Terms: how a request is served, by the fields `karat`, `priority` and `cache_salt` and the header karat-receipt."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Fields of karat.request_record.Request. seed: that of the answer that is resumed."""

    priority: int = 0
    salt: str | None = None
    receipt: ReceiptWish = False
    resume: Resume | None = None
    seed: int | None = None

    def of_sender(self, header: str | None, tenant: str | None) -> "Terms":
        """These with what the header asks for, and a salt of this tenant. 400 for another value of the header."""
        if header is not None and header not in _HEADER_VALUES:
            expected = ", ".join(_HEADER_VALUES)
            raise invalid(RECEIPT_HEADER, f"{RECEIPT_HEADER}: {header[:20]!r}: expected one of {expected}")
        salt = self.salt if tenant is None else f"{tenant}:{self.salt or ''}"
        return replace(self, salt=salt, receipt=self.receipt or _HEADER_VALUES[header or "0"])


def read_terms(values: Mapping[str, Any], *, resumes: bool = False) -> Terms:
    """The terms of a body's honoured fields. resumes: whether answers of the route can be resumed."""
    fields = keyed(_RECEIPT, _RESUME) if resumes else keyed(_RECEIPT)
    given = judge(values.get("karat", {}), fields, "karat.").values
    resume, seed = None, None
    if "resume" in given:
        asked = judge(given["resume"], _RESUMED, "karat.resume.").values
        resume, seed = Resume(tuple(asked["tokens"]), asked.get("choice", 0)), asked.get("seed")
    return Terms(
        priority=values.get("priority", 0),
        salt=values.get("cache_salt"),
        receipt=given.get("receipt", False),
        resume=resume,
        seed=seed,
    )


def seeded(given: Mapping[str, Any], terms: Terms) -> dict[str, Any]:
    """Fields of SamplingParams with a seed: the given one, or one of the system's randomness.

    For an answer that is resumed: its own seed, and of its choices the one. 400 if the seed is missing or contradicted.
    """
    if terms.resume is None:
        return {**given, "seed": given.get("seed", drawn_seed())}
    seed, n = given.get("seed", terms.seed), given.get("n", 1)
    if seed is None or (terms.seed is not None and seed != terms.seed):
        raise invalid("karat.resume.seed", f"karat.resume.seed={terms.seed}, seed={seed}: expected the answer's seed")
    if "n" in given and terms.resume.choice >= n:
        raise invalid("karat.resume.choice", f"karat.resume.choice={terms.resume.choice} with n={n}: expected less")
    return {**given, "seed": seed, "n": 1}


def drawn_seed() -> int:
    """A seed from the system's randomness."""
    return secrets.randbelow(MAX_DRAWN_SEED)

"""Receipt: one answer with everything that decided it, as canonical JSON. docs/receipts.md says what it proves."""

import ctypes
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from karat.checkpoint.wording import in_words
from karat.errors import ReceiptError, RequestError
from karat.receipts.canonical import canonical, digest
from karat.receipts.fingerprint import Fingerprint
from karat.request import SamplingParams, StructuredOutputs
from karat.request_record import Request

MAX_BYTES = 16 * 1024**2  # of a receipt; an answer of a million tokens takes half of it

_SPACE = re.compile(r"[ \t\n\r]*")

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Hex = Annotated[str, Meta(pattern="^[0-9a-f]+$", max_length=128)]
Seed = Annotated[str, Meta(pattern="^[0-9]{1,19}$")]  # as text: readers of JSON keep integers only below 2^53
Form = dict[str, str | tuple[str, ...]]


class _ReceiptPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON object whose members are these and no others."""


class Versions(_ReceiptPart, frozen=True, forbid_unknown_fields=True):
    """What computed the answer. Another version is no difference: the fingerprint has what decides answers.

    llguidance compiled the form of the answer; null without a form.
    """

    karat: str
    numpy: str
    tokenizers: str
    llguidance: str | None


class Prompt(_ReceiptPart, frozen=True, forbid_unknown_fields=True):
    """The tokens or, as a text, the SHA-256 of their canonical JSON; and the digest of the text (a rendered
    conversation too) where they were given as text.
    """

    token_ids: tuple[TokenId, ...] | Sha256
    text_sha256: Sha256 | None


class Sampling(_ReceiptPart, frozen=True, forbid_unknown_fields=True):
    """The fields of SamplingParams that decide an answer, all resolved. Log-probabilities and n decide none.

    The samplers at the end came later: those that are not used are left out, as in receipts that were made before them.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: dict[str, float]
    max_tokens: int
    min_tokens: int
    stop: tuple[str, ...]
    stop_token_ids: tuple[TokenId, ...]
    include_stop_str_in_output: bool
    ignore_eos: bool
    skip_special_tokens: bool
    allowed_token_ids: tuple[TokenId, ...] | None
    structured_outputs: Form | None
    top_n_sigma: float | UnsetType = UNSET
    typical_p: float | UnsetType = UNSET
    xtc_probability: float | UnsetType = UNSET
    xtc_threshold: float | UnsetType = UNSET
    repeat_last_n: int | UnsetType = UNSET
    dry_multiplier: float | UnsetType = UNSET
    dry_base: float | UnsetType = UNSET
    dry_allowed_length: int | UnsetType = UNSET
    dry_penalty_last_n: int | UnsetType = UNSET
    dry_sequence_breakers: tuple[str, ...] | UnsetType = UNSET
    no_repeat_ngram_size: int | UnsetType = UNSET
    bad_words: tuple[str, ...] | UnsetType = UNSET
    bad_words_ids: tuple[tuple[TokenId, ...], ...] | UnsetType = UNSET

    def params(self) -> SamplingParams:
        """Raises RequestError for values that no request may have."""
        values = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}
        try:
            bias = {int(token_id): value for token_id, value in self.logit_bias.items()}
        except ValueError:
            raise RequestError("logit_bias has a name that is no token id; expected numbers") from None
        form = None if self.structured_outputs is None else StructuredOutputs(**self.structured_outputs)  # type: ignore[arg-type]
        return SamplingParams(**values | {"logit_bias": bias, "structured_outputs": form})


class Output(_ReceiptPart, frozen=True, forbid_unknown_fields=True):
    """What came out: the tokens, or their digest as of the prompt's."""

    token_ids: Annotated[tuple[TokenId, ...], Meta(min_length=1)] | Sha256
    text_sha256: Sha256
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None


class Signature(_ReceiptPart, frozen=True, forbid_unknown_fields=True):
    """Ed25519 (RFC 8032) over the canonical JSON of all other members, as hexadecimal digits."""

    algorithm: Literal["Ed25519"]
    public_key: Sha256
    value: Hex


class Receipt(_ReceiptPart, frozen=True, forbid_unknown_fields=True):
    """One choice of a request.

    checksums name a member that was changed: 8 hexadecimal digits of the SHA-256 of each. sha256 is over the canonical
    JSON of all members but itself and the signature.
    """

    format: Literal["karat-receipt/1"]
    versions: Versions
    fingerprint: Fingerprint
    prompt: Prompt
    end_token_ids: tuple[TokenId, ...]
    sampling: Sampling
    seed: Seed
    choice: Annotated[int, Meta(ge=0, lt=64)]
    output: Output
    checksums: dict[str, str]
    sha256: Sha256
    signature: Signature | None

    @property
    def has_digests_only(self) -> bool:
        """Whether prompt and answer are left out: it is verified beside the request."""
        return isinstance(self.prompt.token_ids, str) or isinstance(self.output.token_ids, str)

    @property
    def signed_bytes(self) -> bytes:
        """What a signature is of."""
        members = msgspec.to_builtins(self)
        del members["signature"]
        return canonical(members)

    def prompt_among(self, readings: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """The reading of a prompt, as token ids, that this receipt is of; the first one if it is of none."""
        stated = self.prompt.token_ids
        return next((ids for ids in readings if stated in (ids, digest(ids))), readings[0])

    def to_json(self) -> bytes:
        """Canonical JSON. Raises ReceiptError if it would be longer than MAX_BYTES."""
        text = canonical(msgspec.to_builtins(self))
        if len(text) > MAX_BYTES:
            raise ReceiptError(f"the receipt would have {len(text)} bytes: expected at most {MAX_BYTES}; ask for less")
        return text

    def request(self, prompt_token_ids: tuple[int, ...]) -> Request:
        """The request whose choice this was. Raises RequestError for values that no request may have."""
        ends = frozenset(self.end_token_ids)
        return Request("receipt", prompt_token_ids, self.sampling.params(), int(self.seed), end_token_ids=ends)

    def altered(self) -> tuple[str, ...]:
        """Members that are not as they were written, such as "sampling.top_k"; none if sha256 is right."""
        body = msgspec.to_builtins(self)
        del body["signature"]
        stated, checksums = body.pop("sha256"), body["checksums"]
        if digest(body) == stated:
            return ()
        del body["checksums"]
        right = _checksums(body)
        names = right.keys() | checksums.keys()
        return tuple(sorted(n for n in names if right.get(n) != checksums.get(n))) or ("sha256",)


# msgspec 0.22 may free the description of a nested Struct twice when the interpreter ends: a crash in one of five runs.
# A reference too many keeps the last collection from these types.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(Receipt))


def sealed(body: Mapping[str, Any]) -> Receipt:
    """The receipt with these members, its checksums and sha256 computed, without a signature."""
    whole = {**body, "checksums": _checksums(body)}
    return msgspec.convert({**whole, "sha256": digest(whole), "signature": None}, Receipt)


def read_receipt(text: bytes) -> Receipt:
    """A receipt from JSON, canonical or not. Raises ReceiptError for anything that is not exactly one."""
    if len(text) > MAX_BYTES:
        raise ReceiptError(f"{len(text)} bytes: expected a receipt of at most {MAX_BYTES}")
    try:
        receipt = msgspec.json.decode(text, type=Receipt)
        is_whole = canonical(json.loads(text)) == canonical(msgspec.to_builtins(receipt))
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise ReceiptError(
            f"{in_words(fault)}: expected a receipt (docs/receipts.md); take the file as it was written"
        ) from None
    if not is_whole:
        raise ReceiptError("it has members that no receipt has; take the file as it was written")
    return receipt


def read_receipts(path: Path) -> list[Receipt]:
    """The receipts of a file: JSON values one after the other, on lines of their own or indented, or lists of them.

    Raises ReceiptError with the line where the value begins, also for a file that cannot be read.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as fault:
        raise ReceiptError(f"{path}: cannot be read ({fault.strerror}); expected a file of receipts") from fault
    if len(text) > MAX_BYTES or not text.strip():
        raise ReceiptError(f"{path}: {len(text)} bytes: expected receipts of 1 to {MAX_BYTES} bytes together")
    found = []
    for number, value in _values(text, path):
        try:
            parts = msgspec.json.decode(value, type=list[msgspec.Raw]) if value.startswith(b"[") else [value]
            found += [read_receipt(bytes(part)) for part in parts]
        except (ReceiptError, msgspec.DecodeError) as fault:
            raise ReceiptError(f"{path}: line {number}: {in_words(fault)}") from None
    if not found:
        raise ReceiptError(f"{path}: an empty list; expected receipts")
    return found


def _values(text: bytes, path: Path) -> Iterator[tuple[int, bytes]]:
    """The JSON values of a file as they are written, each with the number of the line where it begins."""
    number, place, decoder = 1, 0, json.JSONDecoder()
    try:
        whole = text.decode("utf-8")
        while (start := _first(whole, place)) < len(whole):
            number += whole.count("\n", place, start)
            _, end = decoder.raw_decode(whole, start)
            yield number, whole[start:end].encode()
            number += whole.count("\n", start, end)
            place = end
    except (ValueError, RecursionError) as fault:
        said = f"{fault}: expected a receipt (docs/receipts.md); take the file as it was written"
        raise ReceiptError(f"{path}: line {number}: {said}") from None


def _first(text: str, place: int) -> int:
    """The first place from here on that is no space of JSON."""
    found = _SPACE.match(text, place)
    assert found is not None
    return found.end()


def schema() -> dict[str, Any]:
    """The JSON Schema of a receipt, docs/receipt.schema.json."""
    return msgspec.json.schema(Receipt)


def _checksums(body: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, value in body.items():
        leaves = {f"{name}.{key}": leaf for key, leaf in value.items()} if isinstance(value, Mapping) else {name: value}
        found.update({path: digest(leaf)[:8] for path, leaf in leaves.items()})
    return found

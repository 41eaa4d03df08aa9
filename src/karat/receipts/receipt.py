"""Receipt: one answer with everything that decided it, as canonical JSON. docs/receipts.md says what it proves."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from karat import __version__
from karat.engine.choice import resolve_max_tokens
from karat.engine.llm import LLM
from karat.errors import ReceiptError
from karat.receipts.canonical import canonical, digest
from karat.receipts.fingerprint import Fingerprint, fingerprint_of
from karat.request import CompletionOutput, Request, RequestOutput, SamplingParams

MAX_BYTES = 16 * 1024**2  # of a receipt; an answer of a million tokens takes half of it

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Seed = Annotated[str, Meta(pattern="^[0-9]{1,19}$")]  # as text: readers of JSON keep integers only below 2^53


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON object whose members are these and no others."""


class Versions(_Part, frozen=True, forbid_unknown_fields=True):
    """What computed the answer. Another version is no difference: the fingerprint has what decides answers."""

    karat: str
    numpy: str
    tokenizers: str


class Prompt(_Part, frozen=True, forbid_unknown_fields=True):
    """The tokens, and the digest of the text (a rendered conversation too) where they were given as text."""

    token_ids: tuple[TokenId, ...]
    text_sha256: Sha256 | None


class Sampling(_Part, frozen=True, forbid_unknown_fields=True):
    """The fields of SamplingParams that decide an answer, all resolved. Log-probabilities and n decide none."""

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

    def params(self) -> SamplingParams:
        """Raises RequestError for values that no request may have."""
        values = msgspec.structs.asdict(self)
        bias = {int(token_id): value for token_id, value in self.logit_bias.items()}
        return SamplingParams(**values | {"logit_bias": bias})


class Output(_Part, frozen=True, forbid_unknown_fields=True):
    """What came out."""

    token_ids: Annotated[tuple[TokenId, ...], Meta(min_length=1)]
    text_sha256: Sha256
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None


class Receipt(_Part, frozen=True, forbid_unknown_fields=True):
    """One choice of a request.

    checksums name a member that was changed: 8 hexadecimal digits of the SHA-256 of each. sha256 is over the canonical
    JSON of all other members.
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

    def to_json(self) -> bytes:
        """Canonical JSON. Raises ReceiptError if it would be longer than MAX_BYTES."""
        text = canonical(msgspec.to_builtins(self))
        if len(text) > MAX_BYTES:
            raise ReceiptError(f"the receipt would have {len(text)} bytes: expected at most {MAX_BYTES}; ask for less")
        return text

    def request(self) -> Request:
        """The request whose choice this was. Raises RequestError for values that no request may have."""
        return Request(
            "receipt",
            self.prompt.token_ids,
            self.sampling.params(),
            int(self.seed),
            end_token_ids=frozenset(self.end_token_ids),
        )

    def altered(self) -> tuple[str, ...]:
        """Members that are not as they were written, such as "sampling.top_k"; none if sha256 is right."""
        body = msgspec.to_builtins(self)
        stated, checksums = body.pop("sha256"), body["checksums"]
        if digest(body) == stated:
            return ()
        del body["checksums"]
        right = _checksums(body)
        names = right.keys() | checksums.keys()
        return tuple(sorted(n for n in names if right.get(n) != checksums.get(n))) or ("sha256",)


def receipt_of(llm: LLM, request: Request, choice: CompletionOutput) -> Receipt:
    """The receipt of a finished choice of a request to this model. Raises ReceiptError for one that failed."""
    if choice.finish_reason not in ("stop", "length"):
        raise ReceiptError(
            f"choice {choice.index} ended with {choice.finish_reason!r}: expected one that ended with 'stop' or "
            "'length'; ask again"
        )
    params = request.params
    if params.structured_outputs is not None:
        raise ReceiptError("structured_outputs: a receipt does not hold a form yet; ask without it, or for no receipt")
    sampling: dict[str, Any] = {name: getattr(params, name) for name in Sampling.__struct_fields__}
    sampling["logit_bias"] = {str(token_id): value for token_id, value in sorted(params.logit_bias.items())}
    sampling["max_tokens"] = resolve_max_tokens(request, llm.max_model_len)
    body = {
        "format": "karat-receipt/1",
        "versions": {"karat": __version__, "numpy": version("numpy"), "tokenizers": version("tokenizers")},
        "fingerprint": asdict(fingerprint_of(llm)),
        "prompt": {"token_ids": request.prompt_token_ids, "text_sha256": _text_digest(request.prompt)},
        "end_token_ids": sorted(request.end_token_ids),
        "sampling": sampling,
        "seed": str(request.seed),
        "choice": choice.index,
        "output": {
            "token_ids": choice.token_ids,
            "text_sha256": _text_digest(choice.text),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        },
    }
    return signed(body)


def receipts_of(
    llm: LLM, output: RequestOutput, params: SamplingParams | None = None, *, is_chat: bool = False
) -> list[Receipt]:
    """The receipt of each choice of an output. `params` are those of the call (None: it had none); is_chat: of a
    conversation, which ends with further tokens.
    """
    assert output.seed is not None
    used = llm.default_params_after(len(output.prompt_token_ids)) if params is None else params
    ends = llm.chat_end_token_ids if is_chat else llm.end_token_ids
    request = Request(
        output.request_id, output.prompt_token_ids, used, output.seed, output.prompt, end_token_ids=frozenset(ends)
    )
    return [receipt_of(llm, request, choice) for choice in output.outputs]


def signed(body: Mapping[str, Any]) -> Receipt:
    """The receipt with these members, its checksums and sha256 computed."""
    whole = {**body, "checksums": _checksums(body)}
    return msgspec.convert({**whole, "sha256": digest(whole)}, Receipt)


def read_receipt(text: bytes) -> Receipt:
    """A receipt from JSON, canonical or not. Raises ReceiptError for anything that is not exactly one."""
    if len(text) > MAX_BYTES:
        raise ReceiptError(f"{len(text)} bytes: expected a receipt of at most {MAX_BYTES}")
    try:
        receipt = msgspec.json.decode(text, type=Receipt)
        is_whole = canonical(json.loads(text)) == canonical(msgspec.to_builtins(receipt))
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise ReceiptError(f"{fault}: expected a receipt (docs/receipts.md); take the file as it was written") from None
    if not is_whole:
        raise ReceiptError("it has members that no receipt has; take the file as it was written")
    return receipt


def read_receipts(path: Path) -> list[Receipt]:
    """The receipts of a file, one a line. Raises ReceiptError with the line, also for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as fault:
        raise ReceiptError(f"{path}: cannot be read ({fault.strerror}); expected a file of receipts") from fault
    if len(text) > MAX_BYTES or not text.strip():
        raise ReceiptError(f"{path}: {len(text)} bytes: expected receipts of 1 to {MAX_BYTES} bytes together")
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found.append(read_receipt(line))
        except ReceiptError as fault:
            raise ReceiptError(f"{path}: line {number}: {fault}") from None
    return found


def schema() -> dict[str, Any]:
    """The JSON Schema of a receipt, docs/receipt.schema.json."""
    return msgspec.json.schema(Receipt)


def text_digest(text: str) -> str:
    """SHA-256 of a text's UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def _text_digest(text: str | None) -> str | None:
    return None if text is None else text_digest(text)


def _checksums(body: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, value in body.items():
        leaves = {f"{name}.{key}": leaf for key, leaf in value.items()} if isinstance(value, Mapping) else {name: value}
        found.update({path: digest(leaf)[:8] for path, leaf in leaves.items()})
    return found

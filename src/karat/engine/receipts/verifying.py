"""Receipts of an engine's answers: made beside their outputs, and verified by computing them again.

A verification is a generator that computes nothing: LLM and AsyncLLM answer what it asks for, each in its way.
"""

import logging
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from karat.config import ModelConfig
from karat.engine.requests.admission import resolve_max_tokens
from karat.errors import KaratError, OtherContractError, ReceiptError, packed
from karat.outputs import CompletionOutput
from karat.receipts.canonical import digest
from karat.receipts.fingerprint import Fingerprint
from karat.receipts.making import receipt_of, text_digest, version_of
from karat.receipts.receipt import Receipt
from karat.receipts.signature import signer_of
from karat.receipts.verdict import Difference, Verdict, changed_since, impossible, require_same
from karat.request import MAX_COUNT, Resume
from karat.request_record import Request

_log = logging.getLogger(__name__)


class LoadedLLM(Protocol):
    """What receipts are judged by of a loaded model: an LLM or AsyncLLM."""

    config: ModelConfig
    max_model_len: int
    end_token_ids: frozenset[int]

    @property
    def chat_end_token_ids(self) -> frozenset[int]: ...


class ReplayCommand(msgspec.Struct, frozen=True, tag=True):
    """Choose the tokens of an answer again, a choice of a request. `token_ids` of None: generate them, as they are."""

    request: Request
    choice: int
    token_ids: tuple[int, ...] | None


def generated_anew(asked: ReplayCommand) -> Request:
    """The request whose first choice is the one that is asked for, computed after all others, with nothing shared."""
    name, resume = f"receipt-{os.urandom(8).hex()}", Resume((), asked.choice)
    return msgspec.structs.replace(asked.request, request_id=name, resume=resume, shares=False, priority=MAX_COUNT)


class Answered(NamedTuple):
    """The first token that is chosen otherwise, if there is one, and the answer as far as it was computed."""

    difference: Difference | None
    output: CompletionOutput


class Returned(NamedTuple):
    """The result of a generator."""

    result: Any


def receipts_for(
    request: Request, fingerprint: Fingerprint, max_model_len: int, given_text: str = ""
) -> Callable[[CompletionOutput], CompletionOutput]:
    """What gives a choice of a request its receipt, unless it failed. One that can have none ends in "error".

    That of an answer that is resumed is of the whole of it; given_text is the text of its beginning.
    """
    max_tokens = resolve_max_tokens(request.params, len(request.prompt_token_ids), max_model_len)

    def completed(choice: CompletionOutput) -> CompletionOutput:
        if choice.finish_reason not in ("stop", "length"):
            return choice
        try:
            whole, resume = choice, request.resume
            if resume is not None:
                ids, text = (*resume.token_ids, *choice.token_ids), given_text + choice.text
                whole = replace(choice, index=resume.choice, token_ids=ids, text=text)
            is_short = request.receipt == "digests"
            made = receipt_of(fingerprint, request, whole, max_tokens=max_tokens, digests_only=is_short)
        except Exception as error:  # noqa: BLE001 - it ends this choice alone
            _log.error("the receipt of a choice could not be made", exc_info=error)
            kind, text, _ = packed(error)
            said = f"choice {choice.index}: its receipt could not be made: {text}"
            return replace(choice, finish_reason="error", stop_reason=None, error=said, error_type=kind)
        return replace(choice, receipt=made)

    return completed


@dataclass(frozen=True, slots=True)
class Examined:
    """A receipt before its replay: its signer, and what is wrong with it already; else what is to be computed."""

    receipt: Receipt
    signer: str | None
    finding: Difference | None
    request: Request | None = None
    token_ids: tuple[int, ...] | None = None  # of the answer; None: only their digest is known


def examine(
    receipt: Receipt,
    fingerprint: Callable[[], Fingerprint],
    loaded: LoadedLLM,
    prompt_token_ids: tuple[int, ...] | None,
) -> Examined:
    """What is to be computed for a verdict. prompt_token_ids: of the request; a receipt of digests needs them.

    OtherContractError for a receipt of another model or of other rules, ReceiptError for one that lacks its prompt.
    """
    signer, signature_fault = signer_of(receipt)
    if fault := changed_since(receipt) or signature_fault:
        return Examined(receipt, signer, fault)
    require_same(receipt, fingerprint())
    wrong = impossible(
        receipt,
        vocab_size=loaded.config.vocab_size,
        end_token_ids=loaded.end_token_ids,
        chat_end_token_ids=loaded.chat_end_token_ids,
    )
    if wrong:
        return Examined(receipt, signer, wrong)
    stated, output = receipt.prompt.token_ids, receipt.output.token_ids
    if isinstance(stated, str):
        if prompt_token_ids is None:
            raise ReceiptError(
                "the receipt has only digests of prompt and answer; give the request too (--request FILE; over HTTP "
                "`request`; in Python prompt)"
            )
        if digest(prompt_token_ids) != stated:
            return Examined(receipt, signer, Difference("prompt.token_ids: their digest is not that of the request"))
        stated = prompt_token_ids
    elif prompt_token_ids is not None and prompt_token_ids != stated:
        return Examined(receipt, signer, Difference("prompt.token_ids: they are not those of the request"))
    try:
        request = receipt.request(stated)
        resolve_max_tokens(request.params, len(stated), loaded.max_model_len)
    except (KaratError, ValueError) as fault:
        return Examined(receipt, signer, Difference(f"sampling: {fault}"))
    return Examined(receipt, signer, None, request, None if isinstance(output, str) else output)


def compared(receipt: Receipt, difference: Difference | None, made: CompletionOutput) -> Difference | None:
    """The first difference between a receipt and the answer as it was computed again, tokens and end.

    OtherContractError if it may come from another version of llguidance, which compiled the form of the answer.
    """
    found = difference or _other_tokens(receipt, made) or _other_end(receipt, made)
    stated = receipt.versions.llguidance
    if found is not None and stated is not None and stated != (here := version_of("llguidance")):
        raise OtherContractError(
            f"the receipt is of another llguidance ({stated}, here {here}), which compiled the form of the answer; no "
            "verdict: install that version"
        )
    return found


def verifying(
    receipt: Receipt,
    fingerprint: Callable[[], Fingerprint],
    loaded: LoadedLLM,
    prompt_token_ids: tuple[int, ...] | None,
    begun: float,
) -> Generator[ReplayCommand, Answered, Verdict]:
    """The verdict on a receipt, by what is asked for at most once. Arguments and errors are those of `examine`.

    begun: when the verification began, by perf_counter.
    """
    examined = examine(receipt, fingerprint, loaded, prompt_token_ids)
    finding, num_tokens = examined.finding, len(receipt.output.token_ids)
    if examined.request is not None:
        difference, made = yield ReplayCommand(examined.request, receipt.choice, examined.token_ids)
        if examined.token_ids is None:
            num_tokens = len(made.token_ids)
        finding = compared(receipt, difference, made)
    kind: Literal["identical", "different"] = "identical" if finding is None else "different"
    return Verdict(kind, num_tokens, perf_counter() - begun, finding, signer=examined.signer)


def sent(steps: Generator[Any, Any, Any], answer: object = None) -> Any:
    """What a generator asks for next, once its last question has this answer; Done at its end."""
    try:
        return steps.send(answer)
    except StopIteration as end:
        return Returned(end.value)


def _other_tokens(receipt: Receipt, made: CompletionOutput) -> Difference | None:
    stated = receipt.output.token_ids
    if isinstance(stated, str) and digest(made.token_ids) != stated:
        return Difference("output.token_ids: their digest is not that of the answer")
    return None


def _other_end(receipt: Receipt, made: CompletionOutput) -> Difference | None:
    output = receipt.output
    pairs: dict[str, tuple[object, object]] = {
        "finish_reason": (made.finish_reason, output.finish_reason),
        "stop_reason": (made.stop_reason, output.stop_reason),
        "text_sha256": (text_digest(made.text), output.text_sha256),
    }
    for name, (here, stated) in pairs.items():
        if here != stated:
            return Difference(f"output.{name} is {here!r}, the receipt has {stated!r}")
    return None

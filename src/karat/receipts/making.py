"""receipt_of: the receipt of an answer that has ended."""

import hashlib
from dataclasses import asdict, fields
from functools import cache
from typing import Any

from karat.config import VERSION
from karat.errors import ReceiptError
from karat.outputs import CompletionOutput
from karat.receipts.canonical import digest
from karat.receipts.fingerprint import Fingerprint
from karat.receipts.receipt import Receipt, Sampling, sealed
from karat.request import SamplingParams, StructuredOutputs
from karat.request_record import Request


def receipt_of(
    fingerprint: Fingerprint,
    request: Request,
    choice: CompletionOutput,
    *,
    max_tokens: int,
    digests_only: bool = False,
) -> Receipt:
    """The receipt of a finished choice of a request. Raises ReceiptError for one that failed.

    max_tokens: the limit that the choice had. digests_only: prompt and answer are left out.
    """
    if choice.finish_reason not in ("stop", "length"):
        raise ReceiptError(
            f"choice {choice.index} ended with {choice.finish_reason!r}: expected one that ended with 'stop' or "
            "'length'; ask again"
        )
    form = request.params.structured_outputs
    llguidance = None if form is None else version_of("llguidance")
    ids = digest if digests_only else tuple
    return sealed(
        {
            "format": "karat-receipt/1",
            "versions": {
                "karat": VERSION,
                "numpy": version_of("numpy"),
                "tokenizers": version_of("tokenizers"),
                "llguidance": llguidance,
            },
            "fingerprint": asdict(fingerprint),
            "prompt": {"token_ids": ids(request.prompt_token_ids), "text_sha256": _text_digest(request.prompt)},
            "end_token_ids": sorted(request.end_token_ids),
            "sampling": _sampling(request.params, max_tokens),
            "seed": str(request.seed),
            "choice": choice.index,
            "output": {
                "token_ids": ids(choice.token_ids),
                "text_sha256": text_digest(choice.text),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
            },
        }
    )


def text_digest(text: str) -> str:
    """SHA-256 of a text's UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def _text_digest(text: str | None) -> str | None:
    return None if text is None else text_digest(text)


def _sampling(params: SamplingParams, max_tokens: int) -> dict[str, Any]:
    unused = [name for is_used, names in _later(params) if not is_used for name in names]
    sampling: dict[str, Any] = {
        name: getattr(params, name) for name in Sampling.__struct_fields__ if name not in unused
    }
    sampling["logit_bias"] = {str(token_id): value for token_id, value in sorted(params.logit_bias.items())}
    sampling["max_tokens"] = max_tokens
    sampling["structured_outputs"] = _form(params.structured_outputs)
    return sampling


def _later(params: SamplingParams) -> tuple[tuple[bool, tuple[str, ...]], ...]:
    """The samplers that came after the first receipts: whether each is used, and its fields."""
    return (
        (params.top_n_sigma > 0, ("top_n_sigma",)),
        (params.typical_p < 1, ("typical_p",)),
        (params.xtc_probability > 0, ("xtc_probability", "xtc_threshold")),
        (params.repeat_last_n is not None, ("repeat_last_n",)),
        (
            params.dry_multiplier > 0,
            ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
        ),
        (params.no_repeat_ngram_size > 0, ("no_repeat_ngram_size",)),
        (bool(params.bad_words), ("bad_words",)),
        (bool(params.bad_words_ids), ("bad_words_ids",)),
    )


def _form(form: StructuredOutputs | None) -> dict[str, Any] | None:
    """The field of a form that is given."""
    if form is None:
        return None
    values = {field.name: getattr(form, field.name) for field in fields(form)}
    return {name: value for name, value in values.items() if value is not None}


@cache
def version_of(package: str) -> str:
    from importlib.metadata import version  # 8 ms of a start

    return version(package)

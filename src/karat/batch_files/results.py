"""Results: an answer as a line of the output or of the errors, in OpenAI's form."""

import hashlib
from typing import Any

import msgspec

from karat.batch_files.journal import BatchAnswer
from karat.batch_files.lines import BatchRequest, Fault

_MADE = ("id", "created", "created_at", "completed_at", "timings")  # by the server, anew each time
_CACHED = {"prompt_tokens_details": "cached_tokens", "input_tokens_details": "cached_tokens"}


def result_line(request: BatchRequest, answer: BatchAnswer, *, times: bool) -> bytes:
    """A line for a request that was answered, well or with an error.

    Without `times` it has nothing that differs between two runs of the same batch.
    """
    body: Any = msgspec.Raw(answer.body) if times else without_times(msgspec.json.decode(answer.body))
    response: dict[str, Any] = {"status_code": answer.status, "body": body}
    if times:
        response["request_id"] = answer.request_id
    named = hashlib.blake2b(request.digest + request.key.encode("utf-8", "replace"), digest_size=12).hexdigest()
    line = {"id": f"batch_req_{named}", "custom_id": request.custom_id, "response": response, "error": None}
    return msgspec.json.encode(line) + b"\n"


def fault_line(fault: Fault) -> bytes:
    """A line for one of the input that is no request."""
    error = {"code": fault.code, "message": fault.message}
    line = {"id": f"batch_line_{fault.number}", "custom_id": fault.custom_id, "response": None, "error": error}
    return msgspec.json.encode(line) + b"\n"


def without_times(body: Any) -> Any:
    """An answer without times, ids that the server made, and tokens that it had in its cache. What tools were called
    with stays as it is.
    """
    if not isinstance(body, dict):
        return body
    kept = {name: value for name, value in body.items() if name not in _MADE and name != "request_id"}
    for choice in kept.get("choices") or ():
        _without_ids((choice.get("message") or {}).get("tool_calls"))
    _without_ids(kept.get("output"))
    _without_ids(kept.get("content"))
    usage = kept.get("usage")
    if isinstance(usage, dict):
        for part, name in _CACHED.items():
            if isinstance(usage.get(part), dict):
                usage[part].pop(name, None)
        cached = usage.pop("cache_read_input_tokens", None)
        if cached:
            usage["input_tokens"] += cached
    return kept


def _without_ids(items: Any) -> None:
    for item in items if isinstance(items, list) else ():
        for name in ("id", "call_id"):
            item.pop(name, None)

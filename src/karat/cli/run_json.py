"""The object that `karat run --json` prints; docs/cli.md describes it."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from karat.cli.generation import Meter, Task
from karat.request import SamplingParams

if TYPE_CHECKING:
    from karat.outputs import StreamChunk, TokenLogprobs


def as_object(
    task: Task, chunks: "Sequence[StreamChunk]", meter: Meter, given: set[str], load_s: float
) -> dict[str, Any]:
    """All facts of an answer whose stream has ended; `given` are the parameters that the user set."""
    llm, params = task.llm, task.params
    usual = SamplingParams()
    defaults = {
        field.name: getattr(params, field.name)
        for field in fields(params)
        if field.name not in {*given, "seed"} and getattr(params, field.name) != getattr(usual, field.name)
    }
    answer: dict[str, Any] = {
        "model": str(llm.path),
        "executor": llm.executor,
        "device": llm.device,
        "dtype": llm.dtype,
        "kv_dtype": llm.kv_dtype,
        "activations": llm.activations,
        "prompt": task.prompt,
        "prompt_token_ids": task.prompt_ids,
        "choices": [_choice(index, [c for c in chunks if c.index == index]) for index in range(params.n)],
        "usage": {
            "prompt_tokens": meter.num_prompt_tokens,
            "completion_tokens": meter.num_tokens,
            "total_tokens": meter.num_prompt_tokens + meter.num_tokens,
        },
        "timings": {
            "load_s": load_s,
            "prefill_s": meter.prefill_s,
            "decode_s": meter.decode_s,
            "prefill_tokens_per_s": meter.prefill_rate,
            "decode_tokens_per_s": meter.decode_rate,
        },
        "sampling": asdict(params),
        "defaults_applied": defaults,
    }
    if params.prompt_logprobs is not None:
        (entries,) = (chunk.prompt_logprobs for chunk in chunks if chunk.prompt_logprobs is not None)
        answer["prompt_logprobs"] = _positions(task.prompt_ids[: len(entries)], entries)
    return answer


def _choice(index: int, chunks: "Sequence[StreamChunk]") -> dict[str, Any]:
    last = chunks[-1]
    token_ids = [token_id for chunk in chunks for token_id in chunk.token_ids]
    choice = {
        "index": index,
        "text": "".join(chunk.text for chunk in chunks),
        "token_ids": token_ids,
        "finish_reason": last.finish_reason,
        "stop_reason": last.stop_reason,
        "error": last.error,
    }
    if last.logprobs is not None:
        choice["logprobs"] = _positions(token_ids, [entry for chunk in chunks for entry in chunk.logprobs or ()])
    if entries := [entry for chunk in chunks for entry in chunk.explanations or ()]:
        from msgspec import to_builtins

        choice["explain"] = to_builtins(entries)
    return choice


def _positions(token_ids: Sequence[int], logprobs: "Iterable[TokenLogprobs | None]") -> list[dict[str, Any] | None]:
    """For each position its own token, and the likeliest tokens from rank 1 on; None for a position that nothing
    precedes.
    """
    return [
        None
        if entry is None
        else {
            **_token(token_id, entry),
            "top": [_token(other, entry) for other in sorted(entry, key=lambda other: entry[other].rank)],
        }
        for token_id, entry in zip(token_ids, logprobs, strict=True)
    ]


def _token(token_id: int, entry: "TokenLogprobs") -> dict[str, Any]:
    found = entry[token_id]
    return {"token_id": token_id, "token": found.decoded_token, "logprob": found.logprob, "rank": found.rank}

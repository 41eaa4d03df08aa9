"""A long prompt that is computed while somebody waits: progress, and an end to it within about a second."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from karat.cli.interrupts import Interrupt
from karat.cli.progress import Progress

if TYPE_CHECKING:
    from karat.batch import ForwardBatch
    from karat.engine.llm import LLM

STEP_S = 0.5  # what a step of a prompt shall take
_FIRST_STEP = 64  # tokens, of which the first step learns how long they take
_SHOWN_AFTER_S = 0.5


@contextmanager
def prefill_watched(
    llm: "LLM", num_tokens: int, interrupt: Interrupt | None = None, *, quiet: bool = False
) -> Iterator[None]:
    """Inside, the prompt of `num_tokens` of the one request there is shows how far it is, on a terminal.

    A Ctrl-C that `interrupt` noted raises KeyboardInterrupt between two steps. Those of the native executor are as long
    as STEP_S: for it, how a prompt is cut into steps changes no bit. Decoding is left alone.
    """
    engine, run, progress, begun = llm.engine, llm.engine.run, Progress(quiet=quiet), perf_counter()
    most = engine.config.max_num_batched_tokens
    is_prefill, is_cut = True, llm.executor == "native"

    def watched(batch: "ForwardBatch") -> object:
        nonlocal is_prefill
        if not is_prefill:
            return run(batch)
        if interrupt is not None and interrupt.requested:
            raise KeyboardInterrupt
        before = perf_counter()
        logits = run(batch)
        after = perf_counter()
        if is_cut:
            engine.scheduler.limit_steps(round(batch.num_tokens * STEP_S / max(after - before, 1e-6)))
        done = int(batch.context_lens.max())
        is_prefill = done < num_tokens
        if is_prefill and after - begun > _SHOWN_AFTER_S:
            progress(f"prompt: {done:,} of {num_tokens:,} tokens")
        elif not is_prefill:
            progress.clear()
            engine.scheduler.limit_steps(most)
        return logits

    if is_cut:
        engine.scheduler.limit_steps(_FIRST_STEP)
    engine.run = watched  # type: ignore[assignment]
    try:
        yield
    finally:
        engine.run = run
        engine.scheduler.limit_steps(most)
        progress.clear()

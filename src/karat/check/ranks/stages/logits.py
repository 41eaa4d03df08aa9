"""The stage *logits*: of all ranks together, against one process."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from karat.check.ranks.session import ParallelSession, ParallelStage, overall
from karat.check.session.same_bits import digest
from karat.engine.engine import Engine
from karat.engine.loading import open_runner
from karat.ops.executor import Executor
from karat.text.placeholder import placeholder_tokenizer


def run(session: ParallelSession) -> ParallelStage:
    """Digests of all logits, computed at once and in chunks. The reference executor may differ by rounding."""
    plan, control, lines, verdicts = session.plan, session.control, [], set()
    config = control.config
    for chunk in dict.fromkeys((plan.num_tokens, min(7, plan.num_tokens))):
        sizes = plan.sizes(chunk)
        tokenizer = placeholder_tokenizer(config.vocab_size)  # ids are computed, and no text is made of them
        run = open_runner(control, session.kv_dtype, sizes.num_blocks, sizes.step_limits)
        want = _compute(Engine(run, tokenizer, sizes), session.tokens)
        got = _compute(Engine(session.ranks, tokenizer, sizes), session.tokens)
        verdict, how = _judged(control.ops, want, got)
        verdicts.add(verdict)
        lines.append(
            f"chunks of {chunk}: 1 process {digest([want])[:16]}, {plan.size} ranks {digest([got])[:16]}: {how}"
        )
    return ParallelStage("logits", overall(verdicts), tuple(lines))


def _judged(ops: Executor, want: NDArray[np.floating], got: NDArray[np.floating]) -> tuple[str, str]:
    if bad := next((side for side, x in (("1 process", want), ("ranks", got)) if not np.isfinite(x).all()), None):
        return "bug", f"NaN or infinity in the logits of {bad}"
    if want.tobytes() == got.tobytes():
        return "exact", "the same bits"
    off = float(np.abs(want - got).max() / np.abs(want).max())
    if ops.executor != "native" and off < 1e-4:
        return "numerics", f"within roundings ({off:.1e}); only the native executor promises bits"
    return "bug", f"DIFFERENT by up to {off:.1e} of the largest"


def _compute(engine: Engine, tokens: Sequence[int]) -> NDArray[np.floating]:
    logits = np.empty((len(tokens), engine.config.vocab_size), np.float32)
    reader = engine.add_logits(tuple(tokens), logits)
    while not reader.done:
        engine.step()
    if reader.error:
        raise reader.error
    return logits

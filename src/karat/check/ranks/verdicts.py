"""The stages of `karat check --tensor-parallel-size`: what each rank holds, all ranks' logits, every result.

Each is held against the checkpoint or against one process.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.model.checked import CheckedModel
from karat.check.ranks.parallel import first_difference, record_ranks
from karat.check.ranks.session import ParallelSession, ParallelStage, overall
from karat.check.record.executors import Steps, record_model
from karat.check.session.same_bits import digest
from karat.check.trace.selection import Selection
from karat.check.trace.writing import write_trace
from karat.engine.engine import Engine
from karat.engine.model_running import open_runner
from karat.ops.executor import Executor
from karat.text.placeholder import placeholder_tokenizer


def shards(session: ParallelSession) -> ParallelStage:
    """Whether the parts that ranks hold are those of the checkpoint, and how much of it each reads."""
    plan, ranks, held, faults = session.plan, session.ranks, session.held, session.faults
    total = sum(weight.num_bytes for weight in {w.name: w for w in plan.model.stored.values()}.values())
    read = ", ".join(f"{100 * holding.bytes_read / total:.1f} %" for holding in ranks.holdings)
    lines = [
        f"{sum(map(len, held))} parts of {len(plan.model.stored)} tensors gathered; ranks read {read} of the bytes"
    ]
    lines += [f"{fault.kind}: {fault.name}: {fault.what}" for fault in faults]
    return ParallelStage("shards", "bug" if faults else "exact", tuple(lines))


def logits(session: ParallelSession) -> ParallelStage:
    """Digests of all logits, computed at once and in chunks. The reference executor may differ by rounding."""
    plan, control, lines, verdicts = session.plan, session.control, [], set()
    config = control.config
    for chunk in dict.fromkeys((plan.num_tokens, min(7, plan.num_tokens))):
        sizes = plan.sizes(chunk)
        tokenizer = placeholder_tokenizer(config.vocab_size)  # ids are computed, and no text is made of them
        states = sizes.num_state_slots
        run = open_runner(control, session.kv_dtype, sizes.group_blocks, sizes.step_limits, num_states=states)
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
    if not ops.traits.chunk_invariant and off < 1e-4:
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


def trace(session: ParallelSession) -> ParallelStage:
    """Every result op by op, on one process and on all ranks; the first that differs is reported."""
    plan, control = session.plan, session.control
    wrong = {fault.name.rpartition(".")[0] for fault in session.faults if fault.kind == "loading"}
    steps = Steps.chunked(session.tokens, max(1, (plan.num_tokens + 1) // 2))
    alone = record_model(control, steps, selection=Selection(attention=False), kv_dtype=session.kv_dtype)
    trace = record_ranks(session.ranks, steps, session.kv_dtype)
    lines = []
    if plan.trace is not None:
        write_trace(plan.trace, trace)
        lines.append(f"the traces of all ranks are in {plan.trace}")
    if not control.ops.traits.chunk_invariant:
        return ParallelStage("trace", "skipped", (*lines, "not compared: only the native executor promises bits"))
    blame = first_difference(plan.model.graph, alone, trace, _biases(plan.model))
    if blame is None:
        lines.append(f"{len(alone.arrays)} results, op by op: the same bits")
        return ParallelStage("trace", "exact", tuple(lines))
    kind = "loading" if blame.name in wrong else blame.kind
    lines.append(f"{kind}: the first result that differs is {blame.name}, {blame.what}")
    return ParallelStage("trace", "bug", tuple(lines))


def _biases(model: CheckedModel) -> dict[str, Any]:
    """Biases of row-parallel layers, by the layers' names."""
    ends = (".o_proj.bias", ".down_proj.bias")
    return {
        name.removesuffix(".bias"): weight.to_array(np.dtype(np.float32))
        for name, weight in model.stored.items()
        if name.endswith(ends)
    }


STAGES: Mapping[str, Callable[[ParallelSession], ParallelStage]] = {"shards": shards, "logits": logits, "trace": trace}

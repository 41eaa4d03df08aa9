"""The stage *trace*: every result of the ranks, op by op, against one process."""

from typing import Any

import numpy as np

from karat.check.model.checked import CheckedModel
from karat.check.ranks.parallel import first_difference, record_ranks
from karat.check.ranks.session import ParallelSession, ParallelStage
from karat.check.record.executors import Steps, record_model
from karat.check.trace.selection import Selection
from karat.check.trace.writing import write_trace


def run(session: ParallelSession) -> ParallelStage:
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
    if control.ops.executor != "native":
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

"""The stage *shards*: what each rank holds of the weights."""

from karat.check.ranks.session import ParallelSession, ParallelStage


def run(session: ParallelSession) -> ParallelStage:
    """Whether the parts that ranks hold are those of the checkpoint, and how much of it each reads."""
    plan, ranks, held, faults = session.plan, session.ranks, session.held, session.faults
    total = sum(weight.num_bytes for weight in {w.name: w for w in plan.model.stored.values()}.values())
    read = ", ".join(f"{100 * holding.bytes_read / total:.1f} %" for holding in ranks.holdings)
    lines = [
        f"{sum(map(len, held))} parts of {len(plan.model.stored)} tensors gathered; ranks read {read} of the bytes"
    ]
    lines += [f"{fault.kind}: {fault.name}: {fault.what}" for fault in faults]
    return ParallelStage("shards", "bug" if faults else "exact", tuple(lines))

"""`karat check --tensor-parallel-size N`: ranks against one process."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from karat.cli.terminal import emit

if TYPE_CHECKING:
    from karat.check.model.checked import CheckedModel


def show_ranks(
    model: "CheckedModel", size: int, num_tokens: int, chosen: dict[str, Any], *, trace: Path | None, as_json: bool
) -> int:
    """Show each stage when it is done; return the exit code. `chosen` are fields of the plan."""
    from karat.check.ranks.check import check_parallel
    from karat.check.ranks.session import ParallelPlan, overall

    plan = ParallelPlan(model=model, size=size, num_tokens=num_tokens, trace=trace, **chosen)
    stages = []
    for stage in check_parallel(plan):
        stages.append(stage)
        if not as_json:
            emit(
                "\n".join([f"{stage.name:11} {stage.verdict}", *(f"            {line}" for line in stage.lines)]) + "\n"
            )
    verdict = overall({stage.verdict for stage in stages})
    rows = [{"name": stage.name, "verdict": stage.verdict, "lines": list(stage.lines)} for stage in stages]
    facts = {"verdict": verdict, "model": str(plan.model.path), "ranks": size, "tokens": num_tokens, "stages": rows}
    emit(json.dumps(facts, indent=2, ensure_ascii=False) + "\n" if as_json else f"verdict: {verdict}\n")
    return 1 if verdict == "bug" else 0

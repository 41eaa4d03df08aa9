"""`karat diagnose`: which op of a traced run is wrong, and which mistake it is."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from karat.cli.terminal import emit

if TYPE_CHECKING:
    from karat.check.diagnose import Diagnosis

EXAMPLES = """
Examples

  karat diagnose engine.trace --model org/name
  karat diagnose engine.trace -m ./my-model --json
  karat diagnose ours.trace --reference theirs.trace

Exit code 0: exact or explained by rounding. 1: a bug, named or not.
"""


def diagnose(
    path: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace of any engine (docs/trace-format.md).")],
    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="MODEL", help="The model that was run (default: embedded).")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(metavar="TRACE", help="A trace of the same tokens that is known to be right.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="S", help="At most so long for each search for two mistakes at one place.")
    ] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Find the op of a traced run that departs from the right computation of its own inputs, and name the bug.

    Each wrong op is run again from its recorded inputs with every known mistake. A bug is named only where its mistake
    gives the recorded numbers to rounding; what gives them equally well is named with it.
    """
    from karat.check.compare import compare
    from karat.check.diagnose import Diagnoser
    from karat.check.model import open_model
    from karat.check.prompt import findings_of_model, token_lines
    from karat.check.ranks import gathered
    from karat.check.trace import read_trace
    from karat.check.wording import diagnosis_lines, times

    opened = open_model(model)
    trace, differing = gathered(opened.graph, read_trace(path))
    diagnoser = Diagnoser(opened.graph, opened.weights(trace.info.dtype), trace, seconds=seconds)
    tokens = findings_of_model(opened, trace)
    diagnosis = diagnoser.run()
    if as_json:
        facts = as_facts(diagnosis) | {"different_on_ranks": differing}
        if tokens:
            facts |= {"verdict": "bug", "tokens": [asdict(finding) for finding in tokens]}
        emit(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    else:
        lines = diagnosis_lines(diagnosis, opened.graph, trace.info)
        if differing:
            lines += ["", f"not equal on all ranks, rank 0's is judged: {', '.join(differing[:8])}"]
        if tokens:
            lines[1:2] = ["verdict: bug", "", *token_lines(tokens), *([""] if diagnosis.is_healthy else []),
                          *([f"arithmetic {lines[1]}"] if diagnosis.is_healthy else [])]  # fmt: skip
        if reference is not None:
            drift = compare(diagnoser.replay, read_trace(reference)).drift
            lines += [
                "",
                "accumulated difference to the reference trace, in multiples of what rounding does to a whole run:",
            ]
            lines += [
                f"   {d.name}: {d.largest:.3g}, {times(d.ratio)}"
                for d in drift
                if opened.graph.nodes[d.name].role in ("model.embed_tokens", "layer", "lm_head")
            ]
        emit("\n".join(lines) + "\n")
    raise typer.Exit(0 if diagnosis.is_healthy and not tokens else 1)


def as_facts(diagnosis: "Diagnosis") -> dict[str, Any]:
    """The diagnosis as JSON has it; infinite ratios as null."""

    def finite(x: float) -> float | None:
        return x if x < float("inf") else None

    verdict = "bug"
    if diagnosis.is_healthy:
        verdict = "exact" if all(finding.exact for finding in diagnosis.findings) else "numerics"
    return {
        "verdict": verdict,
        "bugs": [
            {
                "classes": [sorted(bugs) for bugs in named.classes],
                "details": named.details,
                "places": named.places,
                "ratio": finite(named.first.finding.ratio),
                "ratio_with_mistake": finite(named.first.explanations[0].ratio),
            }
            for named in diagnosis.named
        ],
        "unexplained": [item.finding.name for item in diagnosis.unexplained],
        "results": [
            {
                key: finite(value) if isinstance(value, float) else value
                for key, value in asdict(finding).items()
                if key != "by_token"
            }
            for finding in diagnosis.findings
        ],
        "not_finite": [finding.name for finding in diagnosis.not_finite],
        "not_judged": diagnosis.beyond_judging,
        "missing": diagnosis.missing,
    }

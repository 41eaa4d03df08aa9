"""`karat diagnose`: which op of a traced run is wrong, and which mistake it is."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from karat.cli.exits import ends_in_verdict
from karat.cli.options import OverrideOptions
from karat.cli.progress import Progress
from karat.cli.terminal import emit, note
from karat.cli.traced_model import model_named_by
from karat.errors import TraceError

if TYPE_CHECKING:
    from karat.check.diagnosis.reference import Departure
    from karat.check.diagnosis.verdict import Diagnosis
    from karat.check.model.checked import CheckedModel
    from karat.check.trace.format import Trace
    from karat.checkpoint.overrides import Overrides

EXAMPLES = """
Examples

  karat diagnose engine.trace --model org/name
  karat diagnose engine.trace -m ./my-model --json
  karat diagnose ours.trace --reference theirs.trace
  karat diagnose engine.trace --from all       which part changes the logits

Exit code 0: exact or explained by rounding.
1: a bug, named or not, or further from the reference than rounding goes.
2: it could not be judged, or is undecided: stderr says why.
"""


@ends_in_verdict
def diagnose(
    path: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace of any engine (docs/trace-format.md).")],
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            metavar="MODEL",
            help="The model that was run (default: the one that the trace names, or the embedded one).",
        ),
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(metavar="TRACE", help="A trace of the same tokens that is known to be right.")
    ] = None,
    onward_from: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="PART",
            help="Go on from the engine's own result of PART with the right rest: embedding, attention:K, layer:K, "
            "norm, head, or all; repeatable.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="S", min=0, help="Time limit of all searches for mistakes together.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress on stderr.")] = False,
    *,
    words: OverrideOptions,
) -> None:
    """Find the op of a traced run that departs from the right computation of its own inputs, and name the bug.

    Each wrong op is run again from its recorded inputs with every known mistake. A bug is named only where its mistake
    gives the recorded numbers to rounding; mistakes that give them equally well are named with it.
    """
    from karat.check.diagnosis.diagnose import Diagnoser
    from karat.check.diagnosis.disagreement import RankTraces
    from karat.check.diagnosis.onward import onward, onward_lines, suspects
    from karat.check.diagnosis.peers import graph_of, known_difference
    from karat.check.diagnosis.reference import departure, departure_alone, departure_lines
    from karat.check.diagnosis.wording import diagnosis_lines
    from karat.check.model.roles import shortened
    from karat.check.replay.gathering import gathered
    from karat.check.replay.replay import Replay
    from karat.check.replay.resolution import resolution
    from karat.check.replay.validate import misnamed_of
    from karat.check.text.prompt import findings_of_model, token_lines
    from karat.check.trace.reading import read_trace

    trace, right = read_trace(path), None if reference is None else read_trace(reference)
    opened = _model_of(model, trace, right, words.overrides())
    if opened is None:
        assert right is not None
        raise typer.Exit(_show_alone(departure_alone(trace, right), trace, right, as_json=as_json))
    ranked = trace
    trace, differing = gathered(opened.graph, ranked)
    ranks = RankTraces(opened.graph, opened.weights(trace.info.dtype), ranked, differing) if differing else None
    if (disagreement := ranks.disagreement() if ranks else None) is not None:
        note(disagreement.text)
        trace, _ = gathered(opened.graph, ranked, disagreement.rank)
    progress = Progress(quiet=quiet)

    def say(text: str) -> None:
        progress.clear()
        note(text)

    diagnoser = Diagnoser(
        opened.graph,
        opened.weights(trace.info.dtype),
        trace,
        ranks=ranks if disagreement else None,
        seconds=seconds / 3,
        budget=seconds,
        progress=progress,
        say=say,
    )
    for misnamed in misnamed_of(opened.graph, trace)[0]:
        note(f"not used: {misnamed.name}: {misnamed.why}" + (f"; is it {misnamed.meant}?" if misnamed.meant else ""))
    tokens = findings_of_model(opened, trace)
    if known := known_difference(trace.info.executor, opened.config, max(trace.info.positions) + 1):
        note(known.text)
    try:
        diagnosis = diagnoser.run()
    finally:
        progress.clear()
    if not (diagnosis.findings or diagnosis.beyond_judging or tokens or right is not None):
        raise TraceError(
            f"{path}: nothing to judge: none of its {len(trace.arrays)} arrays has the name of a result of this model; "
            "karat trace --validate says which names are meant"
        )
    left = None
    if right is not None:
        right, _ = gathered(opened.graph, right)
        graph = graph_of(right.info, opened)
        left = departure(diagnoser.replay, Replay(graph, opened.weights(right.info.dtype), right))
    rest = onward(diagnoser.replay, onward_from) if onward_from else None
    is_healthy = diagnosis.is_healthy and disagreement is None and not tokens and not (left is not None and left.leaves)
    if as_json:
        facts = as_facts(diagnosis) | {"reach": resolution(diagnoser.replay), "different_on_ranks": differing}
        facts |= {} if disagreement is None else {"ranks": asdict(disagreement)}
        if rest is not None:
            parts = [asdict(one) for one in rest[0]]
            facts["from"] = {"parts": parts, "noise": rest[1], "suspects": suspects(*rest[:2])}
        facts |= {} if left is None else _of_reference(left)
        if tokens:
            facts |= {"tokens": [asdict(finding) for finding in tokens]}
        emit(json.dumps(facts if is_healthy else facts | {"verdict": "bug"}, indent=2, ensure_ascii=False) + "\n")
        raise _end(path, diagnosis, is_healthy=is_healthy)
    lines = diagnosis_lines(diagnosis, opened.graph, trace.info)
    if disagreement is not None:
        lines[2:2] = ["", disagreement.text]
    elif differing:
        names = shortened(differing, opened.graph)
        lines += ["", f"not equal on all ranks, by no more than rounding, and rank 0's is judged: {names}"]
    if rest is not None:
        lines += ["", *onward_lines(*rest)]
    if left is not None and right is not None:
        lines += ["", *departure_lines(left, trace, right, every_op_right=diagnosis.is_healthy)]
    if not is_healthy and diagnosis.is_healthy:
        lines[1:2] = ["verdict: bug", *(["", *token_lines(tokens)] if tokens else []), "", f"arithmetic {lines[1]}"]
    elif tokens:
        lines[1:2] = ["verdict: bug", "", *token_lines(tokens)]
    emit("\n".join(lines) + "\n")
    raise _end(path, diagnosis, is_healthy=is_healthy)


def _end(path: Path, diagnosis: "Diagnosis", *, is_healthy: bool) -> Exception:
    """The exit code of the verdict, or the open question that prevents one."""
    if is_healthy and diagnosis.is_undecided:
        return TraceError(
            f'{path}: no verdict: it does not say whether its engine rounds activations: state activations="ggml" if '
            'it does, "none" if not'
        )
    return typer.Exit(0 if is_healthy else 1)


def _model_of(
    model: str | None, trace: "Trace", reference: "Trace | None", overrides: "Overrides"
) -> "CheckedModel | None":
    """The model of the command line; else the one that the traces name, if it is here; else the embedded one.

    None if the traces are not of that one either and there is a reference: comparing traces needs no model.
    """
    from karat.check.model.checked import open_model
    from karat.check.model.weights import digest
    from karat.check.replay.gathering import gathered
    from karat.check.replay.replay import Replay

    if model is not None:
        return open_model(model, overrides)
    traces = [made for made in (trace, reference) if made is not None]
    if (named := model_named_by(*traces, overrides=overrides)) is not None:
        return named
    names = dict.fromkeys(made.info.model for made in traces if made.info.model)
    embedded = open_model(None, overrides)
    try:
        if names and reference is not None and trace.info.digest != digest(embedded.stored):
            raise TraceError(f"the traces are of {', '.join(names)}")
        whole, _ = gathered(embedded.graph, trace)
        Replay(embedded.graph, embedded.weights(trace.info.dtype), whole)
    except TraceError as fault:
        if reference is None:
            raise TraceError(f"{fault}; the trace does not fit the embedded model: give its own with --model") from None
        note("no model here fits the traces, so they are compared by the names of results; --model gives more")
        return None
    note("model: the embedded one; another is given with --model")
    return embedded


def _show_alone(left: "Departure", trace: "Trace", reference: "Trace", *, as_json: bool) -> int:
    """Compare two traces without a model; return the exit code."""
    from karat.check.diagnosis.reference import departure_lines

    exact = all(drift.largest == 0 for drift in left.drift)
    verdict = "bug" if left.first else "exact" if exact else "numerics"
    if as_json:
        emit(json.dumps({"verdict": verdict} | _of_reference(left), indent=2, ensure_ascii=False) + "\n")
    else:
        head = f"{trace.info.executor}, {trace.info.dtype}: {trace.info.num_tokens} tokens, {len(left.drift)} results"
        lines = departure_lines(left, trace, reference, every_op_right=False)
        emit("\n".join([f"{head} beside the reference's", f"verdict: {verdict}", "", *lines]) + "\n")
    return 1 if left.first else 0


def _of_reference(left: "Departure") -> dict[str, Any]:
    first = None if left.first is None else left.first.name
    drift = [{"name": d.name, "largest": _finite(d.largest), "ratio": _finite(d.ratio)} for d in left.drift]
    other = None if left.other is None else left.other.name
    return {"first_leaves_reference": first, "other_weights_at": other, "with_model": left.has_model, "drift": drift}


def _finite(x: float) -> float | None:
    return x if x < float("inf") else None


def as_facts(diagnosis: "Diagnosis") -> dict[str, Any]:
    """The diagnosis for JSON, infinite ratios as null."""
    verdict = "bug"
    if diagnosis.is_healthy:
        verdict = "exact" if all(finding.exact for finding in diagnosis.findings) else "numerics"
        verdict = "undecided" if diagnosis.is_undecided else verdict
    return {
        "verdict": verdict,
        "bugs": [
            {
                "classes": [sorted(bugs) for bugs in named.classes],
                "details": named.details,
                "places": named.places,
                "below_floor": named.hidden,
                "mistake_in": [e.nodes for e in named.first.explanations if e.bugs in named.classes],
                "ratio": _finite(named.first.finding.ratio),
                "ratio_with_mistake": _finite(named.first.explanations[0].ratio),
            }
            for named in diagnosis.named
        ],
        "unexplained": [item.finding.name for item in diagnosis.unexplained],
        "hints": {item.finding.name: item.hint for item in diagnosis.unexplained if item.hint},
        "empty": {item.finding.name: item.empty for item in diagnosis.unexplained if item.empty},
        "not_tried": {item.finding.name: item.not_tried for item in diagnosis.unexplained if item.not_tried},
        "patterns": {
            item.finding.name: asdict(item.pattern) for item in diagnosis.unexplained if item.pattern is not None
        },
        "assumed": None if diagnosis.assumed is None else asdict(diagnosis.assumed),
        "results": [
            {
                key: _finite(value) if isinstance(value, float) else value
                for key, value in asdict(finding).items()
                if key != "by_token"
            }
            for finding in diagnosis.findings
        ],
        "not_finite": [finding.name for finding in diagnosis.not_finite],
        "not_judged": diagnosis.beyond_judging,
        "follows": diagnosis.follows,
        "missing": diagnosis.missing,
    }

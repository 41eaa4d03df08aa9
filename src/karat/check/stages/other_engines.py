"""Stages llama.cpp and trace: the run of another engine, each op on its own inputs."""

from dataclasses import replace

from karat.check.diagnosis.diagnose import Diagnoser
from karat.check.diagnosis.peers import graph_of, known_difference
from karat.check.diagnosis.wording import diagnosis_lines
from karat.check.session.session import CheckSession
from karat.check.session.stage import Stage, Verdict
from karat.check.trace.format import Trace


def run_trace(session: CheckSession) -> Stage:
    """The trace that the plan names."""
    assert session.other is not None
    return _judged(session, "trace", session.other)


def run_llamacpp(session: CheckSession) -> Stage:
    """llama.cpp's run."""
    trace = session.beside["llama.cpp"]
    stage = _judged(session, "llama.cpp", trace)
    if not trace.info.rounds_activations:
        return stage
    ours = "does not" if session.activations == session.dtype else f"takes {session.activations}"
    note = f"llama.cpp rounds activations (by the weights' type; for GELU to float16), Karat {ours}: hence its distance"
    return replace(stage, lines=[*stage.lines, note])


def _judged(session: CheckSession, name: str, trace: Trace) -> Stage:
    """The diagnosis of `trace` as stage `name`: each op on its own inputs."""
    model = session.plan.model
    known = known_difference(trace.info.executor, model.config, max(trace.info.positions) + 1)
    graph = graph_of(trace.info, model)
    diagnosis = Diagnoser(graph, model.weights(trace.info.dtype), trace).run()
    named = [sorted(named.bugs) for named in diagnosis.named]
    lines = diagnosis_lines(diagnosis, graph, trace.info)
    lines += [] if known is None else [f"{known.text}; here its ops are held against what it computes"]
    if not diagnosis.findings and not diagnosis.beyond_judging:
        return Stage(name, "skipped", lines, {"named": named})
    exact = all(finding.exact for finding in diagnosis.findings)
    verdict: Verdict = "bug" if not diagnosis.is_healthy else "exact" if exact else session.rounding
    if diagnosis.is_undecided:
        verdict = "flagged"
    return Stage(name, verdict, lines, {"named": named})

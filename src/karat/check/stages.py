"""The stages of `karat check`: each looks at one thing and ends in a verdict."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from karat.check.diagnosis.diagnose import Diagnoser
from karat.check.diagnosis.peers import graph_of, known_difference
from karat.check.diagnosis.signs import signs
from karat.check.diagnosis.wording import diagnosis_lines, times
from karat.check.generation import generation_stage
from karat.check.inputs import weights_stage
from karat.check.model.weights import digest
from karat.check.numbers import label, layers_stage, logits_stage
from karat.check.replay.distances import distance
from karat.check.replay.drift import DRIFT_LIMIT
from karat.check.replay.noise import PRECISION
from karat.check.session import agreement
from karat.check.session.same_bits import Row, invariance_of
from karat.check.session.session import STAGES, Session
from karat.check.session.stage import Stage, Verdict
from karat.check.story import story_stage
from karat.check.text.prompt import findings_of_model, token_lines
from karat.check.token_stage import tokens_stage
from karat.check.trace.format import Array, Trace, rows_of
from karat.errors import NumericsError
from karat.models.opening import open_model


def run_stages(session: Session) -> Iterator[Stage]:
    """Each stage as it finishes."""
    plan = session.plan
    work: dict[str, Callable[[Session], Stage]] = {
        "tokens": _tokens, "weights": _weights, "layers": layers_stage, "logits": logits_stage,
        "generation": generation_stage, "story": story_stage, "health": _health, "invariance": _invariance,
    }  # fmt: skip
    chosen = [(name, work[name]) for name in STAGES if name in plan.stages]
    chosen += [("llama.cpp", _llamacpp)] if plan.with_llamacpp else []
    chosen += [("trace", _trace)] if plan.other is not None else []
    chosen += [("hybrid", _hybrid)] if plan.hybrid else []
    for name, run in chosen:
        session.progress(name)
        start = time.monotonic()
        try:
            stage = run(session)
        except NumericsError as fault:
            stage = Stage(name, "bug", [str(fault)])
        yield replace(stage, seconds=time.monotonic() - start)


def _tokens(session: Session) -> Stage:
    plan = session.plan
    if session.no_tokenizer is not None:
        lines = [f"not run: {session.no_tokenizer}"]
        if session.drawn:
            drawn = f"{len(session.ids)} token ids drawn at random (--seed {plan.seed} draws them again)"
            lines.append(f"the other stages compute {drawn}")
        return Stage("tokens", "skipped", lines, {"drawn": session.drawn, "seed": plan.seed})
    stage = tokens_stage(
        plan.model, session.tokenizer, session.prompt, with_hf=plan.with_hf, with_llamacpp=plan.with_llamacpp
    )
    if session.other is None:
        return stage
    info = session.other.info
    if info.prompt is None and info.messages is None and info.generated is None:
        return replace(stage, lines=[*stage.lines, "the trace does not say what its ids were made of"])
    found = findings_of_model(plan.model, session.other)
    facts = {**stage.facts, "trace": [list(finding.bugs) for finding in found]}
    if found:
        return replace(stage, verdict="bug", lines=[*stage.lines, *token_lines(found)], facts=facts)
    return replace(
        stage, lines=[*stage.lines, "the trace's ids are those of what it says they were made of"], facts=facts
    )


def _weights(session: Session) -> Stage:
    model = session.plan.model
    stage = weights_stage(model, with_hf=session.plan.with_hf, original=session.plan.original)
    stated = None if session.other is None else session.other.info.digest
    if session.other is None or stated is None:
        return (
            stage
            if session.other is None
            else replace(stage, lines=[*stage.lines, "the trace states no digest of its weights"])
        )
    same = stated == digest(model.stored)
    line = "the trace states the digest of these weights" if same else (
        f"note: the trace states another digest of its weights ({stated[:16]}), maybe another model's")  # fmt: skip
    return replace(stage, lines=[*stage.lines, line], facts={**stage.facts, "digest_of_trace": same})


def _health(session: Session) -> Stage:
    """Signs of our own run, and the red flags of others."""
    found = session.run().health.signs()
    raised = [sign for sign in found if sign.good is False]
    bad = [sign for sign in raised if sign.is_decisive]
    lines = [f"{sign.name}: {'NO' if sign.good is False else 'yes'}{f' ({sign.detail})' if sign.detail else ''}"
             for sign in found]  # fmt: skip
    facts: dict[str, Any] = {sign.name: sign.good for sign in found}
    others = dict(session.beside) | ({} if session.other is None else {"trace": session.other})
    for other, trace in others.items():
        seen = signs(session.plan.model.graph, trace, PRECISION[trace.info.dtype])
        flags = [sign for sign in seen if sign.good is False]
        bad += [sign for sign in flags if sign.is_decisive]
        told = "; ".join(f"{sign.name}: NO{f' ({sign.detail})' if sign.detail else ''}" for sign in flags)
        lines.append(f"{label(other)}: {told or f'{len(seen)} signs, no red flag'}")
        facts[f"flags_of_{other}"] = [sign.name for sign in flags]
    return Stage("health", "bug" if bad else "flagged" if raised else "exact", lines, facts)


def _invariance(session: Session) -> Stage:
    """Native promises the same bits under every setting; the reference, that chunks change roundings at most."""
    if session.executor == "native":
        checkpoint = open_model(session.plan.model.path)
        rows: list[Row] = []
        for row in invariance_of(
            checkpoint, num_tokens=len(session.ids), threads=session.plan.threads, kv_dtype=session.plan.kv_dtype,
            seed=session.plan.seed,
        ):  # fmt: skip
            rows.append(row)
            session.progress(f"invariance: {row.setting.name}: {row.word}")
        lines = [f"{row.setting.name}: {row.digest[:16]}{'' if row.is_right else f', {row.word}'}" for row in rows]
        facts = {row.setting.name: row.digest for row in rows}
        return Stage("invariance", "exact" if all(row.is_right for row in rows) else "bug", lines, facts)
    # On a cache that rounds nothing: a narrow one turns the last bit of a chunk into much more.
    results = session.run_unrounded
    kept = rows_of(results.info, "lm_head")

    def logits(chunk: int) -> Array:
        llm = session.engine(kv_dtype=session.dtype, max_num_seqs=1, max_num_batched_tokens=chunk)
        return llm.logits(list(session.ids))[kept]

    whole = logits(len(session.ids))
    if bad := agreement.not_finite(whole, kept):
        return Stage("invariance", "bug", [bad])
    apart = {chunk: distance(logits(chunk), whole) for chunk in (1, 7)}
    room = np.maximum(results.spread, np.finfo(np.float64).tiny)  # nothing moves zeros
    ratios = {chunk: float((error / room).max()) for chunk, error in apart.items()}
    lines = [
        f"chunks of {chunk}: largest difference {error.max():.3g}, {times(ratios[chunk])} what rounding does"
        for chunk, error in apart.items()
    ]
    small = max(ratios.values()) <= DRIFT_LIMIT
    verdict: Verdict = "exact" if max(ratios.values()) == 0 else session.rounding if small else "bug"
    return Stage("invariance", verdict, lines, {f"chunks of {chunk}": ratio for chunk, ratio in ratios.items()})


def _llamacpp(session: Session) -> Stage:
    """llama.cpp's run, each op on its own inputs."""
    trace = session.beside["llama.cpp"]
    stage = _judged(session, "llama.cpp", trace)
    if not trace.info.rounds_activations:
        return stage
    note = "llama.cpp rounds activations to fit the weights' type, Karat does not: hence the distance of its logits"
    return replace(stage, lines=[*stage.lines, note])


def _trace(session: Session) -> Stage:
    assert session.other is not None
    return _judged(session, "trace", session.other)


def _judged(session: Session, name: str, trace: Trace) -> Stage:
    """What a diagnosis says of another engine's run."""
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


def _hybrid(session: Session) -> Stage:
    from karat.check.record.hybrid import Hybrid, suspect

    model, plan = session.plan.model, session.plan
    theirs = agreement.load_transformers(model.path)
    runs = Hybrid(theirs, model.config, model.checkpoint, session.ops, session.ids).run(plan.hybrid)
    lines = [
        f"{_mixed(run.part)}: difference {run.from_theirs:.2g} standard deviations from theirs alone, "
        f"{run.from_ours:.2g} from ours alone"
        for run in runs
    ]
    part = suspect(runs)
    lines += [f"with {part} ours the divergence goes: it arises there"] if part else []
    facts: dict[str, Any] = {run.part: [run.from_theirs, run.from_ours] for run in runs}
    largest = max(max(run.from_theirs, run.from_ours) for run in runs)
    small = largest <= agreement.HYBRID_LIMIT
    if not small:  # unless rounding alone moves the logits of this model so far
        results = session.run_unrounded
        room = DRIFT_LIMIT * float(results.spread.max() / results.logits["float64"].std())
        lines.append(f"rounding alone, from the token ids on, moves logits by {room / DRIFT_LIMIT:.2g}")
        small = largest <= min(room, 1.0)
    return Stage("hybrid", session.rounding if small else "bug", lines, facts)


def _mixed(part: str) -> str:
    """What a hybrid run is made of."""
    if part == "none":
        return "transformers alone"
    whose, _, theirs = part.partition(":")
    return f"{theirs} transformers', the rest ours" if whose == "theirs" else f"{part} ours, the rest transformers"

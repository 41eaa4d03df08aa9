"""The stages by name, and how they are run one after the other."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from karat.check.session.session import STAGES, CheckSession
from karat.check.session.stage import Stage
from karat.check.stages import (
    generation,
    health,
    hybrid,
    invariance,
    layers,
    logits,
    other_engines,
    story,
    tokens,
    weights,
)
from karat.errors import NumericsError

_RUNS: Mapping[str, Callable[[CheckSession], Stage]] = {
    "tokens": tokens.run,
    "weights": weights.run,
    "layers": layers.run,
    "logits": logits.run,
    "generation": generation.run,
    "story": story.run,
    "health": health.run,
    "invariance": invariance.run,
    "llama.cpp": other_engines.run_llamacpp,
    "trace": other_engines.run_trace,
    "hybrid": hybrid.run,
}


def run_stages(session: CheckSession) -> Iterator[Stage]:
    """Each stage of the plan as it finishes."""
    plan = session.plan
    chosen = [name for name in STAGES if name in plan.stages]
    chosen += ["llama.cpp"] if plan.with_llamacpp else []
    chosen += ["trace"] if plan.other is not None else []
    chosen += ["hybrid"] if plan.hybrid else []
    for name in chosen:
        session.progress(name)
        start = time.monotonic()
        try:
            stage = _RUNS[name](session)
        except NumericsError as fault:
            stage = Stage(name, "bug", [str(fault)])
        yield replace(stage, seconds=time.monotonic() - start)

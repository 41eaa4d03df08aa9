"""Going on from what an engine recorded with the right rest: which part of the model changes the logits, and how far.

Between two cuts the engine computed one part. Where the right rest makes other logits of the second cut than of the
first, that part is wrong. Each cut holds all of the hidden state, so nothing goes past it.
"""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from karat.check.mistakes.nodes import evaluate
from karat.check.model.graph import Graph
from karat.check.replay.finding import F64, Array
from karat.check.replay.replay import Replay
from karat.errors import TraceError

ABOVE = 10.0  # times the noise, from which on a part is suspect
_ENDS = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}


@dataclass(frozen=True, slots=True)
class Onward:
    """Logits of the right rest behind one cut.

    part      what the engine computed last: embedding, attention:K, layer:K, norm, head
    distance  from the right logits: root mean square, in standard deviations of the right logits
    change    the same from the logits of the cut before
    flips     rows whose likeliest token is another than that of the right logits
    """

    part: str
    distance: float
    change: float
    flips: int


def cuts(graph: Graph) -> dict[str, str]:
    """Each part, in order, to the result that holds all of the hidden state behind it."""
    found = {"embedding": _ENDS["embedding"]}
    for layer in range(graph.config.num_layers):
        found[f"attention:{layer}"] = f"model.layers.{layer}.attention_residual"
        found[f"layer:{layer}"] = f"model.layers.{layer}"
    return found | {part: _ENDS[part] for part in ("norm", "head")}


def onward(replay: Replay, parts: Sequence[str]) -> tuple[list[Onward], float, int]:
    """The right rest behind each of these parts ("all": each that is recorded), the noise, and the number of rows.

    The noise is how far rounding in the engine's type moves the logits, in the unit of the distances. Raises TraceError
    for a part that does not exist, or whose result the trace does not have in all tokens.
    """
    every = cuts(replay.graph)
    if unknown := [part for part in parts if part not in (*every, "all")]:
        raise TraceError(f"--from {unknown[0]}: no such part; there are all, {', '.join(every)}")
    whole = [p for p, name in every.items() if name in replay.recorded and not replay.is_partial(name)]
    chosen = whole if "all" in parts else [part for part in every if part in parts]
    if lacking := [part for part in chosen if part not in whole]:
        raise TraceError(f"--from {lacking[0]}: the trace does not have {every[lacking[0]]} of all tokens")
    right = logits_behind(replay, None)
    size = float(right.std()) or 1.0
    noise = _rms(logits_behind(replay, None, noisy=True) - right) / size
    found, before = [], right
    for part in chosen:
        logits = logits_behind(replay, every[part])
        flips = int((logits.argmax(axis=-1) != right.argmax(axis=-1)).sum())
        found.append(Onward(part, _rms(logits - right) / size, _rms(logits - before) / size, flips))
        before = logits
    return found, noise, len(right)


def suspects(found: Sequence[Onward], noise: float) -> list[str]:
    """The parts whose effect stands far above the noise; a stretch of parts where the trace has no cut between."""
    return [one.part for one in found if not one.change <= ABOVE * noise]  # NaN is suspect


def onward_lines(found: Sequence[Onward], noise: float, num_rows: int) -> list[str]:
    """A line for each part, and which of them are suspect."""
    lines = [f"from the engine's own result of a part on, with the right rest; rounding moves logits by {noise:.1e}:"]
    lines += [
        f"   {one.part:12} {one.distance:.1e} standard deviations from the right logits, {one.change:.1e} from those "
        f"before; {one.flips} of {num_rows} likeliest tokens are others"
        for one in found
    ]
    named = suspects(found, noise)
    flipping = next((one.part for one in found if one.flips), None)
    lines.append(f"suspect: {', '.join(named)}" if named else f"no part stands {ABOVE:g} times above the noise")
    return lines + ([f"the likeliest token is first another behind {flipping}"] if flipping else [])


def logits_behind(replay: Replay, cut: str | None, *, noisy: bool = False) -> Array:
    """Logits [rows, vocabulary] in float64 from the recorded result `cut` on; None: from the token ids on."""
    values: dict[str, Array] = {}
    if cut is not None:
        values[cut] = np.asarray(replay.recorded[cut].values, np.float64)
    names = list(replay.graph.nodes)
    last_use = {source: name for name in names for source in replay.graph.nodes[name].inputs}
    for name in names[names.index(cut) + 1 if cut is not None else 0 :]:
        node = replay.graph.nodes[name]
        values[name] = evaluate(node, [values[source] for source in node.inputs], replay.exact, F64)
        if noisy:
            values[name] = replay.noise.moved(values[name], replay.unit)
        for source in set(node.inputs):
            if last_use[source] == name:
                del values[source]
    return values["lm_head"]


def _rms(x: Array) -> float:
    return float(np.sqrt(np.mean(np.square(x))))

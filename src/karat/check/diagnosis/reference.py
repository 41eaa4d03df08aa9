"""A trace beside a right one, the reference: the first result that differs by more than rounding.

With the model, the floor is that of a whole run under disturbance (karat.check.replay.drift). Without it nothing can be
computed: results are compared by name, and the limit of rounding is a rule of thumb for each type.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from karat.check.diagnosis.peers import Known, known_difference
from karat.check.diagnosis.wording import times
from karat.check.replay.distances import distance, largest_finite
from karat.check.replay.drift import DRIFT_LIMIT, Apart, Drift, FreeRun, aligned, coarser, drift_of
from karat.check.replay.finding import Finding
from karat.check.replay.replay import Replay
from karat.check.trace.format import MASKED, Trace
from karat.config import FloatName
from karat.errors import TraceError

_MILESTONES = ("model.embed_tokens", "layer", "lm_head")
# The RMS of a difference, relative to the RMS of the result, that no healthy run of a type reaches.
_STRAYS: Mapping[FloatName, float] = {"float64": 1e-9, "float32": 1e-3, "float16": 0.1, "bfloat16": 0.3}
_ROUNDED: Mapping[str | None, float] = {"ggml": 0.1, "int8": 0.1, "int16": 1e-2}  # the same of rounded activations
_ORDER = (
    "input_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.q_norm self_attn.k_norm "
    "self_attn.q_rope self_attn.k_rope self_attn.scores self_attn.weights self_attn.attention self_attn.o_proj "
    "attention_residual post_attention_layernorm mlp.gate_proj mlp.up_proj mlp.act mlp.down_proj "
    "post_feedforward_layernorm"
).split()


@dataclass(frozen=True, slots=True)
class Departure:
    """The distance from the reference of each result that both traces have, in order.

    limit  the largest ratio that rounding explains; without the model, a ratio is in multiples of the rule of thumb
    known  a known difference of either engine; the two are compared up to its first token
    other  the first result of the reference that the model's weights do not give from its own inputs: then the two
           traces have different weights, however close their results are
    """

    drift: Sequence[Drift]
    limit: float
    has_model: bool
    other: Finding | None = None
    known: Known | None = None

    @property
    def first(self) -> Drift | None:
        return next((drift for drift in self.drift if not drift.ratio <= self.limit), None)

    @property
    def leaves(self) -> bool:
        """Whether the run differs from the reference by more than rounding, or has other weights."""
        return self.first is not None or self.other is not None


def departure(replay: Replay, right: Replay) -> Departure:
    """The replay's trace against that of `right`, in multiples of what rounding does to a whole run.

    The floor is that of the coarser of the two. A small distance may still be another model's: each op of the reference
    is judged on its own inputs too. Raises TraceError for other tokens, or if no result is in both traces.
    """
    reference = right.trace
    theirs = aligned(replay, reference)
    info = coarser(replay.trace.info, reference.info)
    noisy = (
        replay
        if info == replay.trace.info
        else Replay(replay.graph, replay.context.weights, replace(replay.trace, info=info))
    )
    known = known_beside(replay, reference)
    free, apart, found, in_both = FreeRun(noisy), Apart(), [], False
    for name in replay.graph.nodes:
        run = free.advance(noisy, name)
        if name in replay.recorded and name in theirs:
            in_both = True
            rows = None if known is None else known.shared(replay, name)
            rows = apart.shared(replay, free, name, theirs[name], rows)
            found += [drift_of(replay, run, theirs[name], rows)] if rows is None or rows.any() else []
    if not in_both:
        raise _nothing_common(replay.trace, reference)
    other = next((finding for finding in right.findings() if finding.is_wrong), None)
    return Departure(found, DRIFT_LIMIT, has_model=True, other=other, known=known)


def known_beside(replay: Replay, reference: Trace) -> Known | None:
    """The known difference between the replay's trace and a reference, if either engine has one."""
    config, infos = replay.graph.config, (replay.trace.info, reference.info)
    longest = max(replay.trace.info.positions) + 1
    found = (known_difference(info.executor, config, longest) for info in infos)
    return next((known for known in found if known is not None), None)


def departure_alone(trace: Trace, reference: Trace) -> Departure:
    """Two traces by the names of their results, without a model. Raises TraceError as `departure` does."""
    if trace.info.token_ids != reference.info.token_ids:
        raise TraceError(
            f"the reference trace has other token ids ({reference.info.num_tokens} of them, this one "
            f"{trace.info.num_tokens}): record both over the same tokens (karat trace --ids)"
        )
    info = coarser(trace.info, reference.info)
    stray = max(_STRAYS[info.dtype], _STRAYS[info.kv_dtype or info.dtype], _ROUNDED.get(info.activations, 0.0))
    found = []
    for name in sorted((n for n in trace.arrays if n in reference.arrays), key=_place):
        ours, theirs = (np.asarray(t.arrays[name], np.float64) for t in (trace, reference))
        if name.endswith((".scores", ".weights")):
            same_rows = np.array_equal(trace.rows_of(name), reference.rows_of(name))
            same_heads = trace.info.heads.get(name) == reference.info.heads.get(name)
            if ours.shape != theirs.shape or not (same_rows and same_heads):
                continue  # the two are padded differently, or have other tokens
            ours, theirs = (np.where(x <= MASKED, -np.inf, x) for x in (ours, theirs))
        else:
            rows = [t.rows_of(name) for t in (trace, reference)]
            both = np.intersect1d(rows[0], rows[1])
            if not len(both) or any(x.size % len(r) for x, r in zip((ours, theirs), rows, strict=True)):
                continue
            ours, theirs = (
                x.reshape(len(r), -1)[np.searchsorted(r, both)] for x, r in zip((ours, theirs), rows, strict=True)
            )
            if ours.shape != theirs.shape:
                raise TraceError(
                    f"{name}: {ours.shape[1]} features a token, and {theirs.shape[1]} in the reference: the traces are "
                    "of two models"
                )
        error = distance(ours, theirs)
        error[np.isnan(ours) | np.isposinf(ours) | (np.isneginf(ours) & (theirs != ours))] = np.inf
        scale = float(np.sqrt(np.mean(np.square(theirs[np.isfinite(theirs)]))) if np.isfinite(theirs).any() else 0.0)
        rms = float(np.sqrt(np.mean(np.square(error)))) if np.isfinite(error).all() else float("inf")
        ratio = rms / (stray * scale) if scale > 0 else 0.0 if rms == 0 else float("inf")
        found.append(Drift(name, float(error.max(initial=0)), rms, stray * scale, ratio, largest_finite(theirs)))
    if not found:
        raise _nothing_common(trace, reference)
    return Departure(found, 1.0, has_model=False)


def departure_lines(found: Departure, trace: Trace, reference: Trace, *, every_op_right: bool) -> list[str]:
    """The departure in words: the first result beyond rounding, then the embedding, each layer and the logits."""
    lines, first = [] if found.known is None else [found.known.text, ""], found.first
    what = "what rounding does to a whole run" if found.has_model else "what rounding may do, by rule of thumb"
    if first is not None:
        lines.append(
            f"first leaves the reference at {first.name}: off by {first.largest:.3g}, {times(first.ratio)} {what}"
        )
        if every_op_right:
            lines.append(
                "   every op is what MODEL's weights give: the weights differ from the reference's, or the inputs"
            )
        kinds = [t.info.kv_dtype or t.info.dtype for t in (trace, reference)]
        if kinds[0] != kinds[1]:
            lines.append(
                f"   the caches round differently ({kinds[0]}, {kinds[1]} in the reference): record both alike"
            )
        lines.append("")
    if found.other is not None:
        lines += [
            f"the reference is not what MODEL's weights give at {found.other.name}: off by {found.other.error:.3g}, "
            f"{times(found.other.ratio)} the noise floor",
            "   it has other weights, or rounds more than its description says",
            "",
        ]
    lines.append(f"accumulated difference to the reference trace, in multiples of {what}:")
    shown = [drift for drift in found.drift if _role(drift.name) in _MILESTONES or drift is first]
    return lines + [f"   {d.name}: {d.largest:.3g}, {times(d.ratio)}" for d in shown or found.drift]


def _nothing_common(trace: Trace, reference: Trace) -> TraceError:
    return TraceError(
        f"no result is in both traces: this one has {', '.join(list(trace.arrays)[:3])} …, the reference "
        f"{', '.join(list(reference.arrays)[:3])} … (karat trace --validate says which names are unknown)"
    )


def _role(name: str) -> str:
    parts = name.split(".", 3)
    if parts[:2] != ["model", "layers"]:
        return name
    return parts[3] if len(parts) > 3 else "layer"


def _place(name: str) -> tuple[float, int, str]:
    """The place of a result in the order of computation, by its name."""
    parts, role = name.split(".", 3), _role(name)
    if role != name and len(parts) > 2 and parts[2].isdigit():
        return float(parts[2]), _ORDER.index(role) if role in _ORDER else len(_ORDER), name
    end = ("model.selected", "model.norm", "lm_head_input", "lm_head_uncapped", "lm_head")
    return (np.inf, end.index(name), name) if name in end else (-1.0, 0, name)

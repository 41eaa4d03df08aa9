"""Stage invariance: the same bits under every setting, or, of the reference, the same numbers up to rounding."""

import numpy as np

from karat.check.diagnosis.wording import times
from karat.check.replay.distances import distance
from karat.check.replay.drift import DRIFT_LIMIT
from karat.check.session import agreement
from karat.check.session.same_bits import SettingRow, invariance_of
from karat.check.session.session import CheckSession
from karat.check.session.stage import Stage, Verdict
from karat.check.trace.format import Array, rows_of
from karat.models.opening import open_model


def run(session: CheckSession) -> Stage:
    """Native promises the same bits under every setting; the reference, that chunks change roundings at most."""
    if session.ops.traits.chunk_invariant:
        checkpoint = open_model(session.plan.model.path, session.plan.model.checkpoint.overrides)
        rows: list[SettingRow] = []
        for row in invariance_of(
            checkpoint,
            num_tokens=len(session.ids),
            executor=session.executor,
            options=session.plan.options,
            kv_dtype=session.plan.kv_dtype,
            seed=session.plan.seed,
        ):
            rows.append(row)
            session.progress(f"invariance: {row.setting.name}: {row.word}")
        lines = [f"{row.setting.name}: {row.digest[:16]}{'' if row.is_right else f', {row.word}'}" for row in rows]
        facts = {row.setting.name: row.digest for row in rows}
        return Stage("invariance", "exact" if all(row.is_right for row in rows) else "bug", lines, facts)
    # On a cache that rounds nothing: a narrow one makes much more of a difference in the last bit.
    results = session.run_unrounded
    kept = rows_of(results.info, "lm_head")

    def logits(chunk: int) -> Array:
        llm = session.engine(kv_dtype=session.dtype, max_num_seqs=1, max_num_batched_tokens=chunk)
        return llm.logits(list(session.ids))[kept]

    whole = logits(len(session.ids))
    if bad := agreement.not_finite(whole, kept):
        return Stage("invariance", "bug", [bad])
    apart = {chunk: distance(logits(chunk), whole) for chunk in (1, 7)}
    room = np.maximum(results.spread, np.finfo(np.float64).tiny)  # zeros have no spread
    ratios = {chunk: float((error / room).max()) for chunk, error in apart.items()}
    lines = [
        f"chunks of {chunk}: largest difference {error.max():.3g}, {times(ratios[chunk])} what rounding does"
        for chunk, error in apart.items()
    ]
    small = max(ratios.values()) <= DRIFT_LIMIT
    verdict: Verdict = "exact" if max(ratios.values()) == 0 else session.rounding if small else "bug"
    return Stage("invariance", verdict, lines, {f"chunks of {chunk}": ratio for chunk, ratio in ratios.items()})

"""The other side of a comparison: its name, and what its rounding means for a verdict."""

from karat.check.replay.drift import Drift
from karat.check.session.session import Session
from karat.check.session.streamed import Results

_LABELS = {"trace": "the trace"}


def label(other: str) -> str:
    """The other side in a sentence."""
    return _LABELS.get(other, other)


def rounding_note(results: Results, other: str) -> str:
    """Said of a distance to a side that rounds more than we do, which is no verdict.

    Where attention is decided by a hair, such roundings turn it, and all that follows is another text's.
    """
    if other not in results.spread_beside:
        return ""
    return f"; it rounds more than Karat, so its ops decide, each on its own inputs (stage {other})"


def unrounded_drift(session: Session, other: str) -> list[Drift]:
    """The differences on a cache that rounds nothing; none where ours is one, or the other side's is not."""
    if session.kv_dtype == session.dtype or not session.rounds_nothing(other):
        return []
    results: Results = session.run_unrounded
    return results.drift.get(other, [])

"""The other side of a comparison: its name, and what its rounding means for a verdict."""

from karat.check.replay.drift import Drift
from karat.check.session.session import CheckSession
from karat.check.session.streamed import Results

_LABELS = {"trace": "the trace"}


def label(other: str) -> str:
    """The other side in a sentence."""
    return _LABELS.get(other, other)


def rounding_note(results: Results, other: str) -> str:
    """The note beside a distance to an engine that rounds more than Karat; "" for any other.

    Such a distance decides nothing: close decisions of attention turn with the rounding, and everything after them is
    different.
    """
    if other not in results.spread_beside:
        return ""
    return f"; it rounds more than Karat, so its ops decide, each on its own inputs (stage {other})"


def unrounded_drift(session: CheckSession, other: str) -> list[Drift]:
    """The differences on a cache that rounds nothing; [] if Karat's does so anyway, or if the other side's rounds."""
    if session.kv_dtype == session.dtype or not session.rounds_nothing(other):
        return []
    results: Results = session.run_unrounded
    return results.drift.get(other, [])

"""Stage trace: the run of another engine, each op on its own inputs."""

from karat.check.session.judged import judged
from karat.check.session.session import Session
from karat.check.session.stage import Stage


def run(session: Session) -> Stage:
    """The trace that the plan names."""
    assert session.other is not None
    return judged(session, "trace", session.other)

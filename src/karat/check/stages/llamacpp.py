"""Stage llama.cpp: its run, each op on its own inputs."""

from dataclasses import replace

from karat.check.session.judged import judged
from karat.check.session.session import Session
from karat.check.session.stage import Stage


def run(session: Session) -> Stage:
    """llama.cpp's run, each op on its own inputs."""
    trace = session.beside["llama.cpp"]
    stage = judged(session, "llama.cpp", trace)
    if not trace.info.rounds_activations:
        return stage
    ours = "does not" if session.activations == session.dtype else f"takes {session.activations}"
    note = f"llama.cpp rounds activations to fit the weights' type, Karat {ours}: hence the distance of its logits"
    return replace(stage, lines=[*stage.lines, note])

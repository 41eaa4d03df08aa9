"""What a trace states and its numbers do not bear out: positions, and the type of the cache."""

from collections.abc import Callable, Sequence

from karat.check.diagnosis.assumed import CACHES, STATE_ALL, Assumed, explains
from karat.check.diagnosis.pattern_words import token_text
from karat.check.diagnosis.verdict import Wrong
from karat.check.replay.replay import Replay
from karat.check.trace.format import TraceInfo, counted


def position_lines(info: TraceInfo) -> list[str]:
    """Where the stated positions are first not those of the tokens; nothing where they are."""
    right = counted(info.sequences)
    wrong = [token for token, position in enumerate(info.positions) if position != right[token]]
    if not wrong:
        return []
    first = wrong[0]
    line = (
        f"positions: the trace states {info.positions[first]} for {token_text(first, info)}, which is number "
        f"{right[first]} of its sequence; {len(wrong)} of {info.num_tokens} tokens; judged by their numbers"
    )
    if right[first] and info.positions[first] == 0 and len(set(info.sequences)) == 1:
        line += "; if another sequence begins there, state `sequences`"
    return [line]


def other_cache(replay: Replay, under: Callable[[Assumed], Replay], unexplained: Sequence[Wrong]) -> str:
    """What cache would explain the results that no mistake explains, in a line, though the trace states another.

    under: the replay with another cache. "" if the trace states none, or no cache does.
    """
    info = replay.trace.info
    through = {replay.graph.nodes[name].kind for item in unexplained for name in item.finding.segment}
    if info.kv_dtype is None or info.executor.startswith(STATE_ALL) or through.isdisjoint(("scores", "mix")):
        return ""
    findings = [item.finding for item in unexplained]
    for kv_dtype in dict.fromkeys((*CACHES, info.dtype)):
        assumed = Assumed(kv_dtype)
        if kv_dtype != info.kv_dtype and explains(under(assumed), assumed, findings):
            return f"a {kv_dtype} cache would explain it, and the trace states kv_dtype={info.kv_dtype!r}"
    return ""

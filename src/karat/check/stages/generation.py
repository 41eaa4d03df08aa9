"""Stage generation: token by token against one pass, and against what others would take."""

from collections.abc import Sequence

import numpy as np

from karat import SamplingParams
from karat.check.diagnosis.peers import known_difference
from karat.check.record.executors import Steps
from karat.check.record.llamacpp import record_llamacpp
from karat.check.replay.finding import LIMIT
from karat.check.session import agreement
from karat.check.session.other_side import label
from karat.check.session.session import CheckSession
from karat.check.session.stage import Stage, Verdict
from karat.check.trace.format import Array, rows_of
from karat.check.trace.selection import Selection

_TOKENS = 24


def run(session: CheckSession) -> Stage:
    """Greedy tokens, decoded one by one, against one pass over all, and against each other side's choice."""
    count = min(_TOKENS, session.llm.max_model_len - len(session.ids))
    if count < 1:
        return Stage("generation", "skipped", ["the prompt fills the context"])
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, logprobs=2)
    (output,) = session.llm.generate([list(session.ids)], params, use_tqdm=False)
    answer = output.outputs[0]
    chosen = list(answer.token_ids)
    whole = session.llm.logits([*session.ids, *chosen])
    bad = agreement.not_finite(whole, range(len(whole)))
    if bad or answer.error or len(chosen) != count:
        how = (
            f"with an error after {len(chosen)} of {count} tokens: {answer.error}"
            if answer.error
            else f"after {len(chosen)} of {count} tokens ({answer.finish_reason})"
        )
        lines = [f"the answer ended {how}", *([f"one pass over all: {bad}"] if bad else [])]
        return Stage("generation", "bug", lines, {"token_ids": chosen})
    again = whole[len(session.ids) - 1 : -1].argmax(axis=1).tolist()
    same = chosen == again
    lines = [f"{len(chosen)} tokens, decoded one by one, are those of one pass over all: {'yes' if same else 'no'}"]
    if session.plan.with_hf:
        lines.append(_against("transformers", _of_transformers(session, chosen), session, chosen, whole))
    if session.plan.with_llamacpp:
        lines.append(_against("llama.cpp", _of_llamacpp(session, chosen), session, chosen, whole))
    if session.has_trace and "trace" in session.run().logits:
        lines.append(_of_trace(session))
    right = same and not any(line.startswith("bug") for line in lines)
    verdict: Verdict = "exact" if right else "bug"
    return Stage("generation", verdict, lines, {"token_ids": chosen})


def _of_transformers(session: CheckSession, chosen: Sequence[int]) -> Array:
    """transformers' logits [chosen, vocab] before each chosen token."""
    rows: list[Array] = []
    every = [*session.ids, *chosen]
    agreement.hf_layerwise(
        session.plan.model.path,
        every,
        range(len(session.ids) - 1, len(every) - 1),
        lambda arrays: rows.extend([arrays["lm_head"]] if "lm_head" in arrays else []),
    )
    return rows[0]


def _of_llamacpp(session: CheckSession, chosen: Sequence[int]) -> Array:
    """llama.cpp's logits [chosen, vocab] before each chosen token."""
    model, every = session.plan.model, [*session.ids, *chosen]
    logits_only = Selection(layers=frozenset(), logit_rows=len(chosen) + 1)
    trace = record_llamacpp(model.path, model.stored, Steps.chunked(every, None), selection=logits_only)
    return trace.arrays["lm_head"][:-1]


def _against(other: str, logits: Array, session: CheckSession, chosen: Sequence[int], whole: Array) -> str:
    """Whether the other side takes the same tokens, in words. whole: Karat's logits [tokens, vocab] of all tokens.

    The other side's cache rounds nothing. If the two differ and Karat's cache rounds, both are compared on a cache that
    does not. From the first token of a known difference on (karat.check.diagnosis.peers), the difference is stated
    instead.
    """
    first = len(session.ids) - 1
    known = known_difference(other, session.plan.model.config, len(whole) - 1)
    count = len(chosen) if known is None else max(0, known.first - first)
    said = "" if known is None else known.text
    if not count:
        return said
    line = _same(other, logits[:count].astype(np.float64), session, chosen, whole[first : first + count])
    return f"{line}; {said}" if said else line


def _same(other: str, theirs: Array, session: CheckSession, chosen: Sequence[int], ours: Array) -> str:
    """The same for the first len(ours) chosen tokens; theirs, ours: logits [tokens, vocab] before each of them."""
    first = len(session.ids) - 1
    span = slice(first, first + len(ours))
    same = f"{other} takes the same {len(ours)} tokens"
    room = _room(session, other)
    difference = agreement.greedy_difference(theirs, ours, room, shown=session.shown)
    if difference is None:
        return same
    if session.kv_dtype == session.dtype:
        return _said(session, other, difference)
    every = [*session.ids, *chosen]
    llm = session.engine(kv_dtype=session.dtype, max_num_seqs=1, max_model_len=len(every))
    remaining = agreement.greedy_difference(theirs, llm.logits(every)[span], room, shown=session.shown)
    if remaining is None:
        return f"{same} on a {session.dtype} cache; on the {session.kv_dtype} one {difference.partition(': ')[2]}"
    return f"{_said(session, other, remaining)} (both on a {session.dtype} cache)"


def _of_trace(session: CheckSession) -> str:
    """Whether the trace's logits have the same likeliest token as Karat's, in each of their rows."""
    results = session.run()
    rows = rows_of(results.info, "lm_head")
    known = results.known.get("trace")
    shared = np.ones(len(rows), bool) if known is None else rows < known.first
    if known is not None and not shared.any():
        return known.text
    room = max(LIMIT * float(results.spread.max()), _room(session, "trace"))
    theirs, ours = (results.logits[side][shared].astype(np.float64) for side in ("trace", "ours"))
    difference = agreement.greedy_difference(theirs, ours, room, tokens=rows[shared] + 1, shown=session.shown)
    same = f"the trace takes the same next token after each of {len(ours)}"
    line = same if difference is None else _said(session, "trace", difference)
    return line if known is None else f"{line}; {known.text}"


def _said(session: CheckSession, other: str, difference: str) -> str:
    """A difference with the other side's name. If that side rounds more than Karat, the difference is undecided."""
    named = difference.replace(" there (ahead by", f" in {label(other)} (ahead by", 1)
    if other not in session.beside or other not in session.run().spread_beside:
        return named
    what = f"undecided, as it rounds more than Karat: its ops are judged in stage {other}"
    return named.replace("bug", what, 1) if named.startswith("bug") and "NaN" not in named else named


def _room(session: CheckSession, other: str) -> float:
    """By how much rounding may change the logits of a side that rounds more than Karat; 0 for any other side."""
    if other not in session.beside or (spread := session.run().spread_beside.get(other)) is None:
        return 0.0
    return LIMIT * float(spread.max())

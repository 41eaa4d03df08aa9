"""A pattern in plain lines: what is wrong, what is right beside it, and what the trace has instead."""

from collections.abc import Sequence

from karat.check.model.graph import Graph
from karat.check.model.roles import ranges
from karat.check.replay.pattern import Pattern, PatternShare, Rule
from karat.check.trace.format import TraceInfo

_SHARES = {2: "half", 4: "quarter", 8: "eighth"}
_KEYS = {
    "earlier steps": "of earlier steps",
    "same step": "before it in its step",
    "own": "its own",
    "later": "after it",
    "empty": "that are not there yet",
}
_FULL = 0.99


def pattern_lines(pattern: Pattern, name: str, graph: Graph, info: TraceInfo) -> list[str]:
    """The lines of the result `name`, without indentation."""
    wrong, right = [], []
    if pattern.heads is not None and pattern.heads.count > 1:
        noun = _head(name, pattern.heads, graph)
        wrong.append(_share(pattern.heads, noun))
        right += _others(pattern.heads, noun)
    if pattern.columns is not None and not (pattern.columns.is_all and wrong):
        noun = "id" if name == "lm_head" else "column"
        inside = " of each head" if wrong else ""
        wrong.append(_share(pattern.columns, noun) + inside)
        right += [text + inside for text in _others(pattern.columns, noun)]
    if pattern.keys:
        wrong.append(f"keys {' and '.join(_KEYS[kind] for kind in pattern.keys)}")
    tokens, others = _tokens(pattern, info)
    wrong.append(tokens)
    right += others
    some = "" if pattern.share >= _FULL else f"; {max(pattern.share, 0.01):.0%} of the values there"
    lines = [f"wrong      {', '.join(wrong)}{some}"]
    lines += [f"right      {'; '.join(right)}"] if right else []
    return lines + ([f"instead    {pattern.instead}"] if pattern.instead else [])


def _head(name: str, heads: PatternShare, graph: Graph) -> str:
    shape = graph.shape(graph.nodes[name])
    return "KV head" if heads.count == shape.num_kv_heads != shape.num_heads else "head"


def _share(share: PatternShare, noun: str) -> str:
    """all heads; head 1 of 2 (a half: rank 1 of 2?)."""
    if share.is_all:
        return f"all {noun}s"
    every, part = share.every, share.ranks
    if part is not None:
        ranks, n = part
        rank = f"rank{'s' * (len(ranks) > 1)} {ranges(ranks)} of {n}?"
        size = f"a {_SHARES[n]}: {rank}" if len(ranks) == 1 else f"{len(ranks)} {_SHARES[n]}s: {rank}"
        return f"{_named(share.wrong, noun)} of {share.count} ({size})"
    if every is not None:
        return f"{noun}s {ranges(every[0])} of every {every[1]}"
    return f"{_named(share.wrong, noun)} of {share.count}"


def _named(numbers: Sequence[int], noun: str) -> str:
    text = ranges(numbers)
    if len(text) > 60:
        text = f"{text[:60].rpartition(', ')[0]}, …"
    return f"{noun}{'s' * (len(numbers) > 1)} {text}"


def _others(share: PatternShare, noun: str) -> list[str]:
    return [] if share.is_all else [_named(share.right, noun)]


def _tokens(pattern: Pattern, info: TraceInfo) -> tuple[str, list[str]]:
    if pattern.rules == ():
        return "all tokens" if len(pattern.judged) > 1 else token_text(pattern.judged[0], info), []
    rest = sorted({*pattern.judged} - {*pattern.tokens})
    text = _named(pattern.tokens, "token")
    if len(pattern.tokens) == 1:
        text = token_text(pattern.tokens[0], info)
    if pattern.rules is not None:
        text = f"{' and '.join(_rule(rule, info) for rule in pattern.rules)}: {text}"
    return text, [_named(rest, "token")]


def _rule(rule: Rule, info: TraceInfo) -> str:
    values = rule.values
    match rule.by:
        case "sequence":
            return f"sequence{'s' * (len(values) > 1)} {ranges(values)}"
        case "step":
            last = len(info.steps) - 1
            if values == tuple(range(values[0], last + 1)) and values[0] < last:
                return f"from step {values[0]} on"
            return f"step{'s' * (len(values) > 1)} {ranges(values)} of {last + 1}"
        case "position":
            if values[-1] == max(info.positions):
                return f"from position {values[0]} on"
            return f"position{'s' * (len(values) > 1)} {ranges(values)}"
        case "index in step":
            if values == (0,):
                return "the first token of each step"
            return "all but the first of each step" if values[0] == 1 else f"tokens {ranges(values)} of each step"
        case "index from the step's end":
            if values == (0,):
                return "the last token of each step"
            return "all but the last of each step" if values[0] == 1 else f"tokens {ranges(values)} from a step's end"
        case "id":
            return f"id{'s' * (len(values) > 1)} {ranges(values)}"


def token_text(token: int, info: TraceInfo) -> str:
    """token 7; token 7 (sequence 1, position 3, step 2) where the trace has several sequences or steps."""
    parts = []
    if len(set(info.sequences)) > 1:
        parts.append(f"sequence {info.sequences[token]}")
    if parts or len(info.steps) > 1:
        parts += [f"position {info.positions[token]}", f"step {sum(begin <= token for begin in info.steps) - 1}"]
    return f"token {token}" + (f" ({', '.join(parts)})" if parts else "")

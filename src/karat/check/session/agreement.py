"""Agreement of logits with another side, and transformers as that side where it is installed."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.model.checked import CheckedModel
from karat.check.model.evaluate import evaluate
from karat.check.replay.finding import F64
from karat.check.replay.replay import Replay
from karat.check.trace.format import Trace, TraceInfo

Array = NDArray[np.floating]

# How far apart the logits of right hybrid runs are, relative to their deviation.
HYBRID_LIMIT = 1e-2
_ROWS = 16  # rows of logits that are compared at a time


def has_transformers() -> bool:
    """Whether torch and transformers can be imported."""
    from importlib.util import find_spec

    return find_spec("torch") is not None and find_spec("transformers") is not None


def load_transformers(path: Path) -> Any:
    from karat.check.record.hf import load_hf

    return load_hf(str(path))


def hf_files(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """The tensors of a folder, as the safetensors library reads them (karat.check.record.hf_files.HfFiles)."""
    from karat.check.record.hf_files import HfFiles

    return HfFiles(folder, shapes)


def hf_layerwise(
    folder: Path, ids: Sequence[int], logit_rows: Sequence[int], on_part: Callable[[dict[str, Array]], None]
) -> None:
    from karat.check.record.hf_layerwise import run_layerwise

    run_layerwise(folder, ids, logit_rows, on_part)


def hf_tokenizer(path: Path) -> Any:
    """transformers' tokenizer of a folder; None if it cannot read one."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError):
        return None


def hf_chat(tokenizer: Any, chat: Sequence[Mapping[str, str]]) -> tuple[str, list[int]] | None:
    """A conversation as transformers' tokenizer renders it, and its ids; None if the tokenizer has no template."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    text = tokenizer.apply_chat_template(list(chat), tokenize=False, add_generation_prompt=True)
    ids = tokenizer.apply_chat_template(list(chat), tokenize=True, add_generation_prompt=True, return_dict=False)
    return str(text), list(ids)


def hf_end_ids(path: Path) -> frozenset[int]:
    """The ids at which transformers' `generate` ends a text, for the model in this folder."""
    from transformers import AutoConfig, GenerationConfig

    try:
        stated = GenerationConfig.from_pretrained(path, local_files_only=True).eos_token_id
    except (OSError, TypeError):  # there is no generation_config.json, or it is no object
        stated = None
    if stated is None:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        stated = getattr(config, "eos_token_id", None) or config.get_text_config().eos_token_id
    return frozenset(stated if isinstance(stated, list) else [] if stated is None else [stated])


def reference_logits(model: CheckedModel, info: TraceInfo) -> Array:
    """Logits in float64 of the tokens of a trace; a result is dropped after its last reader."""
    replay = Replay(model.graph, model.weights(info.dtype), Trace(info, {}))
    last_reader = {source: name for name, node in model.graph.nodes.items() for source in node.inputs}
    values: dict[str, Array] = {}
    for name, node in model.graph.nodes.items():
        values[name] = evaluate(node, [values[source] for source in node.inputs], replay.exact, F64)
        for source in node.inputs:
            if last_reader[source] == name:
                values.pop(source, None)
    return values["lm_head"]


def not_finite(logits: Array, tokens: Sequence[int] | NDArray[np.int64]) -> str | None:
    """Where logits [rows, vocab] hold NaN or infinity, in words; None: nowhere. tokens: the token index of each row."""
    bad = ~np.isfinite(logits)
    rows = bad.any(axis=1)
    if not rows.any():
        return None
    row = int(rows.argmax())
    token_id = int(bad[row].argmax())
    what = f"all {logits.shape[1]} ids" if bad[row].all() else f"id {token_id} ({logits[row, token_id]})"
    return f"NaN or infinity in {int(rows.sum())} of {len(logits)} rows of logits, first of token {tokens[row]}: {what}"


def logit_facts(ours: Array, right: Array, shown: Callable[[int], str] = str) -> dict[str, Any]:
    """How two sets of logits [rows, vocab] agree. A flip of the likeliest token is explained if its margin is at most
    twice the row's largest difference.

    shown: a token id for people. A row that is not finite on both sides agrees with nothing, not even with its own
    copy: differences are then infinite.
    """
    k = min(5, ours.shape[1])
    largest, squares, total, total_squares = 0.0, 0.0, 0.0, 0.0
    kls: list[float] = []
    top1 = top5 = 0
    flips = []
    unusable: list[int] = []
    size = 0
    for start in range(0, len(ours), _ROWS):
        a, b = (np.asarray(x[start : start + _ROWS], np.float64) for x in (ours, right))
        finite = np.isfinite(a).all(axis=1) & np.isfinite(b).all(axis=1)
        unusable += (start + np.flatnonzero(~finite)).tolist()
        a, b, rows = a[finite], b[finite], start + np.flatnonzero(finite)
        if not len(a):
            continue
        size += a.size
        difference = np.abs(a - b)
        largest = max(largest, float(difference.max()))
        squares += float(np.vdot(difference, difference))
        total, total_squares = total + float(b.sum()), total_squares + float(np.vdot(b, b))
        kls += _kl(b, a).tolist()
        first, second = a.argmax(axis=1), b.argmax(axis=1)
        top1 += int((first == second).sum())
        tops = (np.sort(np.argpartition(-x, k - 1, axis=1)[:, :k], axis=1) for x in (a, b))
        top5 += int(np.equal(*tops).all(axis=1).sum())
        for row in np.flatnonzero(first != second):
            margin, room = float(b[row, second[row]] - b[row, first[row]]), 2 * float(difference[row].max())
            word = "flip" if margin <= room else "unexplained flip"
            flips.append(
                f"{word} in row {rows[row]}: {shown(int(first[row]))} here, {shown(int(second[row]))} there; "
                f"margin {margin:.3g}, differences up to {room / 2:.3g}"
            )
    if unusable:
        largest = squares = np.inf
        kls += [np.inf]
        more = f" and {len(unusable) - 1} more" if len(unusable) > 1 else ""
        flips.insert(0, f"not comparable: NaN or infinity in row {unusable[0]}{more}")
    mean = total / max(1, size)
    return {
        "rows": len(ours),
        "largest": largest,
        "rms": float(np.sqrt(squares / max(1, size))),
        "deviation": float(np.sqrt(max(0.0, total_squares / max(1, size) - mean * mean))),
        "kl": max(kls),
        "mean_kl": float(np.mean(kls)),
        "top1": top1,
        "top5": top5,
        "flips": flips,
    }


def text_perplexity(logits: Array, rows: NDArray[np.int64], ids: Sequence[int]) -> float:
    """Perplexity of the tokens after `rows`, whose logits are [rows, vocab]; NaN if a logit is not finite."""
    if not np.isfinite(logits).all():
        return float("nan")
    nats: list[float] = []
    for row, token in zip(logits, rows, strict=True):
        if token + 1 < len(ids):
            values = np.asarray(row, np.float64)
            largest = values.max()
            nats.append(float(largest + np.log(np.exp(values - largest).sum()) - values[ids[token + 1]]))
    return float(np.exp(np.mean(nats)))


def logit_lines(other: str, facts: Mapping[str, Any]) -> list[str]:
    """The facts of `logit_facts` in words."""
    return [
        f"against {other}: largest difference {facts['largest']:.3g}, root mean square {facts['rms']:.3g} of a "
        f"deviation of {facts['deviation']:.3g}; KL {facts['kl']:.2g}",
        f"likeliest token equal in {facts['top1']} of {facts['rows']} rows, first 5 in {facts['top5']}",
        *facts["flips"],
    ]


def _kl(p: Array, q: Array) -> Array:
    """Kullback-Leibler divergence of each row of logits, in nats, with two exponentials a number: rows are long."""
    p, q = (x - x.max(axis=1, keepdims=True) for x in (p, q))
    apart = p - q
    weights, theirs = np.exp(p, out=p), np.exp(q, out=q)
    total = weights.sum(axis=1)
    mean = np.einsum("ij,ij->i", weights, apart) / total
    divergence: Array = mean - (np.log(total) - np.log(theirs.sum(axis=1)))
    return divergence


def greedy_difference(
    theirs: Array,
    ours: Array,
    room: float = 0.0,
    *,
    tokens: Sequence[int] | NDArray[np.int64] | None = None,
    shown: Callable[[int], str] = str,
) -> str | None:
    """The first token at which two engines that read the same tokens choose differently, in words; None: nowhere.

    theirs, ours  logits [tokens, vocab]
    tokens        the numbers of the rows (None: 0, 1, …)
    shown         a token id for people

    A difference that rounding does not explain comes first. Rounding explains differences of logits within 2 % of their
    standard deviation, or within `room`.
    """
    found: list[str] = []
    for step, a, b in zip(range(len(ours)) if tokens is None else tokens, ours, theirs, strict=True):
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            sides = [side for side, row in (("here", a), ("there", b)) if not np.isfinite(row).all()]
            return f"bug: token {step}: NaN or infinity among the logits {' and '.join(sides)}"
        here, there = int(a.argmax()), int(b.argmax())
        if here == there:
            continue
        margins = float(a[here] - a[there]), float(b[there] - b[here])
        apart = float(np.abs(a - b).max())
        explained = apart < max(0.02 * theirs.std(), room)
        found.append(
            f"{'rounding decides' if explained else 'bug'}: token {step} is {shown(here)} here (ahead by "
            f"{margins[0]:.3g}), {shown(there)} there (ahead by {margins[1]:.3g}); logits differ by up to {apart:.3g}"
        )
    return next((line for line in found if line.startswith("bug")), found[0] if found else None)

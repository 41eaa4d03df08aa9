"""Logits of a head that is none of the model's weights: a tie that was ignored, or a head of another model."""

import numpy as np

from karat.check.diagnosis.attempt import FIT_GAIN, REPRODUCED
from karat.check.diagnosis.verdict import BugExplanation
from karat.check.mistakes.catalogue import Variant
from karat.check.model.evaluate import evaluate
from karat.check.replay.finding import F64, LIMIT, Finding
from karat.check.replay.replay import Replay

_TESTED = 4  # tokens at least, on which a map that was fitted to the others is tried
_LEAST_SHARE = 1 / 16  # of the vocabulary: half of what one of eight ranks has
_MORE = 4  # tokens beyond one for each hidden feature: as many give any logits


def other_head(replay: Replay, finding: Finding) -> BugExplanation | None:
    """Logits explained as a linear map of the final hidden state that is none of the model's weights.

    A head of its own differs in the rows of a rank at least: single wrong rows are another bug.
    """
    found = fitted_head(replay, finding)
    if found is None or _share_of_wrong_rows(replay, finding) < _LEAST_SHARE:
        return None
    ratio, error, num_fitted = found
    largest = np.abs(replay.recorded["lm_head"].values).max()
    if ratio > REPRODUCED or not error < finding.error or not error * FIT_GAIN < largest:
        return None
    detail = (
        f"a linear map of the final norm that is none of the model's weights ({num_fitted} rows fitted, rest tested)"
    )
    bug = "tie-ignored" if replay.graph.config.tie_word_embeddings else "head-other"
    return BugExplanation((Variant(bug, detail, {"lm_head": {}}, fitted=True),), ratio, error)


def _share_of_wrong_rows(replay: Replay, finding: Finding) -> float:
    """The share of the vocabulary whose logits are wrong."""
    node = replay.graph.nodes["lm_head"]
    expected = evaluate(node, [replay.value(node.inputs[0])], replay.context, F64)
    floor = np.broadcast_to(replay.floor(finding.segment, expected), expected.shape)
    wrong = np.abs(replay.recorded["lm_head"].values - expected) > LIMIT * floor
    return float(wrong.any(axis=0).mean())


def fitted_head(replay: Replay, finding: Finding) -> tuple[float, float, int] | None:
    """How well *some* linear map of the final hidden state gives the logits: ratio to the floor, error, tokens fitted.

    The map is fitted to the first rows and tested on the rest, whose floor grows with how far they lie from the first;
    so there have to be more rows than hidden features. None where there are too few, and where logits are capped.
    """
    node = replay.graph.nodes["lm_head"]
    if node is not replay.graph.head:
        return None
    x = replay.value(node.inputs[0])
    recorded = replay.recorded["lm_head"]
    num_train = _num_fitted(len(x))
    if recorded.present is not None or num_train < x.shape[1] + _MORE:
        return None
    expected = evaluate(node, [x], replay.context, F64)
    x = replay.context.read(x, node.params["weight"])
    inverse = np.linalg.pinv(x[:num_train])
    spread = 1 + np.abs(x[num_train:] @ inverse).sum(axis=1, keepdims=True)
    error = np.abs(x[num_train:] @ (inverse @ recorded.values[:num_train]) - recorded.values[num_train:])
    size = np.abs(recorded.values).max()
    # Another head makes larger or smaller logits, whose rounding is larger or smaller.
    floor = replay.floor(finding.segment, expected) * (size / np.abs(expected).max())
    ratio = float((error / (spread * np.broadcast_to(floor, recorded.values.shape)[num_train:])).max())
    return ratio, float(error.max()), num_train


def tokens_wanted(replay: Replay) -> str | None:
    """In words, how many tokens it takes to tell whether lm_head is a head of its own; None if there are as many."""
    num_rows, hidden = len(replay.context.logit_rows), replay.graph.config.hidden_size
    needed = next(n for n in range(hidden, 2 * hidden + 100) if _num_fitted(n) >= hidden + _MORE)
    if num_rows >= needed:
        return None
    meant = "embedding" if replay.graph.config.tie_word_embeddings else "checkpoint's"
    return (
        f"whether lm_head is another matrix than the {meant} cannot be told with logits of {num_rows} tokens: any "
        f"logits are a linear map of so few; it takes {needed}"
    )


def _num_fitted(num_rows: int) -> int:
    return num_rows - max(_TESTED, num_rows // 10)

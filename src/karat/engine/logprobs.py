"""Log-probabilities under the model's own distribution: before bias, penalties and temperature."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from karat.request import Logprob, TokenLogprobs


def log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Natural logarithms of the probabilities [vocab], computed in float64."""
    shifted = logits.astype(np.float64) - logits.max()
    result: NDArray[np.float64] = shifted - np.log(np.cumsum(np.exp(shifted))[-1])
    return result


def token_logprobs(
    logits: NDArray[np.floating], token_id: int, num_top: int, decode: Callable[[int], str]
) -> TokenLogprobs:
    """`token_id` and the `num_top` most probable tokens, the chosen one first, then by rank.

    Ranks count from 1; of equally probable tokens the smaller id has the smaller rank.
    """
    logprobs = log_softmax(logits)
    num_top = min(num_top, len(logprobs))
    top: NDArray[np.intp] = np.empty(0, np.intp)
    if num_top:
        candidates = np.flatnonzero(logits >= np.partition(logits, -num_top)[-num_top])
        top = candidates[np.argsort(-logits[candidates], kind="stable")[:num_top]]
    own = logits[token_id]
    rank = 1 + np.count_nonzero(logits > own) + np.count_nonzero(logits[:token_id] == own)
    ranks = {token_id: int(rank)} | {int(other): place for place, other in enumerate(top, start=1)}
    return {
        other: Logprob(logprob=float(logprobs[other]), rank=place, decoded_token=decode(other))
        for other, place in ranks.items()
    }

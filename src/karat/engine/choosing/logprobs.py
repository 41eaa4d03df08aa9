"""Log-probabilities under the model's own distribution: before bias, penalties and temperature."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from karat.ops import rows
from karat.outputs import Logprob, TokenLogprobs


def token_logprobs(
    logits: NDArray[np.floating], token_id: int, num_top: int, decode: Callable[[int], str]
) -> TokenLogprobs:
    """`token_id` and the `num_top` most probable tokens for logits [vocab]: the chosen token first, then by rank.

    Ranks start at 1; of equally probable tokens the smaller id has the smaller rank. Logarithms are natural, in
    float64.
    """
    largest, log_sum = rows.log_sum_exp(logits)
    num_top = min(num_top, len(logits))
    top: NDArray[np.int64] = np.empty(0, np.int64)
    if num_top:
        candidates = rows.largest(logits, num_top)
        top = candidates[np.argsort(-logits[candidates], kind="stable")]
    own = logits[token_id]
    rank = 1 + np.count_nonzero(logits > own) + np.count_nonzero(logits[:token_id] == own)
    ranks = {token_id: int(rank)} | {int(other): place for place, other in enumerate(top, start=1)}
    return {
        other: Logprob(logprob=float(logits[other]) - largest - log_sum, rank=place, decoded_token=decode(other))
        for other, place in ranks.items()
    }

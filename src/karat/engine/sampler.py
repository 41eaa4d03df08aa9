"""Sampling: from one row of logits to one token.

These are pure functions. A row is handled alone, sorting is by value and then token id, and the only random number is a
hash of (seed, choice, position). So a token does not depend on the rest of the batch, on preemptions, or on the order
of requests. All arithmetic is float64, exp included (karat.ops.rows), in IEEE operations of a fixed order: the same
logits give the same token on every machine.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from karat.errors import NumericsError, RequestError
from karat.ops import rows
from karat.request import SamplingParams

SAMPLER_VERSION = 1  # higher with each change that can draw another token from the same logits

Float64 = NDArray[np.float64]
Ids = NDArray[np.int64]
Narrowing = Literal["top_k", "top_p", "min_p"]


def finite_argmax(logits: NDArray[np.floating], position: int) -> int:
    """The token id of the largest of the logits [vocab]; of equal ones the smallest id.

    Raises NumericsError, with `position` (of the token that they follow), unless all logits are finite.
    """
    if (found := rows.finite_argmax(logits)) is not None:
        return found
    bad = np.flatnonzero(~np.isfinite(logits))
    raise NumericsError(
        f"the logits after the token at position {position} are not finite: {logits[bad[0]]} at token id {bad[0]} "
        f"({len(bad)} of {len(logits)} values); the weights are damaged, or a value overflowed on the way"
    )


def choose(
    logits: NDArray[np.floating],
    params: SamplingParams,
    *,
    token_ids: Sequence[int],
    prompt_len: int,
    seed: int,
    choice: int,
    barred: Collection[int] = (),
    fitting: NDArray[np.bool_] | None = None,
) -> int:
    """The next token after `token_ids` (prompt and output so far), as SamplingParams defines it.

    `logits` [vocab] are the model's own. `barred` tokens are never chosen, nor tokens that are False in
    `fitting` [vocab]. Raises NumericsError unless all logits are finite, RequestError if every token is barred.
    """
    scores, top = logits, finite_argmax(logits, len(token_ids) - 1)
    if barred or _adjusts(params):
        scores = adjusted(logits, params, token_ids=token_ids, prompt_len=prompt_len, barred=barred)
    if fitting is not None:
        return _chosen_fitting(scores, params, fitting, uniform(seed, choice, len(token_ids)))
    if scores is not logits and scores.max() == -np.inf:
        total = len(scores) if params.allowed_token_ids is None else len(set(params.allowed_token_ids))
        raise RequestError(f"all {total} tokens are barred until min_tokens={params.min_tokens}; lower it")
    if params.temperature == 0:
        return top if scores is logits else rows.argmax(scores)
    token_ids_left, weights = candidates(scores, params)
    return int(token_ids_left[draw(weights, uniform(seed, choice, len(token_ids)))])


def _chosen_fitting(scores: NDArray[np.floating], params: SamplingParams, fitting: NDArray[np.bool_], u: float) -> int:
    """The token drawn with `u`, as if the others had been taken out first: `adjusted` does to each score by itself.

    A row of the few scores that fit, or a row in which the few others are -inf, gives the same token. Both are quick.
    """
    ids: Ids | None = None
    if 2 * np.count_nonzero(fitting) < len(fitting):
        ids = np.flatnonzero(fitting)
        scores = scores[ids]
    else:
        scores = np.where(fitting, scores, scores.dtype.type(-np.inf))
    if not len(scores) or scores[found := rows.argmax(scores)] == -np.inf:
        raise RequestError(
            "structured_outputs: no token that may be chosen fits at this place: the form has a dead end here, or what "
            "fits is barred by allowed_token_ids or min_tokens; change it, or leave those out"
        )
    if params.temperature != 0:
        left, weights = candidates(scores, params)
        found = int(left[draw(weights, u)])
    return found if ids is None else int(ids[found])


def _adjusts(params: SamplingParams) -> bool:
    """Whether `adjusted` would change a score."""
    penalties = params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty
    return bool(params.logit_bias or penalties or params.allowed_token_ids)


def adjusted(
    logits: NDArray[np.floating],
    params: SamplingParams,
    *,
    token_ids: Sequence[int],
    prompt_len: int,
    barred: Collection[int] = (),
) -> Float64:
    """Scores [vocab]: as `penalised`; barred and not allowed tokens are -inf."""
    scores = penalised(logits, params, token_ids=token_ids, prompt_len=prompt_len)
    if params.allowed_token_ids is not None:
        allowed = list(params.allowed_token_ids)
        kept = scores[allowed]
        scores[:] = -np.inf
        scores[allowed] = kept
    if barred:
        scores[list(barred)] = -np.inf
    return scores


def penalised(
    logits: NDArray[np.floating], params: SamplingParams, *, token_ids: Sequence[int], prompt_len: int
) -> Float64:
    """Scores [vocab]: logits with bias, then the three penalties.

    Raises RequestError for a repetition penalty that makes a score overflow.
    """
    scores = logits.astype(np.float64)
    for token_id, bias in params.logit_bias.items():
        scores[token_id] += bias
    if params.repetition_penalty != 1:
        seen = np.unique(np.array(token_ids, np.int64))
        value = scores[seen]
        with np.errstate(over="ignore"):
            scores[seen] = np.where(value > 0, value / params.repetition_penalty, value * params.repetition_penalty)
        if not np.isfinite(scores[seen]).all():
            raise RequestError(
                f"repetition_penalty={params.repetition_penalty:g} makes a score overflow: expected about 1.0 to 1.5; "
                "change it in SamplingParams, on the command line, or in the model's generation_config.json"
            )
    if params.frequency_penalty or params.presence_penalty:
        written, counts = np.unique(np.array(token_ids[prompt_len:], np.int64), return_counts=True)
        scores[written] -= params.frequency_penalty * counts + params.presence_penalty
    return scores


def candidates(scores: NDArray[np.floating], params: SamplingParams) -> tuple[Ids, Float64]:
    """Token ids [kept], ascending, and their weights [kept], proportional to their probabilities; the largest is 1."""
    *_, (_, token_ids, weights) = narrowed(scores, params)
    return token_ids, weights


def narrowed(scores: NDArray[np.floating], params: SamplingParams) -> Iterator[tuple[Narrowing, Ids, Float64]]:
    """What each step at the temperature leaves: token ids, ascending, and their weights, as in `candidates`.

    top-k, top-p and min-p are applied in this order; one that is off leaves all. Of equal scores the smaller token ids
    are kept first. top-p keeps the fewest most probable tokens whose share of the tokens left by top-k is at least
    top_p.
    """
    token_ids = np.arange(len(scores))
    if 0 < params.top_k < len(scores):
        token_ids = rows.largest(scores, params.top_k)
        scores = scores[token_ids]
    weights = rows.exp_weights(scores, params.temperature)
    yield "top_k", token_ids, weights
    if params.top_p < 1:
        kept = nucleus(scores, weights, params.top_p)
        token_ids, weights = token_ids[kept], weights[kept]
    yield "top_p", token_ids, weights
    probable = weights >= params.min_p
    yield "min_p", token_ids[probable], weights[probable]


def nucleus(scores: NDArray[np.floating], weights: Float64, share: float) -> Ids:
    """Indices, ascending, of the fewest largest scores whose weights sum up to `share` of all weights."""
    wanted, num = share * np.cumsum(weights)[-1], 256
    while True:  # a few hundred are nearly always enough, and sorting them is much faster than sorting all
        top = rows.largest(scores, min(num, len(scores)))
        top = top[np.argsort(-scores[top], kind="stable")]
        masses = np.cumsum(weights[top])
        if masses[-1] >= wanted or num >= len(scores):
            return np.sort(top[: 1 + int(np.searchsorted(masses, wanted))])
        num *= 16


def draw(weights: Float64, u: float) -> int:
    """The index whose interval contains u, where the weights, in order, divide [0, 1)."""
    ends = np.cumsum(weights)
    # u is at most 1 - 2^-53, so u * total never rounds up to the total: an end beyond it always exists.
    return int(np.searchsorted(ends, u * ends[-1], side="right"))


def uniform(seed: int, choice: int, position: int) -> float:
    """A multiple of 2^-53 in [0, 1) from a counter-based hash: BLAKE2b (RFC 7693) of three 64-bit integers."""
    key = b"".join(value.to_bytes(8, "little") for value in (seed, choice, position))
    return (int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 11) * 2.0**-53


def derived_seed(seed: int, counter: int) -> int:
    """The seed of request number `counter` of an engine with seed `seed`, if the request has none."""
    key = seed.to_bytes(8, "little") + counter.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(key, digest_size=8, person=b"karat-request").digest(), "little") >> 1

"""Sampling: from one row of logits to one token.

These are pure functions. A row is handled alone, sorting is by value and then token id, and the only random number is a
hash of (seed, choice, position). So a token does not depend on the rest of the batch, on preemptions, or on the order
of requests. All arithmetic is float64, exp included (karat.ops.rows), in IEEE operations of a fixed order: the same
logits give the same token on every machine.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from karat.engine.choosing.bad_words import NO_WORDS, Words
from karat.engine.choosing.repeats import completing, dry
from karat.errors import NumericsError, RequestError
from karat.ops import rows
from karat.request import SamplingParams

SAMPLER_VERSION = 1  # higher with each change that can draw another token from the same logits

Float64 = NDArray[np.float64]
Ids = NDArray[np.int64]
Narrowing = Literal["top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc"]
Bar = Literal["min_tokens", "allowed_token_ids", "bad_words", "no_repeat_ngram_size"]
_BY_TEXT: Collection[Bar] = ("bad_words", "no_repeat_ngram_size")  # they bar other tokens at each place


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
    words: Words = NO_WORDS,
) -> int:
    """The next token after `token_ids` (prompt and output so far), as SamplingParams defines it.

    `logits` [vocab] are the model's own. `barred` tokens are never chosen, nor tokens that are False in
    `fitting` [vocab]. `words` are those of `params`. Raises NumericsError unless all logits are finite, RequestError if
    every token is barred.
    """
    scores, top = logits, finite_argmax(logits, len(token_ids) - 1)
    bars = barring(params, len(logits), token_ids=token_ids, prompt_len=prompt_len, barred=barred, words=words)
    if bars or _adjusts(params):
        scores = adjusted(logits, params, token_ids=token_ids, prompt_len=prompt_len, bars=bars, words=words)
    position = len(token_ids)
    excludes = xtc_draw(params, seed, choice, position) < params.xtc_probability
    if fitting is not None:
        return _chosen_fitting(scores, params, fitting, uniform(seed, choice, position), excludes, bars)
    if scores is not logits and scores.max() == -np.inf:
        raise _nothing_left(scores, params, bars)
    if params.temperature == 0:
        return top if scores is logits else rows.argmax(scores)
    token_ids_left, weights = candidates(scores, params, excludes=excludes)
    return int(token_ids_left[draw(weights, uniform(seed, choice, position))])


def _chosen_fitting(
    scores: NDArray[np.floating],
    params: SamplingParams,
    fitting: NDArray[np.bool_],
    u: float,
    excludes: bool,
    bars: Mapping[Bar, Ids],
) -> int:
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
        names = ["allowed_token_ids", "min_tokens", *(name for name in bars if name in _BY_TEXT)]
        raise RequestError(
            "structured_outputs: no token that may be chosen fits at this place: the form has a dead end here, or what "
            f"fits is barred by {', '.join(names[:-1])} or {names[-1]}; change it, or leave those out",
            param="structured_outputs",
        )
    if params.temperature != 0:
        left, weights = candidates(scores, params, excludes=excludes)
        found = int(left[draw(weights, u)])
    return found if ids is None else int(ids[found])


def _nothing_left(scores: NDArray[np.floating], params: SamplingParams, bars: Mapping[Bar, Ids]) -> RequestError:
    total = len(scores) if params.allowed_token_ids is None else len(set(params.allowed_token_ids))
    if names := [name for name in bars if name in _BY_TEXT]:
        return RequestError(f"all {total} tokens are barred by {' and '.join(bars)}; leave out {' or '.join(names)}")
    return RequestError(f"all {total} tokens are barred until min_tokens={params.min_tokens}; lower it")


def _adjusts(params: SamplingParams) -> bool:
    """Whether `penalised` would change a score."""
    penalties = params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty
    return bool(params.logit_bias or penalties or params.dry_multiplier)


def barring(
    params: SamplingParams,
    vocab_size: int,
    *,
    token_ids: Sequence[int],
    prompt_len: int,
    barred: Collection[int],
    words: Words,
) -> Mapping[Bar, Ids]:
    """The tokens that each rule bars after `token_ids`, in the order of the rules; those that bar none are left out.

    `barred` are those of min_tokens. Of allowed_token_ids the value is the tokens that it does not bar. Words may have
    tokens that the tokenizer has and the model, of `vocab_size`, has not.
    """
    found: dict[Bar, Ids] = {}
    if barred:
        found["min_tokens"] = np.array(list(barred), np.int64)
    if params.allowed_token_ids is not None:
        found["allowed_token_ids"] = np.array(params.allowed_token_ids, np.int64)
    if bad := [token_id for token_id in words.barred(token_ids, prompt_len) if token_id < vocab_size]:
        found["bad_words"] = np.array(bad, np.int64)
    if params.no_repeat_ngram_size:
        repeating = completing(np.array(token_ids, np.int64), params.no_repeat_ngram_size)
        if len(repeating):
            found["no_repeat_ngram_size"] = repeating
    return found


def adjusted(
    logits: NDArray[np.floating],
    params: SamplingParams,
    *,
    token_ids: Sequence[int],
    prompt_len: int,
    bars: Mapping[Bar, Ids] | None = None,
    words: Words = NO_WORDS,
) -> Float64:
    """Scores [vocab]: as `penalised`; tokens that `barring` found, and those not allowed, are -inf."""
    scores = penalised(logits, params, token_ids=token_ids, prompt_len=prompt_len, words=words)
    if params.allowed_token_ids is not None:
        allowed = list(params.allowed_token_ids)
        kept = scores[allowed]
        scores[:] = -np.inf
        scores[allowed] = kept
    for name, ids in (bars or {}).items():
        if name != "allowed_token_ids":
            scores[ids] = -np.inf
    return scores


def penalised(
    logits: NDArray[np.floating],
    params: SamplingParams,
    *,
    token_ids: Sequence[int],
    prompt_len: int,
    words: Words = NO_WORDS,
) -> Float64:
    """Scores [vocab]: logits with bias, then the three penalties, then DRY's.

    Raises RequestError for a repetition penalty that makes a score overflow.
    """
    scores = logits.astype(np.float64)
    for token_id, bias in params.logit_bias.items():
        scores[token_id] += bias
    recent, answer = token_ids, token_ids[prompt_len:]
    if params.repeat_last_n is not None:
        num = len(token_ids) if params.repeat_last_n == -1 else params.repeat_last_n
        recent = answer = token_ids[max(0, len(token_ids) - num) :]
    if params.repetition_penalty != 1:
        seen = np.unique(np.array(recent, np.int64))
        value = scores[seen]
        with np.errstate(over="ignore"):
            scores[seen] = np.where(value > 0, value / params.repetition_penalty, value * params.repetition_penalty)
        if not np.isfinite(scores[seen]).all():
            raise RequestError(
                f"repetition_penalty={params.repetition_penalty:g} makes a score overflow: expected about 1.0 to 1.5; "
                "change it in SamplingParams, on the command line, or in the model's generation_config.json",
                param="repetition_penalty",
            )
    if params.frequency_penalty or params.presence_penalty:
        written, counts = np.unique(np.array(answer, np.int64), return_counts=True)
        scores[written] -= params.frequency_penalty * counts + params.presence_penalty
    repeating, losses = dry_losses(params, token_ids, words)
    scores[repeating] -= losses
    return scores


def dry_losses(params: SamplingParams, token_ids: Sequence[int], words: Words) -> tuple[Ids, Float64]:
    """The tokens that DRY penalises, and what each loses."""
    if not params.dry_multiplier or not params.dry_penalty_last_n:
        return np.zeros(0, np.int64), np.zeros(0)
    return dry(
        token_ids,
        multiplier=params.dry_multiplier,
        base=params.dry_base,
        allowed_length=params.dry_allowed_length,
        last_n=params.dry_penalty_last_n,
        breakers=words.breakers,
    )


def candidates(scores: NDArray[np.floating], params: SamplingParams, *, excludes: bool = False) -> tuple[Ids, Float64]:
    """Token ids [kept], ascending, and their weights [kept], proportional to their probabilities; the largest is 1.

    excludes: whether the draw of XTC lets it act.
    """
    *_, (_, token_ids, weights) = narrowed(scores, params, excludes=excludes)
    return token_ids, weights


def narrowed(
    scores: NDArray[np.floating], params: SamplingParams, *, excludes: bool = False
) -> Iterator[tuple[Narrowing, Ids, Float64]]:
    """What each step at the temperature leaves: token ids, ascending, and their weights, as in `candidates`.

    The steps come in the order of `Narrowing`; one that is off leaves all. Of equal scores the smaller token ids are
    kept first. top-p and typical-p keep the fewest tokens whose share of those that are left is at least theirs.
    top-n-sigma comes before the weights: it is named only where it is on, with weights of 1.
    """
    token_ids = np.arange(len(scores))
    if params.top_n_sigma:
        token_ids = near_the_largest(scores, params.top_n_sigma)
        scores = scores[token_ids]
        yield "top_n_sigma", token_ids, np.ones(len(token_ids))
    if 0 < params.top_k < len(scores):
        kept, scores = rows.largest_values(scores, params.top_k)
        token_ids = token_ids[kept]
    weights = rows.exp_weights(scores, params.temperature)
    yield "top_k", token_ids, weights
    if params.typical_p < 1:
        kept = typical(scores, weights, params.temperature, params.typical_p)
        token_ids, scores, weights = token_ids[kept], scores[kept], weights[kept] / weights[kept].max()
    yield "typical_p", token_ids, weights
    if params.top_p < 1:
        kept = nucleus(scores, weights, params.top_p)
        token_ids, weights = token_ids[kept], weights[kept]
    yield "top_p", token_ids, weights
    probable = weights >= params.min_p
    token_ids, weights = token_ids[probable], weights[probable]
    yield "min_p", token_ids, weights
    if excludes:
        kept = but_top_choices(weights, params.xtc_threshold)
        token_ids, weights = token_ids[kept], weights[kept] / weights[kept].max()
    yield "xtc", token_ids, weights


def near_the_largest(scores: NDArray[np.floating], num_deviations: float) -> Ids:
    """Indices, ascending, of scores at most so many standard deviations (of the finite scores) below the largest."""
    finite = scores[scores > -np.inf].astype(np.float64)
    apart = finite - np.cumsum(finite)[-1] / len(finite)
    deviation = np.sqrt(np.cumsum(apart * apart)[-1] / len(finite))
    return np.flatnonzero(scores >= finite.max() - num_deviations * deviation)


def typical(scores: NDArray[np.floating], weights: Float64, temperature: float, share: float) -> Ids:
    """Indices, ascending, of the fewest weights that sum up to `share` of all, the most typical ones first.

    How far a token's surprise, -log p, lies from the mean surprise is how far its score over the temperature lies from
    the mean of these: the logarithm of the sum cancels.
    """
    with np.errstate(over="ignore"):  # a tiny temperature: -inf, with a weight of 0
        scaled = (scores.astype(np.float64) - scores.max()) / temperature
    mean = np.cumsum(np.where(weights > 0, scaled, 0) * weights)[-1] / np.cumsum(weights)[-1]
    return nucleus(-np.abs(scaled - mean), weights, share)


def but_top_choices(weights: Float64, threshold: float) -> Ids:
    """Indices, ascending, of all weights but the top choices: those of at least `threshold` of the sum, save the least.

    Of equal least ones the last is saved. A weight of 0 is no choice at all.
    """
    top = np.flatnonzero((weights / np.cumsum(weights)[-1] >= threshold) & (weights > 0))
    if len(top) < 2:
        return np.arange(len(weights))
    saved = top[len(top) - 1 - int(np.argmin(weights[top][::-1]))]
    return np.delete(np.arange(len(weights)), top[top != saved])


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


def uniform(seed: int, choice: int, position: int, stream: bytes = b"") -> float:
    """A multiple of 2^-53 in [0, 1) from a counter-based hash: BLAKE2b (RFC 7693) of three 64-bit integers.

    `stream` is the hash's personalisation: numbers of different streams have nothing to do with each other.
    """
    key = b"".join(value.to_bytes(8, "little") for value in (seed, choice, position))
    hashed = hashlib.blake2b(key, digest_size=8, person=stream).digest()
    return (int.from_bytes(hashed, "little") >> 11) * 2.0**-53


def xtc_draw(params: SamplingParams, seed: int, choice: int, position: int) -> float:
    """The number that must be below xtc_probability for XTC to act; 1, which is below none, where it is off."""
    return uniform(seed, choice, position, b"karat-xtc") if params.xtc_probability else 1.0


def derived_seed(seed: int, counter: int) -> int:
    """The seed of request number `counter` of an engine with seed `seed`, if the request has none."""
    key = seed.to_bytes(8, "little") + counter.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(key, digest_size=8, person=b"karat-request").digest(), "little") >> 1

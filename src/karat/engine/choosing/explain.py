"""explained: how one token was drawn, step by step, by the functions that drew it (karat.engine.choosing.sampler)."""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from karat.engine.choosing.bad_words import NO_WORDS, Words
from karat.engine.choosing.sampler import Bar, Ids, barring, dry_losses, narrowed, penalised, uniform, xtc_draw
from karat.explanation import Alternative, CutBy, Explanation, Kept
from karat.ops import rows
from karat.request import SamplingParams

NUM_ALTERNATIVES = 8


def explained(
    logits: NDArray[np.floating],
    params: SamplingParams,
    token_id: int,
    decode: Callable[[int], str],
    *,
    token_ids: Sequence[int],
    prompt_len: int,
    seed: int,
    choice: int,
    barred: Collection[int] = (),
    fitting: NDArray[np.bool_] | None = None,
    words: Words = NO_WORDS,
) -> Explanation:
    """How `choose` took `token_id` with these arguments. `decode` gives the text of one token."""
    weights = rows.exp_weights(logits, 1.0)
    probabilities = weights / weights.sum()
    shown = _likeliest(logits, token_id)
    scores = penalised(logits, params, token_ids=token_ids, prompt_len=prompt_len, words=words)
    penalties = [float(scores[i] - np.float64(logits[i])) for i in shown]
    ids, amounts = dry_losses(params, token_ids, words)
    losses: dict[int, float] = dict(zip(ids.tolist(), amounts.tolist(), strict=True))
    cuts: dict[int, CutBy] = {}

    def cut(step: CutBy, left: NDArray[np.bool_]) -> None:
        """Note which shown tokens a step takes out first; `left` [vocab] are the tokens that it leaves."""
        for other in shown:
            if not left[other]:
                cuts.setdefault(other, step)

    bars = barring(params, len(logits), token_ids=token_ids, prompt_len=prompt_len, barred=barred, words=words)
    for step, left in _masks(len(logits), bars, fitting):
        cut(step, left)
        scores[~left] = -np.inf
    num_left: dict[str, int] = {}
    drawn = np.zeros(len(logits))
    chance = xtc_draw(params, seed, choice, len(token_ids))
    if params.temperature == 0:
        drawn[token_id] = 1
    else:
        for step, ids, weights in narrowed(scores, params, excludes=chance < params.xtc_probability):
            is_left = _mask(len(logits), ids) & (scores > -np.inf)
            cut(step, is_left)
            num_left[step] = int(is_left.sum())
            drawn[:] = 0
            drawn[ids] = weights / weights.sum()
    wanted = {
        "top_n_sigma": params.top_n_sigma > 0,
        "top_k": params.top_k > 0,
        "typical_p": params.typical_p < 1,
        "top_p": params.top_p < 1,
        "min_p": params.min_p > 0,
        "xtc": params.xtc_probability > 0,
    }
    kept = {step: num_left.get(step) for step, is_wanted in wanted.items() if is_wanted}
    alternatives = tuple(
        Alternative(
            token=other,
            text=decode(other),
            probability=float(probabilities[other]),
            rank=_rank(logits, other),
            drawn=float(drawn[other]),
            cut_by=cuts.get(other),
            penalty=penalty,
            dry=0.0 - losses.get(other, 0.0),
        )
        for other, penalty in zip(shown, penalties, strict=True)
    )
    own = alternatives[shown.index(token_id)]
    return Explanation(
        token=token_id,
        text=own.text,
        position=len(token_ids),
        probability=own.probability,
        rank=own.rank,
        drawn=own.drawn,
        draw=None if params.temperature == 0 else uniform(seed, choice, len(token_ids)),
        temperature=float(params.temperature),
        kept=Kept(grammar=None if fitting is None else int(fitting.sum()), **kept),
        alternatives=alternatives,
        xtc_draw=chance if params.xtc_probability > 0 and params.temperature > 0 else None,
    )


def _masks(
    vocab_size: int, bars: Mapping[Bar, Ids], fitting: NDArray[np.bool_] | None
) -> list[tuple[CutBy, NDArray[np.bool_]]]:
    """What is left [vocab] by each step before the temperature, in the order of the steps."""
    masks: list[tuple[CutBy, NDArray[np.bool_]]] = []
    if fitting is not None:
        masks.append(("grammar", fitting))
    for name, ids in bars.items():
        named = _mask(vocab_size, ids)
        masks.append((name, named if name == "allowed_token_ids" else ~named))
    return masks


def _mask(vocab_size: int, token_ids: Ids) -> NDArray[np.bool_]:
    mask = np.zeros(vocab_size, np.bool_)
    mask[token_ids] = True
    return mask


def _likeliest(logits: NDArray[np.floating], token_id: int) -> list[int]:
    """The likeliest tokens by rank, `token_id` among them or at the end."""
    top = rows.largest(logits, min(NUM_ALTERNATIVES, len(logits)))
    shown: list[int] = top[np.argsort(-logits[top], kind="stable")].tolist()
    return shown if token_id in shown else [*shown, token_id]


def _rank(logits: NDArray[np.floating], token_id: int) -> int:
    own = logits[token_id]
    return 1 + int(np.count_nonzero(logits > own) + np.count_nonzero(logits[:token_id] == own))

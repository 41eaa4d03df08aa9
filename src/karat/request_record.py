"""A request as it travels from whoever makes it to the engine. Apart from its parameters, which every start imports."""

import msgspec

from karat.request import ReceiptWish, Resume, SamplingParams


class Request(msgspec.Struct, frozen=True, tag=True):
    """One prompt to be continued, with every default of `params` resolved: all that is asked for, from whoever makes it
    to the engine, which may be in another process.

    `seed` keys the draws. `end_token_ids` are the model's own, which ignore_eos ignores. Requests of different `salt`
    (tenants, adapters, images beside the tokens) share no blocks of the cache; one without `shares` finds none, and
    leaves none. Waiting requests are admitted by `priority`, the smaller first, as in vLLM (for what it does not do see
    karat.engine.scheduling.scheduler). With `resume` the one choice goes on from there. `cache_point` is the number of
    tokens with which the next turn of the conversation begins too, where that is known (karat.text.cache_point). With
    `tells_progress` each step reports the prompt's progress. `receipt`: whether the output has one (karat.receipts).
    If `is_watched`, its tokens are told as they come; else once there is a first one, and when a choice ends.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    prompt: str | None = None
    end_token_ids: frozenset[int] = frozenset()
    salt: str | None = None
    shares: bool = True
    priority: int = 0
    resume: Resume | None = None
    cache_point: int | None = None
    tells_progress: bool = False
    receipt: ReceiptWish = False
    is_watched: bool = True

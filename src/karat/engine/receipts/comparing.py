"""Comparing: an answer chosen again under other activations, over the weights that are loaded already.

Packed weights are the same for all activations; only the plan of a step differs. So a comparison takes no second model:
it has an engine of its own, with a KV cache for this one answer, and is computed a step at a time between other work.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from karat.config import Activations
from karat.engine.choosing.replay_reader import ReplayReader
from karat.engine.engine import Engine
from karat.engine.receipts.verifying import LoadedLLM, examine
from karat.engine.scheduling.step_budget import BESIDE_STEP_S
from karat.errors import KaratError, ReceiptError, RequestError
from karat.receipts.comparison import Comparison, Parting
from karat.receipts.fingerprint import Fingerprint
from karat.receipts.receipt import Receipt
from karat.request import shown
from karat.request_record import Request

if TYPE_CHECKING:
    from karat.text.grammar import Grammar

STEP_S = 0.1  # about the longest step of a comparison where nobody waits
OpenEngine = Callable[[Activations, int], Engine]  # of these activations, for one sequence of so many tokens
Comparing = Generator[None, None, Parting | None]  # a step at a time, then what it found


class Compare(msgspec.Struct, frozen=True, tag=True):
    """Choose the tokens of an answer again, choice `choice` of a request, by two widths of activations."""

    request: Request
    choice: int
    token_ids: tuple[int, ...]
    activations: Activations
    other: Activations


def comparison(
    receipt: Receipt,
    other: str,
    here: Fingerprint,
    contracts: Mapping[Activations, int],
    loaded: LoadedLLM,
    begun: float,
) -> Generator[Compare, Parting | None, Comparison]:
    """A receipt's answer compared with other activations. begun: when that began, by perf_counter.

    contracts: the numeric contract by activations of the loaded weights; empty where there is no choice of them. Raises
    RequestError for activations that cannot be compared, ReceiptError for a receipt that has only digests or was
    changed, OtherContractError for one of another model.
    """
    stated = receipt.fingerprint.activations
    if not contracts:
        raise RequestError(
            "activations: this model cannot choose them: expected weights in blocks (--quantize), the native executor "
            "and one rank",
            param="activations",
        )
    able = [name for name in contracts if name != stated]
    if other not in able:
        raise RequestError(
            f"activations={shown(other)}: expected one of {', '.join(able)}; the receipt has {stated}",
            param="activations",
        )
    if receipt.has_digests_only:
        raise ReceiptError("the receipt has only digests; a comparison needs the tokens: ask for a whole receipt")
    own = next((name for name in contracts if name == stated), None)
    if own is not None:
        here = replace(here, activations=own, numeric_contract=contracts[own])
    examined = examine(receipt, lambda: here, loaded, None)
    if examined.finding is not None:
        raise ReceiptError(f"{examined.finding}; expected a receipt as it was written")
    wanted = next(name for name in able if name == other)
    assert own is not None and examined.request is not None and examined.token_ids is not None
    num_tokens = len(examined.token_ids)
    parting = yield Compare(examined.request, receipt.choice, examined.token_ids, own, wanted)
    return Comparison(own, wanted, num_tokens, perf_counter() - begun, parting)


def comparing(
    open_engine: OpenEngine,
    asked: Compare,
    rows: int | None = None,
    grammar: "Grammar | None" = None,
    is_alone: Callable[[], bool] = lambda: True,
) -> Comparing:
    """Compute a comparison; `rows` are the most tokens that a step chooses, grammar is as in `Engine.add_request`.

    `is_alone` says before each step whether nobody waits for it: else it takes about BESIDE_STEP_S at most. Raises
    ReceiptError if the receipt's own activations do not give its tokens, and errors of computing.

    The other activations choose all tokens after the receipt's. Where they part, the receipt's own are computed too, up
    to there, for their margin.
    """
    how = rows, grammar, is_alone
    there = yield from _replayed(open_engine, asked, asked.other, asked.token_ids, *how)
    if there.difference is None:
        return None
    if (other := there.difference.replayed_token) is None or (index := there.difference.index) is None:
        raise _not_of_this_model(asked, there.difference.text)
    # With the other token as the stated one, the receipt's own activations differ at this token and no other.
    probe = (*asked.token_ids[:index], other)
    here = yield from _replayed(open_engine, asked, asked.activations, probe, *how)
    taken, difference = asked.token_ids[index], here.difference
    if difference is None or (difference.index, difference.replayed_token) != (index, taken):
        raise _not_of_this_model(asked, f"token {index + 1} is not what {asked.activations} chooses")
    margins = here.margin, there.margin
    texts = here.text_of(taken), here.text_of(other)
    return Parting(index, len(asked.request.prompt_token_ids) + index, taken, other, *texts, *margins)


def _replayed(
    open_engine: OpenEngine,
    asked: Compare,
    activations: Activations,
    token_ids: tuple[int, ...],
    rows: int | None,
    grammar: "Grammar | None",
    is_alone: Callable[[], bool],
) -> Generator[None, None, ReplayReader]:
    num_tokens = len(asked.request.prompt_token_ids) + len(token_ids)
    params = replace(asked.request.params, max_tokens=len(token_ids))  # of more there is no room, and no need
    engine = open_engine(activations, num_tokens)
    request = msgspec.structs.replace(asked.request, params=params)
    replay = engine.replay(request, asked.choice, token_ids, rows=rows, grammar=grammar)
    while not replay.done:
        engine.advance(prompt_step_s=STEP_S if is_alone() else BESIDE_STEP_S)
        yield
    if replay.error is not None:
        raise replay.error
    return replay


def _not_of_this_model(asked: Compare, why: str) -> KaratError:
    return ReceiptError(f"{why}; the receipt is not what this model answers with {asked.activations}: verify it first")

"""verify_by_reference: a receipt judged by the float64 executor, a second code with the same rules of choosing.

The logits of the reference are not those of the engine, to the bit. How far they may be apart is measured: beside
float64 the same layers run on the reference in the types of the receipt, and the largest distance of a row's logits,
times _MARGIN, is that row's floor. A token that the reference does not choose is undecided if logits within the floor
would choose it, and different if none would.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from time import perf_counter
from typing import Any, cast, get_args

import numpy as np

from karat.check.model.checked import CheckedModel
from karat.check.record.layer_logits import layer_logits
from karat.check.trace.format import Array
from karat.config import Activations, FloatName
from karat.engine.choosing.choice import Choice
from karat.engine.choosing.sampler import SAMPLER_VERSION
from karat.engine.model_loading.defaults import turn_end_ids
from karat.engine.model_loading.tokenizer_loading import TokenizerLoading
from karat.engine.model_running import Preparation
from karat.engine.receipts.verifying import compared
from karat.engine.requests.admission import check_params, resolve_max_tokens
from karat.engine.scheduling.sequence import Sequence
from karat.errors import KaratError, ReceiptError
from karat.ops.registry import create
from karat.receipts.fingerprint import Computing, StoredModel, fingerprint
from karat.receipts.receipt import Receipt
from karat.receipts.signature import signer_of
from karat.receipts.verdict import Difference, Verdict, changed_since, impossible, require_same
from karat.request import SamplingParams
from karat.request_record import Request
from karat.text import Tokenizer

_MARGIN = 4.0  # of a row's floor: either side strays by chance
_MOST_TURNED = 16  # tokens that may be too likely to stay; more than two thirds of a draw are hardly ever over more


def verify_by_reference(model: CheckedModel, receipt: Receipt, quantize: str | None = None) -> Verdict:
    """agrees, undecided or differs. Executor, types and numeric contract may be others than here, the model may not.

    Raises OtherContractError for another model, tokenizer or sampler; ReceiptError for a receipt of digests only.
    """
    before = perf_counter()
    if receipt.has_digests_only:
        raise ReceiptError("the receipt has only digests; the reference needs the tokens: ask for a whole receipt")
    prompt, ids = tuple(receipt.prompt.token_ids), tuple(receipt.output.token_ids)
    signer, fault = signer_of(receipt)
    finding, num_undecided = changed_since(receipt) or fault, 0
    if finding is None:
        prepare = Preparation(quantize, quiet=True)
        tokenizer, ends = _tokenizer_and_ends(model)
        _require_same_model(model, receipt, prepare, tokenizer)
        finding = impossible(
            receipt,
            vocab_size=model.config.vocab_size,
            end_token_ids=ends,
            chat_end_token_ids=ends | turn_end_ids(tokenizer),
        )
        if finding is None:
            finding, num_undecided = _judged(model, receipt, prepare, tokenizer, cast(Any, prompt), cast(Any, ids))
    kind = "differs" if finding else "undecided" if num_undecided else "agrees"
    return Verdict(cast(Any, kind), len(ids), perf_counter() - before, finding, num_undecided, signer)


def _tokenizer_and_ends(model: CheckedModel) -> tuple[Tokenizer, frozenset[int]]:
    tokenizer, defaults = TokenizerLoading(model.checkpoint, model.config, None, "auto").result()
    return tokenizer, defaults.end_token_ids


def _require_same_model(model: CheckedModel, receipt: Receipt, prepare: Preparation, tokenizer: Tokenizer) -> None:
    stated = receipt.fingerprint
    if stated.activations not in get_args(Activations):
        raise ReceiptError(
            f"fingerprint.activations={stated.activations!r}: this Karat has no such; use the one that has"
        )
    here = fingerprint(
        StoredModel(config=model.config, checkpoint=model.checkpoint, prepare=prepare, tokenizer=lambda: tokenizer),
        Computing(
            sampler=SAMPLER_VERSION,
            executor=stated.executor,
            dtype=stated.dtype,
            activations=cast(Any, stated.activations),
            kv_dtype=stated.kv_dtype,
        ),
    )
    require_same(receipt, replace(here, activations=stated.activations, numeric_contract=stated.numeric_contract))


def _judged(
    model: CheckedModel,
    receipt: Receipt,
    prepare: Preparation,
    tokenizer: Tokenizer,
    prompt: tuple[int, ...],
    ids: tuple[int, ...],
) -> tuple[Difference | None, int]:
    try:
        choice = _choice(model, receipt, tokenizer, receipt.request(prompt))
    except (KaratError, ValueError) as fault:
        return Difference(f"sampling: {fault}"), 0
    stated = receipt.fingerprint
    text, first = (*prompt, *ids[:-1]), len(prompt) - 1
    kv_dtype = cast(FloatName, stated.kv_dtype)
    activations = cast(Activations, stated.activations)
    right = layer_logits(
        model.config, model.stored, create("reference", "float64"), text, first, kv_dtype="float64", prepare=prepare
    )
    narrow = create("reference", cast(FloatName, stated.dtype), {"activations": activations})
    coarse = layer_logits(model.config, model.stored, narrow, text, first, kv_dtype=kv_dtype, prepare=prepare)
    num_undecided = 0
    pairs = chain.from_iterable(zip(r, c, strict=True) for r, c in zip(right, coarse, strict=True))
    for number, ((row, rough), token_id) in enumerate(zip(pairs, ids, strict=True)):
        if choice.finish_reason is not None:
            said = f"output.token_ids: the answer ends after {number} tokens ({choice.finish_reason})"
            return Difference(f"{said}, the receipt has {len(ids)}", number), num_undecided
        try:
            here = choice.chosen(row)
            floor = _MARGIN * float(np.abs(row - rough).max())
            if here != token_id:
                if not _may_be(choice.chosen, row, token_id, floor, num_turned=_num_turned(choice.request.params)):
                    return _other_token(tokenizer, number, len(prompt), ids, here, row, floor), num_undecided
                num_undecided += 1
            choice.take(token_id)
        except KaratError as fault:
            return Difference(f"token {number + 1}: {fault}", number), num_undecided
    return compared(receipt, None, choice.output()), num_undecided


def _choice(model: CheckedModel, receipt: Receipt, tokenizer: Tokenizer, request: Request) -> Choice:
    grammar = None
    if request.params.structured_outputs is not None:
        from karat.text.grammar import GrammarCompiler

        grammar = GrammarCompiler(tokenizer, model.config.vocab_size).compile(request.params.structured_outputs)
    num_prompt = len(request.prompt_token_ids)
    check_params(request.params, model.config.vocab_size)
    max_tokens = resolve_max_tokens(request.params, num_prompt, model.config.max_position_embeddings)
    sequence = Sequence(0, list(request.prompt_token_ids), len(request.prompt_token_ids), 0)
    return Choice(request, receipt.choice, sequence, tokenizer, max_tokens, grammar)


def _num_turned(params: SamplingParams) -> int:
    """How many of the likeliest tokens may be taken out for being too likely: by typical-p and XTC."""
    return _MOST_TURNED if params.typical_p < 1 or params.xtc_probability > 0 else 0


def _may_be(chosen: Callable[[Array], int], row: Array, token_id: int, floor: float, *, num_turned: int = 0) -> bool:
    """Whether logits within `floor` of a row would choose this token.

    The draw lands in the intervals of tokens in order of ids, so the token's interval is farthest down if smaller ids
    lose and larger ones gain, and farthest up the other way round. Between the two it passes over every place.

    A token that typical-p or XTC takes out as too likely stays in where it is less likely. So where there are such
    steps, the same is tried with the likeliest 1, 2 … num_turned tokens moved the other way.
    """
    ids = np.arange(len(row))
    likeliest = np.argsort(-row, kind="stable")
    downs, ups = [], []
    for num in range(min(num_turned, len(row)) + 1):
        turned = np.full(len(row), floor)
        turned[likeliest[:num]] = -floor
        if chosen(row + np.where(ids == token_id, turned, -turned)) == token_id:
            return True
        downs.append(chosen(row + np.where(ids < token_id, -turned, turned)))
        ups.append(chosen(row + np.where(ids > token_id, -turned, turned)))
    return max(downs) >= token_id >= min(ups)


def _other_token(
    tokenizer: Tokenizer, number: int, prompt_len: int, ids: tuple[int, ...], here: int, row: Array, floor: float
) -> Difference:
    stated = ids[number]
    margin = abs(float(row[here]) - float(row[stated]))
    shown = {i: f"{i} {tokenizer.decode([i], skip_special_tokens=False)!r}" for i in (here, stated)}
    text = (
        f"output.token_ids: token {number + 1} of {len(ids)} is {shown[here]}, the receipt has {shown[stated]}; margin "
        f"of their logits {margin:.4g}, floor {floor:.2g}"
    )
    return Difference(text, number, prompt_len + number, stated, here, margin)

"""LLM.compare: where an answer goes on otherwise with other activations, beside models that are loaded with them.

Covers: karat.engine.receipts.comparing, karat.receipts.comparison.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from karat import LLM, AsyncLLM, SamplingParams
from karat.errors import OtherContractError, ReceiptError, RequestError
from karat.ops.native import unavailable_reason
from karat.receipts import Receipt
from karat.receipts.receipt import sealed
from tests.support.seed import SEED

if reason := unavailable_reason():
    pytest.skip(reason, allow_module_level=True)

MODEL: Any = {"quantize": "q4_0", "threads": 1, "max_model_len": 256}
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def loaded() -> Iterator[dict[str, LLM]]:
    """A model for each width, each loaded with it."""
    made = {name: LLM(activations=name, **MODEL) for name in ("int24", "int16", "int8")}
    yield made
    for llm in made.values():
        llm.close()


def receipt_of(llm: LLM, **params: Any) -> Receipt:
    (output,) = llm.generate(PROMPT, SamplingParams(**{"max_tokens": 40} | params), receipt=True)
    receipt = output.outputs[0].receipt
    assert receipt is not None
    return receipt


def rows(llm: LLM, receipt: Receipt, index: int) -> NDArray[np.floating]:
    """The logits of the answer's token `index`."""
    ids = (*receipt.prompt.token_ids, *receipt.output.token_ids[:index])
    row: NDArray[np.floating] = llm.logits([int(i) for i in ids])[-1]
    return row


@pytest.mark.parametrize("own", ["int16", "int8", "int24"])
def test_it_says_what_a_model_loaded_with_the_other_activations_does(loaded: dict[str, LLM], own: str) -> None:
    llm, draw = loaded[own], random.Random(f"{SEED} {own}")
    num_parted = 0
    for _ in range(4):
        seed = draw.getrandbits(40)
        receipt = receipt_of(llm, seed=seed, temperature=1.2, repetition_penalty=1.1)
        ids = [int(i) for i in receipt.output.token_ids]
        for other in sorted(set(loaded) - {own}):
            found = llm.compare(receipt, other)  # type: ignore[arg-type]
            assert (found.activations, found.other, found.num_tokens) == (own, other, len(ids))
            (beside,) = loaded[other].generate(PROMPT, _params(receipt))
            theirs = list(beside.outputs[0].token_ids)
            same = next((i for i, (a, b) in enumerate(zip(ids, theirs, strict=False)) if a != b), None)
            if same is None:
                assert found.parting is None and theirs == ids
                assert str(found).startswith(f"the same {len(ids)} tokens with {other} as with {own}, ")
                continue
            num_parted += 1
            at = found.parting
            assert at is not None
            assert (at.index, at.receipt_token, at.other_token) == (same, ids[same], theirs[same])
            assert at.position == len(receipt.prompt.token_ids) + same
            here, there = rows(llm, receipt, same), rows(loaded[other], receipt, same)
            assert at.margin == float(here[ids[same]]) - float(here[theirs[same]])
            assert at.other_margin == float(there[theirs[same]]) - float(there[ids[same]])
            assert f"part at token {same + 1} of {len(ids)}" in str(found)
    assert num_parted, "a test that saw no parting"


def _params(receipt: Receipt) -> SamplingParams:
    return replace(receipt.sampling.params(), seed=int(receipt.seed))


def test_any_receipt_of_the_weights_is_compared_and_nothing_is_left_behind(loaded: dict[str, LLM]) -> None:
    receipt = receipt_of(loaded["int8"], seed=5, temperature=1.2)
    here = loaded["int16"].compare(receipt, "int24")  # its own activations are loaded by neither
    there = loaded["int8"].compare(receipt, "int24")
    assert here.parting == there.parting and here.activations == "int8"
    engine = loaded["int16"].engine
    assert engine.stats().num_blocks_used == 0 and not engine.has_work
    assert loaded["int16"].comparable == ("int24", "int16", "int8")


def test_what_cannot_be_compared_is_said(loaded: dict[str, LLM]) -> None:
    llm = loaded["int16"]
    receipt = receipt_of(llm, seed=5, temperature=1.2)
    for activations in ("int16", "float64", "bits"):
        with pytest.raises(RequestError, match="expected one of int24, int8; the receipt has int16"):
            llm.compare(receipt, activations)  # type: ignore[arg-type]
    (output,) = llm.generate(PROMPT, SamplingParams(max_tokens=4), receipt="digests")
    digests = output.outputs[0].receipt
    assert digests is not None
    with pytest.raises(ReceiptError, match="only digests"):
        llm.compare(digests, "int8")
    with pytest.raises(ReceiptError, match="changed after it was written: seed"):
        llm.compare(msgspec.structs.replace(receipt, seed="6"), "int8")
    members = msgspec.to_builtins(receipt)
    for name in ("checksums", "sha256", "signature"):
        del members[name]
    ids = list(receipt.output.token_ids)
    wrong = members | {"output": members["output"] | {"token_ids": [*ids[:3], (int(ids[3]) + 1) % 4000, *ids[4:]]}}
    with pytest.raises(ReceiptError, match="not what this model answers with int16: verify it first"):
        llm.compare(sealed(wrong), "int8")
    other = members | {"fingerprint": members["fingerprint"] | {"weights": "0" * 64}}
    with pytest.raises(OtherContractError, match="another weights"):
        llm.compare(sealed(other), "int8")
    with LLM(max_model_len=64, threads=1) as plain:  # no weights in blocks
        assert plain.comparable == ()
        with pytest.raises(RequestError, match="cannot choose them"):
            plain.compare(receipt, "int8")


def test_an_event_loop_compares_beside_streams(loaded: dict[str, LLM]) -> None:
    receipt = receipt_of(loaded["int16"], seed=7, temperature=1.2)
    expected = loaded["int16"].compare(receipt, "int8")

    async def both() -> None:
        llm = await AsyncLLM.open(activations="int16", **MODEL)
        try:
            assert llm.comparable == loaded["int16"].comparable
            stream = asyncio.ensure_future(llm.generate(PROMPT, SamplingParams(max_tokens=100, seed=1)))
            found = await asyncio.gather(*(llm.compare(receipt, name) for name in ("int8", "int24", "int8")))
            assert [one.parting for one in found] == [
                expected.parting,
                loaded["int16"].compare(receipt, "int24").parting,
                expected.parting,
            ]
            left = asyncio.ensure_future(llm.compare(receipt, "int8"))
            await asyncio.sleep(0)
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
            undisturbed = loaded["int16"].generate(PROMPT, SamplingParams(max_tokens=100, seed=1))[0].outputs[0]
            streamed = await stream
            assert not isinstance(streamed, list)
            assert streamed.outputs[0].token_ids == undisturbed.token_ids
            assert (await llm.compare(receipt, "int8")).parting == expected.parting
            with pytest.raises(RequestError, match="the receipt has int16"):
                await llm.compare(receipt, "int16")
        finally:
            await llm.close()

    asyncio.run(both())

"""`karat verify --by reference`: the float64 executor judges receipts of the native one.

Covers: karat.check.session.receipt, karat.check.record.layer_logits.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from karat import LLM, SamplingParams
from karat.check.model.checked import CheckedModel, open_model
from karat.check.record.layer_logits import layer_logits
from karat.check.session import receipt as receipt_module
from karat.check.session.receipt import verify_by_reference
from karat.engine.choosing.sampler import choose
from karat.errors import OtherContractError, ReceiptError
from karat.ops.registry import create
from karat.receipts import Receipt
from karat.receipts.receipt import sealed
from tests.engine.tiny import PROMPTS, write_model

PARAMS = [
    SamplingParams(temperature=0, max_tokens=25),
    SamplingParams(seed=1, max_tokens=25, temperature=1.0, top_p=0.9, n=3),
    SamplingParams(seed=2, max_tokens=25, temperature=1.5, top_k=30, repetition_penalty=1.2, frequency_penalty=0.3),
    SamplingParams(seed=3, max_tokens=30, structured_outputs={"regex": "[a-f]{3,20}"}),  # type: ignore[arg-type]
    SamplingParams(seed=4, max_tokens=20, stop=("e",), min_tokens=3),
    SamplingParams(
        seed=5,
        max_tokens=25,
        temperature=0.7,
        top_n_sigma=2.5,
        typical_p=0.9,
        xtc_probability=0.5,
        xtc_threshold=0.02,
        dry_multiplier=3.0,
        dry_allowed_length=0,
        presence_penalty=1.0,
        repeat_last_n=9,
        no_repeat_ngram_size=2,
        bad_words=("e", "th"),
        bad_words_ids=((70,), (80, 81)),
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), eos_token="<|im_end|>")


@pytest.fixture(scope="module")
def model(folder: Path) -> CheckedModel:
    return open_model(str(folder))


@pytest.fixture(scope="module")
def receipts(folder: Path) -> Iterator[list[Receipt]]:
    with LLM(folder) as llm:
        yield [c.receipt for p in PARAMS for o in llm.generate(PROMPTS[:2], p, receipt=True) for c in o.outputs]


def forged(receipt: Receipt, **parts: Any) -> Receipt:
    body = msgspec.to_builtins(receipt)
    for name, values in parts.items():
        body[name] = body[name] | values if isinstance(values, dict) else values
    return sealed({name: value for name, value in body.items() if name not in ("checksums", "sha256", "signature")})


def test_honest_receipts_never_differ(model: CheckedModel, receipts: list[Receipt]) -> None:
    kinds = [verify_by_reference(model, receipt).kind for receipt in receipts]
    assert len(kinds) == 16 and set(kinds) <= {"agrees", "undecided"} and kinds.count("agrees") >= 14


@pytest.mark.parametrize("name", ["logit_bias", "bad_words_ids", "stop_token_ids", "allowed_token_ids"])
def test_token_ids_beyond_the_vocabulary_are_a_finding(model: CheckedModel, receipts: list[Receipt], name: str) -> None:
    """A forger's receipt is judged: it does not end the program."""
    value = {"logit_bias": {"999999": 1.0}, "bad_words_ids": [[5, 999999]]}.get(name, [999999])
    verdict = verify_by_reference(model, forged(receipts[1], sampling={name: value}))
    assert str(verdict.finding).startswith(f"sampling: {name}: 999999 is no token id; expected")


def test_where_rounding_decides_what_is_too_likely_nothing_is_accused() -> None:
    """Logits within the floor of each other on both sides of a threshold: whichever token one draws, the other's row
    may have drawn it."""
    rng = np.random.default_rng(5)
    floor, differing, plain = 1e-3, 0, 0
    for number in range(400):
        params = SamplingParams(
            xtc_probability=1.0,
            xtc_threshold=float(rng.choice([0.05, 0.1, 0.3])),
            typical_p=float(rng.choice([0.7, 1])),
        )
        scores = rng.standard_normal(12) * 2
        p = np.exp(scores) / np.exp(scores).sum()
        edge = int(np.argmin(np.abs(p - params.xtc_threshold)))
        others = np.exp(np.delete(scores, edge)).sum()
        scores[edge] = np.log(params.xtc_threshold / (1 - params.xtc_threshold) * others)

        def chosen(row: np.ndarray, params: SamplingParams = params, number: int = number) -> int:
            return choose(row, params, token_ids=(0,), prompt_len=1, seed=number, choice=0)

        theirs = chosen(scores + rng.uniform(-floor, floor, 12))
        if chosen(scores) != theirs:
            differing += 1
            assert receipt_module._may_be(chosen, scores, theirs, floor, num_turned=16)
            plain += receipt_module._may_be(chosen, scores, theirs, floor)
    assert plain < differing > 20, "some need it"


def test_its_logits_are_those_of_a_whole_run(model: CheckedModel) -> None:
    ids = list(range(40, 100))
    with LLM(model.checkpoint, executor="reference", dtype="float64", kv_dtype="float64") as llm:
        whole = llm.logits(ids)
    ops = create("reference", "float64")
    rows = np.concatenate(list(layer_logits(model.config, model.stored, ops, ids, 5, kv_dtype="float64")))
    assert rows.shape == whole[5:].shape and np.abs(rows - whole[5:]).max() < 1e-12 * np.abs(whole).max()


@pytest.mark.parametrize("number", range(16))
def test_a_token_that_was_not_drawn_differs(model: CheckedModel, receipts: list[Receipt], number: int) -> None:
    receipt = receipts[number]
    ids = list(receipt.output.token_ids)
    place = len(ids) // 2
    for token_id in ((ids[place] + 100) % 256, (ids[place] + 170) % 256):  # far from the draw in the order of ids
        other = forged(receipt, output={"token_ids": [*ids[:place], token_id, *ids[place + 1 :]]})
        verdict = verify_by_reference(model, other)
        assert verdict.kind == "differs" and verdict.finding is not None
        assert verdict.finding.index == place, verdict


def test_every_other_forgery_differs(model: CheckedModel, receipts: list[Receipt]) -> None:
    receipt = receipts[2]
    ids = receipt.output.token_ids
    for parts in (
        {"seed": "77"},
        {"choice": 33},
        {"output": {"text_sha256": "0" * 64}},
        {"output": {"finish_reason": "stop"}},
        {"output": {"token_ids": ids[:-1]}},
        {"output": {"token_ids": [*ids, 65]}},
        {"end_token_ids": [3]},
        {"sampling": {"min_tokens": 31}},
    ):
        assert verify_by_reference(model, forged(receipt, **parts)).kind == "differs", parts  # type: ignore[arg-type]
    changed = msgspec.structs.replace(receipt, seed="77")
    assert str(verify_by_reference(model, changed)).endswith("changed after it was written: seed")


def test_another_model_is_refused_and_another_contract_is_not(model: CheckedModel, receipts: list[Receipt]) -> None:
    older = forged(receipts[0], fingerprint={"numeric_contract": 1, "executor": "abacus"})
    assert verify_by_reference(model, older).kind == "agrees"
    for part in ("weights", "configuration", "tokenizer", "chat_template"):
        with pytest.raises(OtherContractError, match=f"another {part}"):
            verify_by_reference(model, forged(receipts[0], fingerprint={part: "0" * 64}))
    with pytest.raises(OtherContractError, match="another sampler"):
        verify_by_reference(model, forged(receipts[0], fingerprint={"sampler": 0}))
    with pytest.raises(OtherContractError, match="another weights"):
        verify_by_reference(model, receipts[0], quantize="q8_0")


def test_a_receipt_of_a_quantised_model_agrees(model: CheckedModel, folder: Path) -> None:
    with LLM(folder, quantize="q8_0") as llm:
        (output,) = llm.generate("Once", SamplingParams(seed=1, max_tokens=20), receipt=True)
    assert verify_by_reference(model, output.outputs[0].receipt, quantize="q8_0").kind in ("agrees", "undecided")


def test_a_tie_is_undecided(tmp_path: Path) -> None:
    """Two tokens with the same row of the head: which of them is greedy's choice is decided by no number."""
    from safetensors.numpy import load_file, save_file

    folder = write_model(tmp_path)
    weights = load_file(folder / "model.safetensors")
    with LLM(folder) as llm:
        (output,) = llm.generate("Once", SamplingParams(temperature=0, max_tokens=4), receipt=True)
    first = output.outputs[0].token_ids[0]
    twin = first + 1 if first + 1 < 256 else first - 1
    weights["lm_head.weight"][twin] = weights["lm_head.weight"][first]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with LLM(folder) as llm:
        (output,) = llm.generate("Once", SamplingParams(temperature=0, max_tokens=1), receipt=True)
    receipt = output.outputs[0].receipt
    (made,) = receipt.output.token_ids
    text = llm.tokenizer.decode([{first: twin, twin: first}[made]])
    from karat.receipts.making import text_digest

    other = {"token_ids": [{first: twin, twin: first}[made]], "text_sha256": text_digest(text)}
    verdict = verify_by_reference(open_model(str(folder)), forged(receipt, output=other))
    assert str(verdict).startswith("undecided at 1 positions, 1 tokens, ") and not verdict.is_confirmed


def test_digests_are_not_enough(model: CheckedModel, folder: Path) -> None:
    with LLM(folder) as llm:
        (output,) = llm.generate("Once", SamplingParams(seed=1, max_tokens=3), receipt="digests")
    with pytest.raises(ReceiptError, match="needs the tokens"):
        verify_by_reference(model, output.outputs[0].receipt)
    assert json.loads(output.outputs[0].receipt.to_json())["prompt"]["token_ids"]

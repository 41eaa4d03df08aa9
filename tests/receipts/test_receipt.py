"""Receipts are made, verified, and refuted, whichever of their members is changed.

Covers: karat.receipts.receipt, karat.receipts.making, karat.receipts.verdict,
karat.engine.receipts.verifying.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat import LLM, SamplingParams
from karat.errors import ReceiptError
from karat.ops.native import supported_isas
from karat.outputs import CompletionOutput
from karat.receipts import Receipt, read_receipt, read_receipts
from karat.receipts import receipt as receipt_module
from karat.receipts.making import receipt_of
from karat.receipts.receipt import schema, sealed
from karat.request_record import Request
from tests.engine.tiny import CHATML, IM_END, PROMPTS, SAMPLED, write_model
from tests.support.drawn import examples

ROOT = Path(__file__).resolve().parents[2]
SHAPE = {"hidden_size": 72, "num_attention_heads": 12, "num_key_value_heads": 6, "intermediate_size": 64}
ALL = SamplingParams(
    n=2,
    temperature=0.9,
    top_k=40,
    top_p=0.95,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.2,
    typical_p=0.99,
    top_n_sigma=9.5,
    xtc_probability=0.25,
    xtc_threshold=0.125,
    repeat_last_n=20,
    dry_multiplier=0.5,
    dry_base=1.5,
    dry_allowed_length=1,
    dry_penalty_last_n=50,
    dry_sequence_breakers=("\n", "never"),
    no_repeat_ngram_size=9,
    bad_words=("never this", "nor that"),
    bad_words_ids=((7, 8, 9), (11, 12)),
    logit_bias={5: 2.5},
    seed=2**62 + 1,
    max_tokens=30,
    min_tokens=3,
    stop=("never this",),
    stop_token_ids=(3,),
    logprobs=2,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), **SHAPE, eos_token="<|im_end|>")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder) as made:
        yield made


@pytest.fixture(scope="module")
def receipt(llm: LLM) -> Receipt:
    (output,) = llm.generate(PROMPTS[0], ALL, receipt=True)
    found: Receipt = output.outputs[1].receipt
    return found


def members(receipt: Receipt) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(receipt.to_json())
    return found


def paths() -> list[str]:
    parts = {name: info.type for name, info in _fields(Receipt)}
    return [
        path
        for name, kind in parts.items()
        for path in ([f"{name}.{key}" for key in _names(kind)] or [name])
        if name not in ("checksums", "signature")
    ]


def _fields(kind: Any) -> list[tuple[str, Any]]:
    return [(field.name, field) for field in msgspec.structs.fields(kind)]


def _names(kind: Any) -> list[str]:
    return list(getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", ()))


OF_NONE = {
    "sampling.allowed_token_ids": [65],
    "sampling.structured_outputs": {"regex": "a*"},
    "versions.llguidance": "1.0",
}


def changed(value: object, path: str) -> object:
    """Another value of the same type that a receipt may have there."""
    special = {
        "output.finish_reason": {"stop": "length", "length": "stop"},
        "sampling.min_tokens": {3: 31},
        "sampling.max_tokens": {30: 29},
    }
    match value:
        case str() if path in special:
            return special[path][value]  # type: ignore[index]
        case int() if path in special:
            return special[path][value]  # type: ignore[index]
        case bool():
            return not value
        case str() if value.isdigit() and path != "versions.karat":
            return str(int(value) ^ 1)
        case str() if len(value) == 64:
            return f"{int(value, 16) ^ 1:064x}"
        case str():
            return value + "x"
        case int():
            return value + 1
        case float():
            return value / 2
        case [list(), *_]:
            return [*value[:-1], [1]]
        case list():
            return [*value[:-1], (value[-1] + 1) if value and isinstance(value[-1], int) else "x"]
        case dict():
            return {"6": 1.5}
        case None:
            return OF_NONE.get(path, 3)
    raise AssertionError(path)


def mutated(receipt: Receipt, path: str) -> dict[str, Any]:
    whole = members(receipt)
    *outer, name = path.split(".")
    place = whole[outer[0]] if outer else whole
    place[name] = changed(place[name], path)
    return whole


@pytest.mark.parametrize("path", [path for path in paths() if path != "format"])
def test_a_changed_member_is_found_and_named(receipt: Receipt, llm: LLM, path: str) -> None:
    verdict = llm.verify(read_receipt(json.dumps(mutated(receipt, path)).encode()))
    assert verdict.kind == "different" and verdict.finding is not None
    assert verdict.finding.text == f"the receipt was changed after it was written: {path}"


FORGED = {
    "prompt.token_ids": "output.token_ids: token ",
    "end_token_ids": "end_token_ids",
    "sampling.max_tokens": "output.",
    "sampling.logit_bias": "output.token_ids: token ",
    "seed": "output.token_ids: token ",
    "choice": "output.token_ids: token ",
    "output.token_ids": "output.token_ids: token ",
    "output.finish_reason": "output.finish_reason is ",
    "output.stop_reason": "output.stop_reason is ",
    "output.text_sha256": "output.text_sha256 is ",
    "sampling.min_tokens": "sampling: min_tokens=31",
    "sampling.structured_outputs": "output.token_ids: token ",
}


@pytest.mark.parametrize("path", FORGED)
def test_a_forger_who_repairs_the_digests_is_refuted_by_the_replay(receipt: Receipt, llm: LLM, path: str) -> None:
    whole = mutated(receipt, path)
    del whole["checksums"], whole["sha256"], whole["signature"]
    verdict = llm.verify(sealed(whole))
    assert str(verdict.finding).startswith(FORGED[path]), verdict


@pytest.mark.parametrize("part", [path for path in paths() if path.startswith("fingerprint.")])
def test_another_fingerprint_is_refused_by_name(receipt: Receipt, llm: LLM, part: str) -> None:
    whole = mutated(receipt, part)
    del whole["checksums"], whole["sha256"], whole["signature"]
    with pytest.raises(ReceiptError, match=rf"the receipt is of another {part.partition('.')[2]} \(.*no verdict"):
        llm.verify(sealed(whole))


def test_a_different_token_is_shown_with_the_margin(receipt: Receipt, llm: LLM) -> None:
    whole = mutated(receipt, "output.token_ids")
    ids, count = whole["output"]["token_ids"], len(receipt.output.token_ids)
    del whole["checksums"], whole["sha256"], whole["signature"]
    finding = llm.verify(sealed(whole)).finding
    assert finding is not None and finding.text.startswith(
        f"output.token_ids: token {count} of {count} is {ids[-1] - 1} "
    )
    assert f"the receipt has {ids[-1]} " in finding.text and "margin of their logits " in finding.text


def test_receipts_of_all_ways_to_compute_verify_each_other(folder: Path, llm: LLM) -> None:
    """Alone, under load, after prefix hits, on two ranks, with every instruction set; greedy, drawn and in chats."""
    long = "a story about a fox and a lantern, in a hundred words"
    params = [replace(SAMPLED, seed=number) for number in range(3)] + [ALL]

    def made(model: LLM) -> list[Receipt]:
        prompts = [*PROMPTS[:3], long]
        loaded = model.generate(prompts, params, receipt=True)
        again = model.generate(prompts, params, receipt=True)  # the prompts are in the cache
        assert any(output.num_cached_tokens for output in again)
        assert [o.outputs for o in loaded] == [o.outputs for o in again]
        return [choice.receipt for output in [*loaded, *again] for choice in output.outputs]

    found = [made(llm)]
    with LLM(folder, tensor_parallel_size=2, threads=1) as ranks:
        found.append(made(ranks))
        assert all(ranks.verify(each).is_confirmed for each in found[0])
    for isa in supported_isas():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KARAT_ISA", isa)
            with LLM(folder) as other:
                found.append(made(other))
                assert all(other.verify(each).is_confirmed for each in [*found[0], *found[1]])
    assert all(each == found[0] for each in found)
    assert all(llm.verify(each).is_confirmed for each in found[0])


@pytest.mark.parametrize("chunk", [16, 512])
def test_it_is_replayed_in_chunks_and_says_so_in_one_line(folder: Path, chunk: int) -> None:
    with LLM(folder, max_num_batched_tokens=chunk) as llm:
        (output,) = llm.chat([{"role": "user", "content": "Tell me"}], SAMPLED, receipt=True)
        receipt = output.outputs[0].receipt
        assert IM_END in receipt.end_token_ids and receipt.prompt.text_sha256
        assert str(llm.verify(receipt)).startswith("identical, 20 tokens, ")


_LATER_FIELDS = {name for name in SamplingParams.__dataclass_fields__ if name.startswith(("dry_", "xtc_", "bad_"))} | {
    "top_n_sigma",
    "typical_p",
    "repeat_last_n",
    "no_repeat_ngram_size",
}
LATER = {
    "top_n_sigma": {"top_n_sigma": 1.5},
    "typical_p": {"typical_p": 0.5},
    "xtc_probability": {"xtc_probability": 0.5, "xtc_threshold": 0.01},
    "repeat_last_n": {"repeat_last_n": 0},
    "dry_multiplier": {"dry_multiplier": 3.0, "dry_allowed_length": 0},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
    "bad_words": {"bad_words": list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")},
    "bad_words_ids": {"bad_words_ids": [[65], [66]]},
}


def test_samplers_that_are_not_used_leave_no_trace(llm: LLM) -> None:
    """Receipts that were made before there were these, and those of requests without them, are of one form."""
    neutral = {"dry_base": 3.0, "xtc_threshold": 0.4, "top_n_sigma": -1, "bad_words": None}
    given = {"temperature": 0.7, "seed": 5, "max_tokens": 8, "presence_penalty": 0.5}
    (output,) = llm.generate(PROMPTS[0], SamplingParams(**given, **neutral), receipt=True)  # type: ignore[arg-type]
    written = members(output.outputs[0].receipt)
    assert not written["sampling"].keys() & _LATER_FIELDS
    (again,) = llm.generate(PROMPTS[0], SamplingParams(**given), receipt=True)  # type: ignore[arg-type]
    assert members(again.outputs[0].receipt) == written


@pytest.mark.parametrize("name", LATER)
def test_a_sampler_that_is_used_is_in_the_receipt_and_decides(llm: LLM, name: str) -> None:
    given: dict[str, Any] = {"temperature": 0.7, "seed": 5, "max_tokens": 30, "presence_penalty": 2.0}
    (output,) = llm.generate(PROMPTS[0], SamplingParams(**given, **LATER[name]), receipt=True)  # type: ignore[arg-type]
    receipt: Receipt = output.outputs[0].receipt
    assert receipt.sampling.params() == SamplingParams(
        **given | {"max_tokens": 30, "seed": None},
        **LATER[name],  # type: ignore[arg-type]
    )
    assert llm.verify(receipt).is_confirmed
    whole = members(receipt)
    del whole["checksums"], whole["sha256"], whole["signature"], whole["sampling"][name]
    assert str(llm.verify(sealed(whole)).finding).startswith("output.token_ids: token "), "without it: other tokens"


def test_an_answer_that_ended_early_or_goes_on_is_refuted(receipt: Receipt, llm: LLM) -> None:
    whole = members(receipt)
    del whole["checksums"], whole["sha256"], whole["signature"]
    ids = whole["output"]["token_ids"]
    whole["output"]["token_ids"] = ids[:-1]
    assert "output.finish_reason is None" in str(llm.verify(sealed(whole)))
    whole["output"]["token_ids"] = [*ids, 65]
    assert f"the answer ends after {len(ids)} tokens" in str(llm.verify(sealed(whole)))


def test_what_is_written_is_what_the_schema_says(receipt: Receipt) -> None:
    path = ROOT / "docs" / "receipt.schema.json"
    assert json.loads(path.read_text(encoding="utf-8")) == schema()
    assert read_receipt(receipt.to_json()) == receipt
    assert receipt.to_json() == receipt_module.canonical(members(receipt))


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b"\xff", b"nonsense", b"[" * 100_000, b'{"format": "karat-receipt/2"}'],
)
def test_what_is_no_receipt_is_refused(text: bytes, tmp_path: Path) -> None:
    with pytest.raises(ReceiptError, match="expected"):
        read_receipt(text)
    (tmp_path / "file").write_bytes(text)
    with pytest.raises(ReceiptError, match="file"):
        read_receipts(tmp_path / "file")
    with pytest.raises(ReceiptError, match="cannot be read"):
        read_receipts(tmp_path / "absent")


@given(st.data())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_has_receipts_in_any_form_of_json(receipt: Receipt, tmp_path: Path, data: st.DataObject) -> None:
    one = members(receipt)
    wanted = 0

    def value() -> str:
        nonlocal wanted
        num, listed = data.draw(st.integers(1, 3)), data.draw(st.booleans())
        num = num if listed else 1
        wanted += num
        return json.dumps([one] * num if listed else one, indent=data.draw(st.sampled_from([None, 0, 2, "\t"])))

    values = [value() for _ in range(data.draw(st.integers(1, 4)))]
    space = data.draw(st.sampled_from(["\n", "\r\n", "\n\n", " ", "", "\n\t "]))
    text = space + space.join(values) + space
    (tmp_path / "file").write_bytes(text.encode())
    assert read_receipts(tmp_path / "file") == [receipt] * wanted
    broken = data.draw(st.sampled_from(['{"a": 1}', "[1]", "[NaN]", "]", "nul", "{", "[" * 5000]))
    (tmp_path / "file").write_bytes((text + broken).encode())
    with pytest.raises(ReceiptError, match=f"file: line {(text + broken).count(chr(10)) + 1}: "):
        read_receipts(tmp_path / "file")


@pytest.mark.parametrize("place", [(), ("sampling",), ("fingerprint",), ("output",)])
def test_an_unknown_member_is_refused(receipt: Receipt, place: tuple[str, ...]) -> None:
    whole = members(receipt)
    inner = whole
    for name in place:
        inner = inner[name]
    inner["more"] = 1
    with pytest.raises(ReceiptError, match="receipt"):
        read_receipt(json.dumps(whole).encode())


def test_too_long_receipts_are_refused(receipt: Receipt, monkeypatch: pytest.MonkeyPatch) -> None:
    text = receipt.to_json()
    monkeypatch.setattr(receipt_module, "MAX_BYTES", len(text) - 1)
    with pytest.raises(ReceiptError, match="at most"):
        receipt.to_json()
    with pytest.raises(ReceiptError, match="at most"):
        read_receipt(text)


def test_an_answer_that_failed_has_no_receipt(llm: LLM) -> None:
    choice = CompletionOutput(0, "", (1,), "error", error="NaN")
    with pytest.raises(ReceiptError, match="ended with 'error'"):
        receipt_of(llm.fingerprint(), Request("0", (1, 2), SamplingParams(), 3), choice, max_tokens=3)


def test_another_model_is_refused_by_its_parts(receipt: Receipt, tmp_path: Path) -> None:
    with (
        LLM(write_model(tmp_path, **SHAPE, seed=1, chat_template=CHATML + "x", eos_token="<|im_end|>")) as other,
        pytest.raises(ReceiptError, match=r"of another weights \(.*, chat_template \("),
    ):
        other.verify(receipt)


@pytest.mark.long
def test_reading_receipts_leaves_an_interpreter_that_ends_well(receipt: Receipt, tmp_path: Path) -> None:
    """msgspec's types took part in a crash at the very end in one of five runs."""
    path = tmp_path / "receipt.json"
    path.write_bytes(receipt.to_json())
    code = "import sys, pathlib; from karat.receipts import read_receipts; read_receipts(pathlib.Path(sys.argv[1]))"
    for _ in range(20):
        assert subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT / "src", check=False).returncode == 0

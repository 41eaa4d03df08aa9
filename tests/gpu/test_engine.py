"""An engine on the emulated GPU answers as the native one does, and its receipts verify there."""

import json
from pathlib import Path

import numpy as np
import pytest

from karat import LLM, SamplingParams
from karat.check.session.same_bits import invariance, invariance_of
from karat.errors import CapacityError
from karat.models.opening import open_model
from karat.ops.device import missing
from karat.ops.logits import DeviceLogits
from karat.ops.native import unavailable_reason
from karat.text.placeholder import placeholder_tokenizer
from tests.engine.tiny import write_model
from tests.support import golden
from tests.support.seed import SEED

if reason := unavailable_reason() or missing("cuda-emulated"):
    pytest.skip(f"no emulated GPU: {reason}", allow_module_level=True)

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden_logits.json").read_text(encoding="utf-8"))
PROMPTS = ["Once upon a time there was a fox", "Yes."]
PARAMS = [SamplingParams(max_tokens=5, ignore_eos=True, seed=seed, logprobs=2) for seed in range(2)]


def test_answers_and_receipts(tmp_path: Path) -> None:
    folder = write_model(tmp_path, num_hidden_layers=2)
    with LLM(folder, device="cuda-emulated") as emulated, LLM(folder, executor="native", threads=1) as native:
        assert emulated.executor == emulated.device == "cuda-emulated" and native.device == "cpu"
        got, want = (llm.generate(PROMPTS, PARAMS, receipt=True) for llm in (emulated, native))
        for one, other in zip(got, want, strict=True):
            assert one.outputs[0].token_ids == other.outputs[0].token_ids
            assert one.outputs[0].logprobs == other.outputs[0].logprobs
            receipt = one.outputs[0].receipt
            assert receipt is not None and receipt.fingerprint.executor == "native"
            assert receipt == other.outputs[0].receipt
            assert native.verify(receipt).kind == "identical"


def test_receipts_under_load_and_after_a_prefix_hit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that shared steps, blocks of their prompts and graphs of several sizes verify on the CPU, one by one.

    Greedy ones and those of the 20 most probable tokens leave their logits on the device.
    """
    monkeypatch.setattr(DeviceLogits, "_array", property(lambda _: pytest.fail("logits were read")))
    folder = write_model(tmp_path, num_hidden_layers=2)
    beginning = "A fox and a lantern went through the dark wood together, "
    prompts = [beginning + end for end in ("and sang.", "and slept.", "slowly", "")]
    params = [
        SamplingParams(max_tokens=4 + 2 * i, ignore_eos=True, seed=i, temperature=i % 2, top_k=20) for i in range(4)
    ]
    with LLM(folder, device="cuda-emulated") as emulated, LLM(folder, executor="native", threads=1) as native:
        emulated.generate(beginning, params[:1])
        answers = emulated.generate(prompts, params, receipt=True)
        assert all(answer.num_cached_tokens for answer in answers)
        for answer in answers:
            receipt = answer.outputs[0].receipt
            assert receipt is not None and native.verify(receipt).kind == "identical"


def test_same_bits_on_the_cpu_and_on_both(tmp_path: Path) -> None:
    folder = write_model(tmp_path, num_hidden_layers=2)
    rows = list(invariance_of(open_model(folder), num_tokens=9, options={"device": "cuda-emulated"}))
    assert [row.setting.name for row in rows[-2:]] == ["on the CPU", "1 of 2 layers on the CPU"]
    assert all(row.is_right for row in rows)


def test_memory_is_planned_from_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has free, less 512 MB; with layers on the CPU, the memory there too."""
    folder = write_model(tmp_path, num_hidden_layers=2)
    monkeypatch.setattr("karat._emulated.Device.free_bytes", property(lambda _: 512 * 1024**2 + 100 * 1024))
    with pytest.raises(CapacityError, match=r"^the weights take 129\.1 KiB of memory, and 100\.0 KiB are available; "):
        LLM(folder, device="cuda-emulated")
    LLM(folder, device="cuda-emulated", host_layers=1).close()


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("family", "stored"), [*golden.cases()])
def test_every_family_and_type_has_the_golden_digest(family: str, stored: str) -> None:
    """That of the native executor when its numerics were last defined; with a layer on the CPU, too."""
    for host_layers in (0, 1):
        options = {"device": "cuda-emulated", "host_layers": host_layers}
        assert golden.digest_of(family, stored, **options) == GOLDEN[f"{family} {stored}"], f"{host_layers} on the CPU"


@pytest.mark.drawn(2)
@pytest.mark.parametrize("family", golden.FAMILIES)
def test_no_setting_changes_a_bit_in_any_family(family: str) -> None:
    """Chunks, of one token too, which are recorded steps; batches, found prefixes, preemption, op by op."""
    rng = np.random.default_rng(int(SEED))
    texts = [rng.integers(0, 300, n).tolist() for n in (11, 4, 1)]
    tokenizer = placeholder_tokenizer(300)
    native = invariance(golden.model_of(family, "Q4_0", threads=1), tokenizer, texts, kv_dtype="float16")
    want = next(native).digest
    device = golden.model_of(family, "Q4_0", device="cuda-emulated")
    for row in invariance(device, tokenizer, texts, kv_dtype="float16"):
        assert row.digest == want and row.is_right, row.setting.name

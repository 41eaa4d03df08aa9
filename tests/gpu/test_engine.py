"""An engine on the emulated GPU answers as the native one does, and its receipts verify there."""

from pathlib import Path

import pytest

from karat import LLM, SamplingParams
from karat.ops import device
from karat.ops.native import unavailable_reason
from tests.engine.tiny import write_model

if reason := unavailable_reason() or device.MISSING:
    pytest.skip(f"no emulated GPU: {reason}", allow_module_level=True)

PROMPTS = ["Once upon a time there was a fox", "Yes."]
PARAMS = [SamplingParams(max_tokens=5, ignore_eos=True, seed=seed, logprobs=2) for seed in range(2)]


def test_answers_and_receipts(tmp_path: Path) -> None:
    folder = write_model(tmp_path, num_hidden_layers=2)
    with LLM(folder, executor="cuda-emulated") as emulated, LLM(folder, executor="native", threads=1) as native:
        assert emulated.executor == "cuda-emulated"
        got, want = (llm.generate(PROMPTS, PARAMS, receipt=True) for llm in (emulated, native))
        for one, other in zip(got, want, strict=True):
            assert one.outputs[0].token_ids == other.outputs[0].token_ids
            assert one.outputs[0].logprobs == other.outputs[0].logprobs
            receipt = one.outputs[0].receipt
            assert receipt is not None and receipt.fingerprint.executor == "native"
            assert receipt == other.outputs[0].receipt
            assert native.verify(receipt).kind == "identical"

"""Writes the receipts of tests/data/receipts: of the embedded model, and of a small model in a block format.

Use: python -m tools.golden_receipts

They are made anew when a numeric contract changes what they are of, and then only: a receipt that is refuted without
that is a change of bits that nobody meant.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from karat import LLM, SamplingParams
from tests.engine.tiny import write_model

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "receipts"
SHAPE = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
PARAMS = (
    SamplingParams(temperature=0, max_tokens=48),
    SamplingParams(temperature=1.1, top_p=0.95, seed=7, max_tokens=48, repetition_penalty=1.1, n=2),
    SamplingParams(
        temperature=1.3, top_k=50, min_p=0.01, seed=8, max_tokens=48, structured_outputs={"regex": "[a-z ]{9,60}"}
    ),  # type: ignore[arg-type]
)
NAMES = ("bf16", "q4_0")


def opened(name: str, folder: Path) -> LLM:
    """The model of the receipts of this name. `folder` is empty, and stays as long as the model is used."""
    if name == "bf16":
        return LLM()
    model = write_model(folder, **SHAPE, eos_token="<|im_end|>")
    return LLM(model, quantize="q4_0")


def made(llm: LLM) -> Iterator[bytes]:
    """The receipts, each as canonical JSON."""
    for params in PARAMS:
        outputs = llm.generate("Once upon a time", params, receipt=True)
        outputs += llm.chat([{"role": "user", "content": "Tell me a story about a fox."}], params, receipt=True)
        for output in outputs:
            for choice in output.outputs:
                yield choice.receipt.to_json()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in NAMES:
        with TemporaryDirectory() as folder, opened(name, Path(folder)) as llm:
            (FOLDER / f"{name}.jsonl").write_bytes(b"\n".join(made(llm)) + b"\n")

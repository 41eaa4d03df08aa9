"""The trace of llama.cpp in tests/data: `python -m tools.zoo.llamacpp tests/data/llama_cpp_tiny.trace` made it.

The model is "tiny" of `karat.bench.shape_configs` with random Q8_0 weights (seed 0), so the trace needs no other file.
"""

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from karat.bench.peers import PeerModel
from karat.bench.peers.gguf_file import write_gguf
from karat.bench.shapes import RandomModel, random_model
from karat.check.model.weights import digest
from karat.check.record.executors import Steps
from karat.check.record.llamacpp import record_llamacpp
from karat.check.trace.format import Trace
from karat.check.trace.writing import write_trace
from karat.checkpoint.weights import Weight
from karat.config import ModelConfig
from karat.models.registry import find_weights, read_config

STEPS = Steps((0, 17, 300, 511, 4, 4, 80), (0, 5), 1)


def tiny() -> tuple[RandomModel, ModelConfig, dict[str, Weight]]:
    """The model whose trace it is."""
    model = random_model("tiny", stored="q8_0")
    config = read_config(model.checkpoint.config)
    return model, config, find_weights(config, model.checkpoint)


def main(out: Path) -> None:
    model, config, stored = tiny()
    weights = {weight.name: weight for weight in stored.values()}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        write_gguf(
            path,
            PeerModel(raw_config=model.checkpoint.config, config=config, weights=weights, quantize=None, num_threads=1),
        )
        made = record_llamacpp(path, stored, STEPS)
    # Logits of the last tokens: the rest would be half of the file.
    arrays = {name: np.asarray(array) for name, array in made.arrays.items()}
    rows = tuple(range(STEPS.total - 3, STEPS.total))
    arrays["lm_head"] = arrays["lm_head"][-3:]
    arrays["model.norm"] = arrays["model.norm"][-3:]
    info = replace(made.info, digest=digest(stored), rows={"lm_head": rows, "model.norm": rows})
    write_trace(out, Trace(info, arrays))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""What a cold start is measured with measures a process."""

from pathlib import Path

import pytest

from benchmarks import cold_start
from karat.bench.shapes import random_model


@pytest.mark.slow
def test_a_process_is_measured_from_start_to_end() -> None:
    facts = cold_start.measure(["run", "-p", "Once", "--max-tokens", "1", "-q"], runs=2)
    assert facts["runs"] == 2
    assert 0 < facts["seconds"]["min"] <= facts["seconds"]["median"] <= facts["seconds"]["max"]
    assert facts["peak_rss_bytes"]["min"] > 20 << 20  # an interpreter with NumPy and a model
    with pytest.raises(SystemExit, match="exit code 2"):
        cold_start.measure(["run", "--no-such-option"], runs=1)


def test_a_file_of_a_shape(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    stored_bytes = cold_start.write_shape(tmp_path / "model.gguf", "tiny", "q4_0")
    assert stored_bytes == sum(
        weight.num_bytes for weight in random_model("tiny", stored="q4_0").checkpoint.weights.values()
    )
    tensors = gguf.GGUFReader(tmp_path / "model.gguf").tensors
    assert sum(tensor.n_bytes for tensor in tensors) == stored_bytes

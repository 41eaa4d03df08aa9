"""Comparing two quantised files of one model."""

from pathlib import Path

import gguf
import numpy as np


def compare_blocks(ours: Path, theirs: Path, exact: Path) -> int:
    """Asserts the same tensors of the same types and bytes; how many have the same bytes.

    Of K formats, whose scales are searched for, the blocks may differ where the squared error, over all tensors of a
    type and against the values in `exact`, is at most 1.02 times theirs.
    """
    found, expected = ({t.name: t for t in gguf.GGUFReader(path).tensors} for path in (ours, theirs))
    values = {t.name: t.data for t in gguf.GGUFReader(exact).tensors}
    assert {n: t.tensor_type for n, t in found.items()} == {n: t.tensor_type for n, t in expected.items()}
    assert {n: t.shape.tolist() for n, t in found.items()} == {n: t.shape.tolist() for n, t in expected.items()}
    num_same = 0
    errors: dict[str, list[float]] = {}
    for name, tensor in expected.items():
        kind = tensor.tensor_type.name
        same = found[name].data.tobytes() == tensor.data.tobytes()
        num_same += same
        if not kind.endswith("_K"):
            assert same, f"other blocks in {name} ({kind})"
            continue
        for i, data in enumerate((found[name].data, tensor.data)):
            back = gguf.quants.dequantize(data, tensor.tensor_type).astype(np.float64)
            errors.setdefault(kind, [0.0, 0.0])[i] += float(np.square(back - values[name]).sum())
    print({kind: own / other for kind, (own, other) in errors.items()})
    for kind, (own, other) in errors.items():
        assert own <= 1.02 * other, kind
    return num_same

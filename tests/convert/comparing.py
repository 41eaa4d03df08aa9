"""Comparing two files of one model."""

import hashlib
from pathlib import Path

import gguf


def tensors_of(path: Path) -> dict[str, tuple[str, tuple[int, ...], str]]:
    """Of each tensor of a GGUF file: type, shape and the SHA-256 of its bytes."""
    return {
        tensor.name: (
            tensor.tensor_type.name,
            tuple(tensor.shape.tolist()),
            hashlib.sha256(tensor.data.tobytes()).hexdigest(),
        )
        for tensor in gguf.GGUFReader(path).tensors
    }


def assert_same_tensors(ours: Path, theirs: Path) -> None:
    """The same tensors of the same types, shapes and bytes."""
    found, expected = tensors_of(ours), tensors_of(theirs)
    assert found.keys() == expected.keys()
    different = [f"{name} ({kind})" for name, (kind, *_) in expected.items() if found[name] != expected[name]]
    assert not different, f"{len(different)} of {len(expected)} tensors differ: {', '.join(different[:5])}"

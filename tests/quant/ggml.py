"""ggml's own conversions, called in the library that llama-cpp-python brings.

`python -m tests.quant.ggml` writes what it makes of a few blocks to tests/data/ggml_blocks.npz, for machines without.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.quant import GGML_FORMATS, Format

DATA = Path(__file__).parents[1] / "data" / "ggml_blocks.npz"


SHAPES: dict[str, Callable[[np.random.Generator], NDArray[np.float64]]] = {
    "normal": lambda rng: rng.standard_normal(256),
    "heavy tails": lambda rng: rng.standard_t(3, 256),
    "groups of very different sizes": lambda rng: rng.standard_normal(256) * np.repeat(10.0 ** -np.arange(8), 32),
    "positive": lambda rng: np.abs(rng.standard_normal(256)),
    "negative": lambda rng: -np.abs(rng.standard_normal(256)),
    "few values": lambda rng: rng.integers(-2, 3, 256) * 0.5,
    "outliers": lambda rng: np.where(rng.random(256) < 0.02, 5.0, 0.01 * rng.standard_normal(256)),
    "one value": lambda rng: np.full(256, rng.standard_normal()),
}


class _Traits(ctypes.Structure):
    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float_ref", ctypes.c_void_p),
    )


class Ggml:
    """`ImportError` where llama-cpp-python is not installed."""

    def __init__(self) -> None:
        import llama_cpp

        folder = Path(llama_cpp.__file__).parent / "lib"
        library = min([*folder.glob("libggml-base.so"), *folder.glob("libggml-base.dylib")], default=None)
        if library is None:
            raise ImportError(f"{folder} has no libggml-base")
        self._lib: Any = ctypes.CDLL(str(library))
        self._lib.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
        self._lib.ggml_quantize_chunk.restype = ctypes.c_size_t

    def dequantize(self, format_: Format, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        traits = self._lib.ggml_get_type_traits(format_.ggml_type).contents
        assert (traits.blck_size, traits.type_size) == (format_.block_size, format_.block_bytes)
        values = np.empty((len(blocks), format_.block_size), np.float32)
        traits.to_float(blocks.ctypes.data, values.ctypes.data, values.size)
        return values

    def quantize(
        self, format_: Format, values: NDArray[np.float32], importance: NDArray[np.float32] | None = None
    ) -> NDArray[np.uint8]:
        """Of rows [n, columns], with an importance of each column or without."""
        blocks = np.empty((values.size // format_.block_size, format_.block_bytes), np.uint8)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (values, blocks))
        sizes = (ctypes.c_int64(number) for number in (0, *values.shape))
        weights = None if importance is None else ctypes.c_void_p(importance.ctypes.data)
        assert self._lib.ggml_quantize_chunk(format_.ggml_type, *pointers, *sizes, weights) == blocks.nbytes
        return blocks


def sample() -> NDArray[np.float32]:
    """Two rows of each shape, [n, 256]."""
    rng = np.random.default_rng(11)
    return np.array([0.02 * shape(rng) for shape in SHAPES.values() for _ in range(2)]).astype(np.float32)


def main() -> None:
    ggml = Ggml()
    arrays: dict[str, NDArray[Any]] = {"sample": sample()}
    for format_ in GGML_FORMATS.values():
        name = format_.name
        blocks = np.random.default_rng(12).integers(0, 256, (2, format_.block_bytes), np.uint8)
        arrays[f"{name}.blocks"], arrays[f"{name}.values"] = blocks, ggml.dequantize(format_, blocks)
        if format_.pack is not None:
            arrays[f"{name}.quantized"] = ggml.quantize(format_, arrays["sample"])
    np.savez_compressed(DATA, **arrays)


if __name__ == "__main__":
    main()

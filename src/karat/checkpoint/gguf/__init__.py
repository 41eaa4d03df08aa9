"""GGUF: one file, or the parts of a split, with metadata, tokenizer and tensors.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from karat.checkpoint.gguf.checkpoint import GgufCheckpoint, read_gguf
from karat.checkpoint.gguf.form import GgufForm
from karat.checkpoint.gguf.header import GgufHeader, TensorInfo, read_header
from karat.checkpoint.gguf.values import GgufArray, Metadata

__all__ = [
    "GgufArray",
    "GgufCheckpoint",
    "GgufForm",
    "GgufHeader",
    "Metadata",
    "TensorInfo",
    "read_gguf",
    "read_header",
]

"""Block formats of quantised weights: those that GGUF files hold, those that Karat quantises to, and E4M3 of folders.

CODINGS has those with integer kernels, as integers.
"""

from karat.quant.format import Coding, Format
from karat.quant.registry import CODINGS, FORMATS, GGML_FORMATS

__all__ = ["CODINGS", "FORMATS", "GGML_FORMATS", "Coding", "Format"]

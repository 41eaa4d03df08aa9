"""Block formats of quantised weights: those that GGUF files hold, and those that Karat quantises to.

CODINGS has those with integer kernels, as integers.
"""

from karat.quant.format import Coding, Format
from karat.quant.registry import CODINGS, FORMATS, GGML_FORMATS

__all__ = ["CODINGS", "FORMATS", "GGML_FORMATS", "Coding", "Format"]

"""Block formats of quantised weights: those that GGUF files hold, and those that Karat quantises to."""

from karat.quant.format import Format
from karat.quant.registry import FORMATS, GGML_FORMATS

__all__ = ["FORMATS", "GGML_FORMATS", "Format"]

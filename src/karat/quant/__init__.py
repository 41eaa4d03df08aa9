"""Block formats of quantised weights: what GGUF files hold, and what Karat quantises to."""

from karat.quant.format import Format
from karat.quant.registry import FORMATS, GGML_FORMATS

__all__ = ["FORMATS", "GGML_FORMATS", "Format"]

"""Writing a model as a GGUF file, quantised or not."""

from karat.convert.conversion import Conversion, TensorReport, convert
from karat.convert.mix import MIXES, Mix

__all__ = ["MIXES", "Conversion", "Mix", "TensorReport", "convert"]

"""Writing a model as a GGUF file, quantised or not."""

from karat.convert.conversion import Conversion, TensorReport, convert
from karat.convert.mix import MIXES, TypeMix

__all__ = ["MIXES", "Conversion", "TensorReport", "TypeMix", "convert"]

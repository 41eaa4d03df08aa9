"""Every block format that Karat reads. A new format is a file beside this one and its name below."""

from collections.abc import Mapping
from importlib import import_module

from karat.quant.format import Coding, Format

_FILES = (
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"),
    *("q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs"),
    *("tq1_0", "tq2_0", "mxfp4", "nvfp4"),
    "e4m3",
)

_ALL: tuple[Format, ...] = tuple(import_module(f"karat.quant.{file}").FORMAT for file in _FILES)
FORMATS: Mapping[str, Format] = {format_.name: format_ for format_ in _ALL}
GGML_FORMATS: Mapping[int, Format] = {format_.ggml_type: format_ for format_ in _ALL if format_.ggml_type is not None}
CODINGS: Mapping[str, Coding] = {format_.name: format_.coding for format_ in _ALL if format_.coding is not None}

"""Every block format that Karat reads. A new one is a file beside this one and a line below."""

from collections.abc import Mapping

from karat.quant import q4_0, q8_0
from karat.quant.format import Format

FORMATS: Mapping[str, Format] = {
    format_.name: format_
    for format_ in (
        q4_0.FORMAT,
        q8_0.FORMAT,
    )
}
GGML_FORMATS: Mapping[int, Format] = {format_.ggml_type: format_ for format_ in FORMATS.values()}

"""The formats of tool calls by name. Where a template fits several, the first counts."""

from collections.abc import Mapping

from karat.text.tools.atem import ATEM
from karat.text.tools.format import ToolFormat
from karat.text.tools.gemma import GEMMA
from karat.text.tools.granite import GRANITE
from karat.text.tools.harmony import HARMONY
from karat.text.tools.hermes import HERMES
from karat.text.tools.lfm2 import LFM2
from karat.text.tools.llama import LLAMA
from karat.text.tools.mistral import MISTRAL, MISTRAL_ARGS
from karat.text.tools.olmo import OLMO
from karat.text.tools.phi import PHI
from karat.text.tools.pythonic import PYTHONIC
from karat.text.tools.smollm import SMOLLM
from karat.text.tools.xml import QWEN_XML, SEED_XML

FORMATS: Mapping[str, ToolFormat] = {
    each.name: each
    for each in (
        PYTHONIC,
        HERMES,
        QWEN_XML,
        SEED_XML,
        SMOLLM,
        MISTRAL,
        MISTRAL_ARGS,
        LLAMA,
        LFM2,
        OLMO,
        PHI,
        GRANITE,
        GEMMA,
        ATEM,
        HARMONY,
    )
}


def asked_for(sources: Mapping[str, str]) -> ToolFormat | None:
    """The format that the text of chat templates asks for."""
    source = "\n".join(sources.values())
    return next((each for each in FORMATS.values() if any(hint in source for hint in each.hints)), None)

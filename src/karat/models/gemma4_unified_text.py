"""The text of Gemma 4 12B: without experts and without numbers of each token for the layers."""

from dataclasses import replace

from karat.models import gemma4s
from karat.models.family import Family
from karat.models.gemma4_files import GGUF as GGUF_OF_ALL
from karat.models.gemma4s import Gemma4Config
from karat.models.reader import ConfigReader

_NONE = (
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "hidden_size_per_layer_input",
    "vocab_size_per_layer_input",
)


def read(reader: ConfigReader) -> Gemma4Config:
    """The configuration from a config.json of this family."""
    reader.assume({**gemma4s.DEFAULTS, "sliding_window": 1024, "max_position_embeddings": 262_144})
    reader.must_be("hidden_size_per_layer_input", 0, why="a layer of this type reads no numbers of each token")
    reader.raw("vocab_size_per_layer_input")  # of a table that there is not
    return gemma4s.read(reader, **dict.fromkeys(_NONE, 0), norm_topk_prob=True)


# A file of the architecture is opened as gemma4_text, which computes the same.
GGUF = replace(GGUF_OF_ALL, claims=lambda _: False)
FAMILY = Family("gemma4_unified_text", "Gemma4UnifiedForCausalLM", read, gemma4s.layer, GGUF, gemma4s.ends)

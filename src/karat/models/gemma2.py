"""Gemma 2 (Google, 2024): caps on scores and logits, and a window on every other layer, the first included."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import GgufForm, has_bias
from karat.layers.block import Block
from karat.layers.place import Place
from karat.models import gemmas
from karat.models.family import Family, read_decoder
from karat.models.gemmas import GemmaConfig
from karat.models.reader import ConfigReader, read_num_kv_heads

_EVERY, _LARGEST = 2, 46


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma2Config(GemmaConfig):
    """Adds the cap of scores; 0 is none."""

    attn_logit_softcapping: float


def layer(place: Place, config: Gemma2Config, index: int) -> Block:
    """Layer `index` of a model."""
    return gemmas.layer(place, config, config.shape(index), cap=config.attn_logit_softcapping or None)


def read(reader: ConfigReader) -> Gemma2Config:
    """The configuration from a config.json of this family."""
    caps = {gemmas.FINAL_CAP: 30.0, gemmas.ATTENTION_CAP: 50.0}
    reader.assume({**gemmas.DEFAULTS, **caps, "vocab_size": 256_000, "max_position_embeddings": 8192})
    return read_decoder(
        reader,
        Gemma2Config,
        layer_windows=gemmas.read_windows(reader, _EVERY),
        num_kv_heads=read_num_kv_heads(reader),
        head_dim=reader.get(int, "head_dim"),
        activation=gemmas.ACTIVATION,
        attn_logit_softcapping=gemmas.read_cap(reader, gemmas.ATTENTION_CAP),
        **gemmas.read(reader),
    )


def _own_config(metadata: Metadata, names: Collection[str]) -> dict[str, Any]:
    return gemmas.own_config(metadata, "gemma2", _LARGEST, 4096) | {"attention_bias": has_bias(names, ".self_attn.")}


def _not_in_gguf(config: Gemma2Config) -> str | None:
    if not (config.final_logit_softcapping and config.attn_logit_softcapping):
        return "gemma2 without a cap"
    return gemmas.not_in_gguf(config, _EVERY, _LARGEST)


def _not_in_llama_cpp(config: Gemma2Config) -> str | None:
    if config.attention_bias:
        return "gemma2 with biases in its attention"
    return None if config.tie_word_embeddings else "gemma2 with a head of its own"


GGUF: GgufForm[Gemma2Config] = GgufForm(
    architecture="gemma2",
    in_layer=gemmas.TENSORS,
    numbers={gemmas.FINAL_CAP: gemmas.FINAL_CAP, gemmas.ATTENTION_CAP: gemmas.ATTENTION_CAP},
    constants={},
    has_window=True,
    llama_cpp_has_window=True,
    own_config=_own_config,
    as_stored=gemmas.as_stored,
    written=gemmas.written,
    not_in_gguf=_not_in_gguf,
    not_in_llama_cpp=_not_in_llama_cpp,
)
FAMILY = Family("gemma2", "Gemma2ForCausalLM", read, layer, GGUF, gemmas.ends, least_kv_dtype=gemmas.LEAST_KV_DTYPE)

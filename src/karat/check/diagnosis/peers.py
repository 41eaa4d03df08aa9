"""Known differences: what other engines do by design that a model's files do not say.

A known difference is no bug of Karat's. Everything that it does not touch is compared as strictly as ever: the tokens
before it, and the engine's ops on their own inputs, against the model that it is known to compute. A new difference is
a row of COMPUTED or TOKENISED. (That ggml rounds the inputs of products is stated by a trace: `activations`.)
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from karat.check.model.checked import CheckedModel
from karat.check.model.graph import Graph, build_graph
from karat.check.replay.replay import Replay
from karat.check.trace.format import TraceInfo
from karat.checkpoint import GgufCheckpoint
from karat.config import ModelConfig
from karat.models.families import FAMILIES
from karat.text import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """Arithmetic of a peer that differs from the model's, from some token on.

    peer         the beginning of `executor` in its traces
    first_token  the first token whose results may differ; None for a model that is not concerned
    as_computed  the configuration that the peer computes instead
    says         the difference in words; `{first}` stands for that token
    """

    peer: str
    first_token: Callable[[ModelConfig], int | None]
    as_computed: Callable[[ModelConfig], ModelConfig]
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenised:
    """Texts to which a peer gives other ids than the model's own tokenizer and Karat.

    concerns  whether a vocabulary is concerned, by `tokenizer.ggml.pre` and `general.name`
    explains  whether the difference applies to a text, and turns it into what the peer's ids spell; any other loss or
              change stays a bug
    """

    peer: str
    concerns: Callable[[str, str], bool]
    explains: Callable[[str, str, Tokenizer], bool]
    says: str


def _window(config: ModelConfig) -> int | None:
    """The first token that does not see all tokens before it."""
    if FAMILIES[config.model_type].gguf.llama_cpp_has_window:
        return None
    return min((shape.window for shape in config.shapes if shape.window is not None), default=None)


def _without_windows(config: ModelConfig) -> ModelConfig:
    return replace(config, layer_windows=(None,) * config.num_layers)


def _turned_otherwise(config: ModelConfig) -> int | None:
    """The first token whose rotation follows from whole ends of yarn's ramp."""
    return 1 if config.rope.rope_type == "yarn" and not config.rope.truncate else None


def _with_whole_ends(config: ModelConfig) -> ModelConfig:
    return replace(config, rope=replace(config.rope, truncate=True))


def _is_qwen(pre: str, _name: str) -> bool:
    return pre in ("qwen2", "qwen35", "deepseek-r1-qwen")


def _decomposed(text: str, spelt: str, _: Tokenizer) -> bool:
    return not unicodedata.is_normalized("NFC", text) and spelt == text


def _with_end(text: str, spelt: str, _: Tokenizer) -> bool:
    return "</s>" in text and spelt == text


def _is_phi3(_pre: str, name: str) -> bool:
    return any(part in name.lower() for part in ("phi-3", "phi3"))


def _without_spaces_after(text: str, spelt: str, tokenizer: Tokenizer) -> bool:
    """Spaces after an added token are dropped, and one space comes before the next word."""
    kept = ("<unk>", "<s>", "<|endoftext|>")
    tokens = [token for token in tokenizer.added_tokens.values() if token not in kept]
    applies = any(text.partition(token)[2][:1].isspace() for token in tokens)
    return applies and "".join(spelt.split()) == "".join(text.split())


def _odd_to_deepseek(text: str, spelt: str, _: Tokenizer) -> bool:
    odd = re.search("\\s\u3000|\u2029\\s|\x00", text) or any(unicodedata.category(c) == "Cn" for c in text)
    return bool(odd) and spelt == text


COMPUTED: Sequence[Computed] = (
    Computed(
        peer="llama.cpp",
        first_token=_window,
        as_computed=_without_windows,
        says="llama.cpp computes this model without its window of {first} tokens: from token {first} on its numbers "
        "are another model's, which is no bug of Karat's",
    ),
    Computed(
        peer="llama.cpp",
        first_token=_turned_otherwise,
        as_computed=_with_whole_ends,
        says="llama.cpp rounds the ends of yarn's ramp, and this model does not (truncate): from token {first} on its "
        "numbers are another model's, which is no bug of Karat's",
    ),
)
TOKENISED: Sequence[Tokenised] = (
    Tokenised(
        peer="llama.cpp",
        concerns=_is_qwen,
        explains=_decomposed,
        says="llama.cpp does not bring a text to Unicode's normal form C, which Qwen's own tokenizer and Karat do",
    ),
    Tokenised(
        peer="llama.cpp",
        concerns=_is_qwen,
        explains=_with_end,
        says="llama.cpp takes </s> for one control token, which Qwen's own tokenizer and Karat spell in pieces",
    ),
    Tokenised(
        peer="llama.cpp",
        concerns=_is_phi3,
        explains=_without_spaces_after,
        says="llama.cpp knows Phi-3 by name and drops spaces after its added tokens, which the file does not ask for",
    ),
    Tokenised(
        peer="llama.cpp",
        concerns=lambda pre, _: pre == "deepseek-llm",
        explains=_odd_to_deepseek,
        says="llama.cpp cuts spaces beside U+3000 and U+2029, NUL and unassigned characters otherwise than DeepSeek's "
        "own tokenizer and Karat",
    ),
)


@dataclass(frozen=True, slots=True)
class Known:
    """A known difference that concerns this model: from token `first` on the peer computes `config`."""

    first: int
    config: ModelConfig
    text: str

    def shared(self, replay: Replay, name: str) -> NDArray[np.bool_]:
        """The rows of a result that the difference does not touch: those of tokens before `first`."""
        positions = np.asarray(replay.trace.info.positions)[replay.domain(replay.graph.nodes[name])]
        return positions < self.first


def known_difference(executor: str, config: ModelConfig, num_tokens: int) -> Known | None:
    """The known difference of the engine `executor` within the first `num_tokens` tokens of this model, if any."""
    for entry in COMPUTED:
        first = entry.first_token(config) if executor.startswith(entry.peer) else None
        if first is not None and first < num_tokens:
            return Known(first, entry.as_computed(config), f"known: {entry.says.format(first=first)}")
    return None


def graph_of(info: TraceInfo, model: CheckedModel) -> Graph:
    """The graph that the engine of a trace computes: the model's own, unless a known difference changes it."""
    known = known_difference(info.executor, model.config, max(info.positions) + 1)
    return model.graph if known is None else build_graph(known.config)


def known_ids(peer: str, model: CheckedModel, tokenizer: Tokenizer, text: str, theirs: Sequence[int]) -> str | None:
    """The known difference that explains the ids that a peer gives to a text, in words; None if none does."""
    checkpoint = model.checkpoint
    if not isinstance(checkpoint, GgufCheckpoint):
        return None
    pre, name = (_stated(checkpoint.metadata.values, key) for key in ("tokenizer.ggml.pre", "general.name"))
    ids = list(theirs[1:] if theirs and theirs[0] == tokenizer.bos_token_id else theirs)
    spelt = tokenizer.decode(ids, skip_special_tokens=False)
    concerned = (entry for entry in TOKENISED if entry.peer == peer and entry.concerns(pre, name))
    return next((entry.says for entry in concerned if entry.explains(text, spelt, tokenizer)), None)


def _stated(values: Mapping[str, object], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""

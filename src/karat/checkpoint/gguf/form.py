"""GgufForm: how GGUF stores a family's models. Each family states its own (karat.models)."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.gguf.values import GgufArray, Metadata
from karat.checkpoint.weights import Weight
from karat.config import ModelConfig

C = TypeVar("C", bound=ModelConfig)

ROPE_FACTORS = "rope_freqs.weight"
LONG_ROPE: Mapping[str, str] = {  # of phi3: the tensor -> its key in config.json
    "rope_factors_short.weight": "short_factor",
    "rope_factors_long.weight": "long_factor",
}
AS_GGUF = "stored_as_gguf"  # a key of config.json that no folder has: weights are as GGUF files have them
# GGUF's name -> Hugging Face's name, for tensors that most decoders have.
IN_LAYER: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# The matrices of all experts in one tensor (karat.checkpoint.joins).
STACKED_EXPERTS: Mapping[str, str] = {
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
# The MLP of all tokens beside them, and its gate.
SHARED_EXPERT: Mapping[str, str] = {
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
_TOP: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_EXPERT = re.compile(r"(?<=\.experts\.)(?:0|[1-9]\d{0,8})\.", re.ASCII)
_STORED = re.compile(r"blk\.(0|[1-9]\d{0,8})\.([\w.]+)\.(weight|bias)", re.ASCII)
_WHOLE = re.compile(r"blk\.(0|[1-9]\d{0,8})\.([\w.]+)", re.ASCII)
_LAYER = re.compile(r"model\.layers\.(0|[1-9]\d{0,8})\.", re.ASCII)
_CANONICAL = re.compile(r"model\.layers\.(0|[1-9]\d{0,8})\.([\w.]+)\.(weight|bias)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufForm(Generic[C]):
    """A family's record of its GGUF files.

    architecture: `general.architecture` of the files. Families may share one.
    claims: whether a file of that architecture is this family's.
    in_layer: a layer's tensors, GGUF's name -> Hugging Face's name.
    paired: Hugging Face names of the tensors whose rows are stored in pairs (see paired_rows).
    joined: Hugging Face names of tensors that the file has as rows of one, and the name of that in `in_layer`.
    single_rows: Hugging Face names of the matrices with one row, which the file has as vectors.
    bare: Hugging Face names that are those of tensors, without `.weight`.
    whole_names: of a layer's tensors whose GGUF name does not end in `.weight`, GGUF's name -> Hugging Face's.
    top: tensors of no layer that only this architecture has, GGUF's name -> Hugging Face's.
    repeated: tensors of each layer with as many numbers as a head, which are all one, by their GGUF name: config.json's
        key of that number, which is the same in all layers; None: it is 1. A model has no such weights.
    own_keys: keys of the architecture that `own_config` reads, or that change nothing; `written` are their numbers,
        and lists of one number, or truth value, a layer.
    turns_part: whether RoPE may turn a part of a head, which `own_config` reads.
    has_window: whether the file states one sliding window, for all layers or those that config.json means.
    llama_cpp_has_window: whether llama.cpp computes with it.
    yarn_truncates: `truncate` of yarn, which no file states.
    unscaled: `rope_scaling` of a file that scales nothing.
    numbers: the numbers that only this architecture has, GGUF's key -> config.json's. A file without one, or with 0,
        has the default of config.json.
    counts: the same of integers.
    by_layer: keys whose numbers may differ between layers, GGUF's key -> config.json's, which has a list of them.
    has_rope: whether a layer has RoPE, from the config and its index: no file states it.
    window_theta: the base of RoPE in layers with a window, which have no scaling, where a file states no
        `rope.freq_base_swa`, or 0 for that of the others; None: all layers have one RoPE.
    rope_factors: the tensors with the factors of a model's longrope, by name; their keys in config.json are
        LONG_ROPE's.
    is_proportional: whether a factor of RoPE can mean a pair that is not turned.
    head_dim: the size of a layer's heads, from config.json and its index.
    sizes_by_layer: whether `written` states the sizes of layers, which may differ.
    states_merges: whether files have a tokenizer of SentencePiece's pieces by its merges, and not by scores.
    constants: keys of config.json with one value in all models of the architecture, which files leave out.
    own_config: keys of config.json that only this family has, from the metadata and the tensors by canonical name.
    doubt: a warning for a file that another family of the architecture claims but that looks like this family's.
    finer_values: whether mixes of 3 and 4 bits store V in 5 bits, as llama.cpp does where 8 heads share a KV head.
    as_stored: a weight of a model of this config as the file has it, where that is not as folders have it.
    without_values: the layers that have no V, by their numbers.
    not_in_gguf: why a file cannot state a model of this config; None if it can.
    not_in_llama_cpp: why llama.cpp (llama-cpp-python 0.3.36) does not load a model of this config; None if it does.
    """

    architecture: str
    in_layer: Mapping[str, str]
    paired: tuple[str, ...] = ()
    joined: Mapping[str, str] = field(default_factory=dict)
    single_rows: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    whole_names: Mapping[str, str] = field(default_factory=dict)
    top: Mapping[str, str] = field(default_factory=dict)
    repeated: Mapping[str, str | None] = field(default_factory=dict)
    own_keys: tuple[str, ...] = ()
    written: Callable[[C], Mapping[str, int | Sequence[int]]] = lambda _: {}
    turns_part: bool = False
    has_window: bool = False
    llama_cpp_has_window: bool = False
    yarn_truncates: bool = True
    unscaled: Mapping[str, Any] | None = None
    numbers: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, str] = field(default_factory=dict)
    by_layer: Mapping[str, str] = field(default_factory=dict)
    has_rope: Callable[[C, int], bool] = lambda *_: True
    window_theta: float | None = None
    rope_factors: Callable[[C], Mapping[str, Sequence[float]]] = lambda _: {}
    is_proportional: bool = False
    states_merges: bool = False
    sizes_by_layer: bool = False
    head_dim: Callable[[Mapping[str, Any], int], int] = lambda config, _: config["head_dim"]
    constants: Mapping[str, Any] = field(default_factory=lambda: {"hidden_act": "silu"})
    claims: Callable[[Metadata], bool] = lambda _: True
    own_config: Callable[[Metadata, Mapping[str, Weight]], Mapping[str, Any]] = lambda *_: {}
    doubt: Callable[[Metadata], str | None] = lambda _: None
    finer_values: Callable[[C], bool] = lambda _: False
    as_stored: Callable[[C, Weight], Weight] = lambda _, weight: weight
    without_values: Callable[[C], tuple[int, ...]] = lambda _: ()
    not_in_gguf: Callable[[C], str | None] = lambda _: None
    not_in_llama_cpp: Callable[[C], str | None] = lambda _: None

    def canonical_name(self, stored: str) -> str | None:
        """The Hugging Face name of a tensor of the file; None if the family has no such tensor."""
        if (name := self.top.get(stored, _TOP.get(stored))) is not None:
            return name
        if (match := _WHOLE.fullmatch(stored)) and (name := self.whole_names.get(match[2])):
            return f"model.layers.{match[1]}.{name}"
        if (match := _STORED.fullmatch(stored)) and (name := self.in_layer.get(match[2])):
            suffix = "" if name in self.bare and match[3] == "weight" else f".{match[3]}"
            return f"model.layers.{match[1]}.{name}{suffix}"
        return None

    def stored_name(self, canonical: str) -> str | None:
        """The inverse of `canonical_name`. Matrices of experts have one name: the file stacks them."""
        canonical = self.whole_of(_EXPERT.sub("", canonical))
        if canonical.endswith(self.bare):
            canonical += ".weight"
        for stored, name in (*self.top.items(), *_TOP.items()):
            if name == canonical:
                return stored
        for stored, name in self.whole_names.items():
            if (match := _LAYER.match(canonical)) and canonical[match.end() :] == name:
                return f"blk.{match[1]}.{stored}"
        if match := _CANONICAL.fullmatch(canonical):
            for stored, name in self.in_layer.items():
                if name == match[2]:
                    return f"blk.{match[1]}.{stored}.{match[3]}"
        return None

    def whole_of(self, canonical: str) -> str:
        """The tensor of which the file has this one as rows; others as they are."""
        for part, whole in self.joined.items():
            if f".{part}." in canonical:
                return canonical.replace(f".{part}.", f".{whole}.")
        return canonical

    def is_single_row(self, canonical: str) -> bool:
        """Whether the file has this matrix as a vector."""
        return any(f".{name}." in canonical for name in self.single_rows)

    def is_paired(self, canonical: str) -> bool:
        """Whether the file stores the rows of this tensor in pairs."""
        return any(f".{name}." in canonical for name in self.paired)

    def row_order(
        self, canonical: str, num_rows: int, config: Mapping[str, Any]
    ) -> Callable[[], NDArray[np.intp]] | None:
        """`paired_rows` of a tensor whose rows are stored in pairs; None for others, and for rows that are no heads."""
        layer = _LAYER.match(canonical)
        if layer is None or not self.is_paired(canonical):
            return None
        head_dim = self.head_dim(config, int(layer[1]))
        return None if num_rows % head_dim else partial(paired_rows, num_rows, head_dim)


def paired_rows(num_rows: int, head_dim: int) -> NDArray[np.intp]:
    """For each row of Hugging Face's Q or K [num_rows], the stored row that holds it.

    RoPE turns rows j and j + head_dim / 2 of a head together. A paired file stores them as rows 2 j and 2 j + 1:

        Hugging Face   0   1   …   h-1 | h   h+1   …   2h-1        h = head_dim / 2
        paired file    0   h   1   h+1   2   h+2   …   h-1   2h-1
    """
    order = np.arange(num_rows, dtype=np.intp).reshape(-1, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
    order.flags.writeable = False
    return order


def restated(weight: Weight, change: Callable[[NDArray[np.floating]], NDArray[np.floating]]) -> Weight:
    """A vector of other numbers, in float32."""

    def made() -> NDArray[np.uint8]:
        return change(weight.to_array(np.dtype(np.float32))).astype("<f4", copy=False).view(np.uint8)

    return replace(weight, dtype="F32", row_order=None, row_span=None, made=made)


def stated_window(metadata: Metadata, architecture: str) -> int:
    """The sliding window of a file in tokens; 0 for none, and for one that covers every context."""
    window = metadata.get(int, f"{architecture}.attention.sliding_window", 0)
    return window if 0 < window < metadata.get(int, f"{architecture}.context_length") else 0


def has_experts(metadata: Metadata, architecture: str) -> bool:
    """Whether a file states a number of experts, for any layer."""
    count = metadata.values.get(f"{architecture}.expert_count", 0)
    if not isinstance(count, GgufArray):
        return bool(count)
    return count.kind not in ("STRING", "ARRAY") and bool(count.numbers().any())


def has_bias(names: Collection[str], part: str) -> bool:
    """Whether a bias is among the tensors whose names contain `part`."""
    return any(part in name and name.endswith(".bias") for name in names)

"""Joins: tensors that a model needs and that files store as the rows of one. A part is a view of its rows, no copy.

    self_attn.qkv_proj    | q | k | v |     Phi-3's spelling: the rows of q, then those of k, then those of v
    mlp.gate_up_proj      | gate | up |     Phi-3's and GLM-4's
    experts.gate_up_proj  | gate of expert 0 | up of expert 0 | gate of expert 1 | …     [experts, rows, columns]
    experts.gate_proj     | expert 0 | expert 1 | …     GGUF's; so are up_proj and down_proj, and biases
    block_sparse_moe      Mixtral's: `mlp` by another name, with experts of w1 (gate), w2 (down) and w3 (up)
    feed_forward          LFM2's, which has names of its own for norms, too

A new spelling is a line in _JOINS, _STACKS or _NAMES. Those of gpt-oss, which are no rows, are in `sideways.py`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.sideways import Sideways, parts_of, sideways_of
from karat.checkpoint.weights import Weight, WeightSpec

_JOINS: Mapping[str, tuple[str, ...]] = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
_STACKS: Mapping[str, tuple[str, ...]] = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "gate_proj": ("gate_proj",),
    "up_proj": ("up_proj",),
    "down_proj": ("down_proj",),
}
# Of Mixtral and LFM2: what files call a part -> the name that it has in other families.
_NAMES: Mapping[str, str] = {
    "block_sparse_moe": "mlp",
    "feed_forward": "mlp",
    "w1": "gate_proj",
    "w2": "down_proj",
    "w3": "up_proj",
    "operator_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "embedding_norm": "norm",
    "self_attn.q_layernorm": "self_attn.q_norm",
    "self_attn.k_layernorm": "self_attn.k_norm",
    "self_attn.out_proj": "self_attn.o_proj",
}
_RENAMED = re.compile(rf"(?<![^.])({'|'.join(map(re.escape, _NAMES))})(?![^.])", re.ASCII)
_STACKED = re.compile(rf"(.+\.experts\.)({'|'.join(_STACKS)})(\.weight|\.bias)?", re.ASCII)
_JOINED = re.compile(rf"(.+\.)({'|'.join(map(re.escape, _JOINS))})(\.weight|\.bias)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Join:
    """`spec` is the tensor that the files have, `parts` are those of the model that are its rows, in this order."""

    spec: WeightSpec
    parts: tuple[WeightSpec, ...]

    @property
    def specs(self) -> tuple[WeightSpec, ...]:
        """The tensors that the files have."""
        return (self.spec,)

    def parted(self, stored: Mapping[str, Weight]) -> dict[str, Weight]:
        """The parts' weights, which are views of the whole one's bytes."""
        found, start, whole = {}, 0, stored[self.spec.source]
        if len(whole.shape) > len(self.parts[0].shape):  # matrices, or vectors, one after the other
            whole = replace(whole, shape=(prod(whole.shape[:2]), *whole.shape[2:]))
        for part in self.parts:
            rows = whole.rows(start, stop := start + part.shape[0])
            found[part.source], start = replace(rows, name=part.source), stop
        return found


@dataclass(frozen=True, slots=True)
class Grouped:
    """`spec` is the tensor that the files have: `groups` equal groups of rows. A family states it (Family.joins).

    A group has rows of each part's pieces, in their order; `parts` are those of the model, each with how many rows of
    its pieces a group has. With pieces q, k and v of one part, and z of the other:

        | q k v z of group 0 | q k v z of group 1 | …     are     | q of all groups | k … | v … |     and     | z … |
    """

    spec: WeightSpec
    parts: tuple[WeightSpec, ...]
    rows: tuple[tuple[int, ...], ...]
    groups: int

    @property
    def specs(self) -> tuple[WeightSpec, ...]:
        """The tensors that the files have."""
        return (self.spec,)

    def parted(self, stored: Mapping[str, Weight]) -> dict[str, Weight]:
        """The parts' weights, which are rows of the whole one."""
        found, first, whole = {}, 0, stored[self.spec.source]
        for part, rows in zip(self.parts, self.rows, strict=True):
            order = partial(self._order, first, rows)
            found[part.source] = replace(
                whole, name=part.source, shape=part.shape, whole_shape=whole.shape, row_order=order
            )
            first += sum(rows)
        return found

    def _order(self, first: int, rows: tuple[int, ...]) -> NDArray[np.intp]:
        """The rows of a part whose pieces begin at row `first` of a group."""
        starts = np.arange(self.groups, dtype=np.intp)[:, None] * (self.spec.shape[0] // self.groups) + first
        pieces = [starts + np.arange(*piece) for piece in pairwise(np.cumsum((0, *rows)))]
        return np.concatenate([piece.reshape(-1) for piece in pieces])


def renamed(stored: str) -> str:
    """The model's name of a tensor that files store under another one; other names as they are."""
    return _RENAMED.sub(lambda match: _NAMES[match[1]], stored)


def joins_of(specs: Sequence[WeightSpec], stored: Collection[str]) -> list[Join | Sideways]:
    """The joins among the names of stored tensors whose parts the model needs, all of them and of the same width."""
    needed = {spec.source: spec for spec in specs}
    joins: list[Join | Sideways] = []
    for name in stored:
        ours = renamed(name)
        if (part := needed.get(ours)) is not None and ours != name:
            joins.append(Join(WeightSpec(name, part.shape), (part,)))
            continue
        if (found := sideways_of(name, needed, stored)) is not None:
            joins += found
            continue
        if (match := _STACKED.fullmatch(ours)) is not None:
            joins += _stack(name, match[1], _STACKS[match[2]], match[3] or ".weight", needed)
            continue
        if (match := _JOINED.fullmatch(name)) is None or name in needed:
            continue
        parts = [needed.get(f"{match[1]}{part}{match[3]}") for part in _JOINS[match[2]]]
        known = tuple(part for part in parts if part is not None)
        if len(known) == len(parts) and len({part.shape[1:] for part in known}) == 1:
            shape = (sum(part.shape[0] for part in known), *known[0].shape[1:])
            joins.append(Join(WeightSpec(name, shape), known))
    return joins


def _stack(
    name: str, experts: str, each: Sequence[str], suffix: str, needed: Mapping[str, WeightSpec]
) -> list[Join | Sideways]:
    """The join of a tensor that has the matrices `each` of all experts that the model needs, or their biases."""
    parts = parts_of(experts, each, suffix, needed)
    if not parts or len(parts) % len(each) or len({spec.shape for spec in parts}) != 1:
        return []
    rows, *columns = parts[0].shape
    return [Join(WeightSpec(name, (len(parts) // len(each), rows * len(each), *columns)), parts)]

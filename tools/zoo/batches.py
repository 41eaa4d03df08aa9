"""Several sequences in one batch: traces of one sequence each, joined as one of an engine that runs them together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

from karat.check.trace.format import Array, Trace, make_info


def side_by_side(traces: Sequence[Trace], *, in_turn: bool = False) -> Trace:
    """One trace, whose step i is step i of every sequence, one after the other; `in_turn`: a sequence begins after the
    last step of the one before it.
    """
    spans: list[list[tuple[int, int]]] = []
    for t in traces:
        waiting = [(0, 0)] * (len(spans[-1]) if in_turn and spans else 0)
        spans.append([*waiting, *zip(t.info.steps, (*t.info.steps[1:], t.info.num_tokens), strict=True)])
    order, starts = [], []
    for step in range(max(map(len, spans))):
        starts.append(len(order))
        order += [(s, token) for s, of in enumerate(spans) if step < len(of) for token in range(*of[step])]
    longest = max(trace.info.num_tokens for trace in traces)
    info = make_info(
        [traces[s].info.token_ids[token] for s, token in order],
        sequences=[s for s, _ in order],
        steps=tuple(starts),
        dtype=traces[0].info.dtype,
        kv_dtype=traces[0].info.kv_dtype,
        executor=traces[0].info.executor,
    )
    arrays: dict[str, Array] = {}
    for name, first in traces[0].arrays.items():
        if name == "model.rotary_emb.inv_freq":
            continue
        has_keys = name.endswith((".scores", ".weights"))
        parts = []
        for trace in traces:
            array = trace.arrays[name]
            if has_keys:
                empty = -np.inf if name.endswith(".scores") else 0.0
                width = [(0, 0), (0, 0), (0, longest - array.shape[2])]
                array = np.pad(array, width, constant_values=empty).transpose(1, 0, 2)
            parts.append(array)
        joined = np.stack([parts[s][token] for s, token in order]).astype(first.dtype)
        arrays[name] = joined.transpose(1, 0, 2) if has_keys else joined
    return Trace(info, arrays)


class WrongSlots(DynamicCache):
    """A cache with a fault from a step on: keys and values go to the slot before ("early"), or some slots hold those of
    another cache ("foreign")."""

    def __init__(self, fault: str, step: int, other: DynamicCache | None = None, slots: slice = slice(4, 8)) -> None:
        super().__init__()
        self.fault, self.step, self.other, self.slots = fault, step, other, slots
        self.calls: dict[int, int] = {}

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: int, *args: Any, **kwargs: Any) -> Any:
        step = self.calls.get(layer, 0)
        self.calls[layer] = step + 1
        begin, new = self.get_seq_length(layer), key.shape[2]
        whole = [x.clone() for x in super().update(key, value, layer, *args, **kwargs)]
        if step >= self.step:
            stored = self.layers[layer]
            for index, part in enumerate((key, value)):
                if self.fault == "early":
                    whole[index][:, :, begin - 1 : begin - 1 + new] = part
                    whole[index][:, :, begin - 1 + new :] = 0
                else:
                    assert self.other is not None
                    theirs = self.other.layers[layer]
                    whole[index][:, :, self.slots] = (theirs.keys, theirs.values)[index][:, :, self.slots]
            stored.keys, stored.values = whole
        return whole[0], whole[1]

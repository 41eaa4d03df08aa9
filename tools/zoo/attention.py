"""An attention of the zoo's own, in torch, with its mistakes."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from tools.zoo.models import Subject

UNSET: Any = object()


def patch_attention(
    subject: Subject,
    stack: ExitStack,
    *,
    mask: str = "causal",
    diagonal: int = 0,
    hidden: str = "inf",
    window: Any = UNSET,
    axis: int = -1,
    tile: bool = False,
    order: int = 0,
    cap: float | None = None,
    rope_v: bool = False,
    kv_head: Sequence[int] | None = None,
    blocks: int = 0,
    when: Callable[[int, int], bool] = lambda num_q, num_k: True,
) -> None:
    """Every layer of the model attends in this way until the stack closes.

    order: heads are joined in the wrong order within each of so many ranks; kv_head: the KV head of each query head;
    blocks: a decode step sees whole blocks of so many slots, the empty ones too;
    when: whether a step of so many queries and keys has the wrong mask.
    """
    source = sys.modules[type(subject.hf.model).__module__]
    rotary: dict[str, torch.Tensor] = {}
    if rope_v:
        right = source.apply_rotary_pos_emb

        def remembering(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **rest: Any) -> Any:
            rotary.update(cos=cos, sin=sin)
            return right(q, k, cos, sin, **rest)

        source.apply_rotary_pos_emb = remembering
        stack.callback(setattr, source, "apply_rotary_pos_emb", right)

    def attend(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        scaling: float,
        **rest: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        groups = query.shape[1] // key.shape[1]
        if rope_v:
            a, b = value.chunk(2, dim=-1)
            value = value * rotary["cos"][:, None] + torch.cat((-b, a), -1) * rotary["sin"][:, None]
        if kv_head is not None:
            key, value = key[:, list(kv_head)], value[:, list(kv_head)]
        elif tile:
            key, value = key.repeat(1, groups, 1, 1), value.repeat(1, groups, 1, 1)
        else:
            key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        num_q, num_k = query.shape[2], key.shape[2]
        i, j = torch.arange(num_q)[:, None] + num_k - num_q, torch.arange(num_k)[None]
        size = rest.get("sliding_window") if window is UNSET else window
        here = mask if when(num_q, num_k) else "causal"
        if here == "top-left":
            i = i - (num_k - num_q)
        seen = j <= i + diagonal
        if here == "none":
            seen = torch.ones_like(seen)
        if size is not None:
            seen = seen & (j > i - size)
        if blocks and num_q == 1:
            empty = -num_k % blocks
            key, value = (torch.nn.functional.pad(x, (0, 0, 0, empty)) for x in (key, value))
            seen = torch.nn.functional.pad(seen, (0, empty), value=True)
        if hidden == "alone":  # a token that sees nothing sees itself
            seen = seen | ((j == i) & ~seen.any(-1, keepdim=True))
        scores = query @ key.transpose(2, 3) * scaling
        if cap is not None:
            scores = torch.tanh(scores / cap) * cap
        if here == "nan":
            scores = scores + (~seen).float() * -torch.inf
        else:
            lowest = torch.finfo(scores.dtype).min if hidden == "min" else -torch.inf
            scores = scores.masked_fill(~seen, lowest)
        weights = torch.softmax(scores, dim=axis)
        output = weights @ value
        if not order:
            return output.transpose(1, 2).contiguous(), weights
        b, _, t, d = output.shape  # each rank flattens [heads, tokens, head_dim] as it is
        return torch.cat([part.reshape(b, t, 1, -1) for part in output.chunk(order, dim=1)], dim=-1).view(
            b, t, -1, d
        ), weights

    original = source.eager_attention_forward
    source.eager_attention_forward = attend
    stack.callback(setattr, source, "eager_attention_forward", original)

"""Runs transformers wholly in float64: its float32 islands (RMSNorm, softmax, rotary) patched out.

Every float32 in its code becomes float64. RoPE's frequencies and angles stay float32: the model was trained with
them, so they define it and are no rounding. Their cosine and sine are float64. torch's float32 power is not always
rounded correctly, so the caller gives the frequencies, which are checked against torch's. The growth of q by position
is float32, too, and of its logarithm the same is true.
"""

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from karat.config import ModelConfig, RopeConfig
from karat.ops.rope_table import growths, inverse_frequencies


class Widen(TorchFunctionMode):
    """Inside it, whatever torch is asked to compute in float32 is computed in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()

        def widen(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        return func(*(widen(a) for a in args), **{key: widen(a) for key, a in (kwargs or {}).items()})


class InFloat64:
    """Context in which `model` (converted by `.double()`) computes without a float32 island.

    Of a model with several in it, the text model. `frequencies` are those of all layers, or of each kind of them; they
    may be others for texts of `length` tokens.
    """

    def __init__(
        self, model: Any, frequencies: NDArray[np.float32] | Mapping[str, NDArray[np.float32]], length: int = 1
    ) -> None:
        base = getattr(model.model, "language_model", model.model)
        self._rotary = base.pos_emb if hasattr(base, "pos_emb") else base.rotary_emb
        fresh = type(self._rotary)(base.config)
        if getattr(fresh, "rope_type", None) == "longrope":
            fresh(torch.zeros(1), torch.tensor([[length - 1]]))
        self._frequencies = {"": frequencies} if isinstance(frequencies, np.ndarray) else dict(frequencies)
        for kind, ours in self._frequencies.items():
            theirs = getattr(fresh, f"{kind}_inv_freq" if kind else "inv_freq").numpy()
            assert theirs.dtype == np.float32
            assert (np.abs(ours - theirs) <= 4 * 2.0**-23 * theirs).all(), "more than a few last bits apart"
        self._copies = 1 if "GptOss" in type(self._rotary).__name__ else 2  # of the angles, in a row
        self._mode = Widen()
        self._module: Any = sys.modules[type(base).__module__]
        self._scale = getattr(self._module, "get_llama_4_attn_scale", None)

    def _grow(self, position_ids: torch.Tensor, beta: float, length: int) -> torch.Tensor:
        rope = RopeConfig(theta=2, original_max_position_embeddings=length)
        ours = torch.from_numpy(growths(rope, beta, position_ids[0].numpy()))[None, None, :, None]
        assert self._scale is not None and (ours / self._scale(position_ids, beta, length) - 1).abs().max() <= 2**-22
        return ours

    def _rotate(self, x: torch.Tensor, position_ids: torch.Tensor, kind: str = "") -> tuple[torch.Tensor, torch.Tensor]:
        position_ids = position_ids[0] if position_ids.ndim == 3 else position_ids  # of text all three are equal
        single = position_ids.numpy()[..., None].astype(np.float32) * self._frequencies[kind]
        halves = (single,) * self._copies
        angles = torch.from_numpy(np.concatenate(halves, axis=-1).astype(np.float64))
        scaling = getattr(self._rotary, f"{kind}_attention_scaling" if kind else "attention_scaling")
        return angles.cos() * scaling, angles.sin() * scaling

    def __enter__(self) -> None:
        self._rotary.forward = self._rotate
        if self._scale is not None:
            self._module.get_llama_4_attn_scale = self._grow
        self._mode.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mode.__exit__(kind, error, trace)
        del self._rotary.forward
        if self._scale is not None:
            self._module.get_llama_4_attn_scale = self._scale


def frequencies_of(config: ModelConfig, *, by_kind: bool) -> Any:
    """Of RoPE in all layers, or in those with and without a window; of none too, which is not turned."""
    kinds = {True: "full_attention", False: "sliding_attention"}
    turns = {
        kinds[shape.window is None]: (shape.rope, shape.rotary_dim or shape.head_dim)
        for shape in config.shapes
        if shape.rope is not None
    }
    if by_kind:
        return {kind: inverse_frequencies(rope, size) for kind, (rope, size) in turns.items()}
    return inverse_frequencies(*next(iter(turns.values()), (config.rope, config.shape(0).head_dim)))

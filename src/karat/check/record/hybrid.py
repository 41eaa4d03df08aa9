"""Hybrid runs: Karat computes a part of a transformers model. A divergence arises in the part that takes it away."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from karat.check.record.executors import caches_of_one, one_sequence
from karat.check.record.hf_modules import part_of
from karat.checkpoint.weights import Checkpoint
from karat.config import ModelConfig
from karat.errors import UsageError
from karat.layers.attention import Attention
from karat.layers.block import Block
from karat.layers.experts import ExpertMixture, SharedMixture
from karat.layers.mlp import GatedMLP
from karat.layers.weights import AS_STORED, WeightLoader
from karat.models.cut_units import cut_units
from karat.models.decoder import Decoder
from karat.models.registry import find_weights
from karat.ops.api import Cache
from karat.ops.executor import Executor

Array = NDArray[np.floating]

# With "theirs:" before a part, transformers computes that part and Karat the rest.
ABOVE = 10.0  # times the noise, from which on a part is suspect
_MLPS = (GatedMLP, ExpertMixture, SharedMixture)
PARTS = ("attention", "mlp", "norm", "head", "layer:K")


@dataclass(frozen=True, slots=True)
class HybridRun:
    """A run with `part` by Karat: the distance of its logits from transformers' alone, and from Karat's alone."""

    part: str
    from_theirs: float
    from_ours: float


class Hybrid:
    """Karat's layers beside a transformers model of the same weights, over one text.

    ops computes one array at a time (the reference, or native op by op). Raises what building a model raises.
    """

    def __init__(
        self, theirs: Any, config: ModelConfig, checkpoint: Checkpoint, ops: Executor, ids: Sequence[int]
    ) -> None:
        self._theirs = theirs
        self._config = config
        self._ops = ops
        weights = find_weights(config, checkpoint)
        self._decoder = Decoder(WeightLoader(ops, weights, AS_STORED), config, cut_units(config, weights))
        self._ropes = self._decoder.rope_tables(ops, len(ids))
        self._ids = list(ids)
        batch = one_sequence(self._ids, 0, len(ids), set(range(len(ids))), self._decoder.keeps)
        self._step = ops.begin(batch)

    def logits(self, part: str | None = None) -> Array:
        """Logits [tokens, vocab] with a part by Karat: one of PARTS, "all", or None for none."""
        if part == "all":
            ours = self._decoder(self._ops, self._step, self._caches(), self._ropes)
            return np.array(self._ops.read(ours), np.float64)
        with torch.no_grad(), self._replaced(part):
            result: Array = self._theirs(torch.tensor([self._ids]), use_cache=False).logits[0].double().numpy()
        return result

    def run(self, parts: Sequence[str]) -> list[HybridRun]:
        """A run without a part of Karat's ("none"), then a run for each part."""
        theirs, ours = self.logits(), self.logits("all")
        runs = [HybridRun("none", 0.0, _distance(theirs, ours))]
        for part in parts:
            mixed = self.logits(part)
            runs.append(HybridRun(part, _distance(mixed, theirs), _distance(mixed, ours)))
        return runs

    def _caches(self) -> tuple[Cache, ...]:
        return caches_of_one(self._ops, self._decoder.keeps, self._ops.dtype, len(self._ids))

    @contextmanager
    def _replaced(self, part: str | None) -> Iterator[None]:
        with ExitStack() as stack:
            for module, forward in self._replacements(part):
                module.forward = forward
                stack.callback(delattr, module, "forward")
            yield

    def _replacements(self, part: str | None) -> Iterator[tuple[Any, Callable[..., Any]]]:
        """transformers' modules, each with the function that replaces its forward."""
        base, caches = self._theirs.model, self._caches()
        layers = list(zip(base.layers, self._decoder.layers, caches, strict=True))
        kind, _, number = (part or "").partition(":")
        match kind:
            case "":
                return
            case "theirs" if number in PARTS[:-1]:  # every other part is ours
                for other in PARTS[:-1]:
                    if other != number:
                        yield from self._replacements(other)
            case "theirs" if (index := _layer_index(number, len(layers))) is not None:
                yield part_of(base, "norm"), self._plain(self._decoder.norm)
                yield self._theirs.lm_head, self._plain(self._decoder.lm_head.product)
                for place, (theirs, ours, cache) in enumerate(layers):
                    if place != index:
                        yield theirs, self._whole(ours, cache)
            case "attention":
                for theirs, ours, cache in layers:
                    for attention in (branch.mixer for branch in ours.branches if isinstance(branch.mixer, Attention)):
                        run, module = self._with_step(attention, cache), _counterpart(theirs, ours, attention.name)
                        yield module, lambda hidden_states, *_, run=run, **__: (run(hidden_states), None)
            case "mlp":
                for theirs, ours, cache in layers:
                    for mlp in (branch.mixer for branch in ours.branches if isinstance(branch.mixer, _MLPS)):
                        module, run = _counterpart(theirs, ours, mlp.name), self._whole(mlp, cache)
                        # gpt-oss' mixtures return the router's scores besides.
                        both = lambda hidden_states, run=run: (run(hidden_states), None)  # noqa: E731
                        yield module, both if hasattr(module, "router") else run
            case "norm":
                yield part_of(base, "norm"), self._plain(self._decoder.norm)
                for theirs, ours, _ in layers:
                    for norm in (norm for branch in ours.branches for norm in (branch.before, branch.after) if norm):
                        yield _counterpart(theirs, ours, norm.name), self._plain(norm)
            case "head":
                yield self._theirs.lm_head, self._plain(self._decoder.lm_head.product)
            case "layer" if (index := _layer_index(part or "", len(layers))) is not None:
                theirs, ours, cache = layers[index]
                yield theirs, self._whole(ours, cache)
            case _:
                raise _unknown(part, len(layers))

    def _plain(self, module: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        return lambda x, *_, **__: self._back(module(self._ops, self._over(x)), x)

    def _whole(self, layer: Callable[..., Any], cache: Cache) -> Callable[..., torch.Tensor]:
        run = self._with_step(layer, cache)
        return lambda hidden_states, *_, **__: run(hidden_states)

    def _with_step(self, module: Callable[..., Any], cache: Cache) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: self._back(module(self._ops, self._over(x), self._step, cache, self._ropes), x)

    def _over(self, x: torch.Tensor) -> Array:
        values: Array = x[0].to(torch.float64).numpy().astype(self._ops.dtype)
        return values

    def _back(self, result: Any, like: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.array(self._ops.read(result)))[None].to(like.dtype)


def check_part(part: str, num_layers: int) -> None:
    """Raise UsageError unless a model of `num_layers` layers has this part."""
    name = part.removeprefix("theirs:")
    if name not in PARTS[:-1] and _layer_index(name, num_layers) is None:
        raise _unknown(part, num_layers)


def _counterpart(theirs: Any, ours: Block, name: str) -> Any:
    """The module of their layer that has the name of a part of ours."""
    return part_of(theirs, name.removeprefix(f"{ours.name}."))


def _layer_index(name: str, num_layers: int) -> int | None:
    """K of "layer:K"; None for any other name, and for a layer that does not exist."""
    kind, _, number = name.partition(":")
    is_layer = kind == "layer" and number.isascii() and number.isdigit() and int(number) < num_layers
    return int(number) if is_layer else None


def _unknown(part: str | None, num_layers: int) -> UsageError:
    return UsageError(
        f"hybrid part {part!r}: expected {', '.join(PARTS)} with K from 0 to {num_layers - 1}, or theirs: and one of "
        "these"
    )


def _distance(a: Array, b: Array) -> float:
    """The largest difference relative to the standard deviation of the logits; infinite if any logit is not finite."""
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    largest, deviation = float(np.abs(a - b).max()), float(b.std())
    return largest / deviation if deviation > 0 else 0.0 if largest == 0 else float("inf")


def suspects(runs: Sequence[HybridRun]) -> list[str]:
    """The parts that, computed by Karat, change their logits by ten times the noise; none if the two do not diverge.

    The noise is the change of the middle one of the parts, and at most a hundredth of the divergence.
    """
    alone, ours = runs[0].from_ours, [run for run in runs[1:] if not run.part.startswith("theirs:")]
    if alone < 1e-3 or not ours:
        return []
    noise = np.fmin(alone / 100, np.median([run.from_theirs for run in ours]))
    return [run.part for run in ours if not run.from_theirs <= ABOVE * noise]

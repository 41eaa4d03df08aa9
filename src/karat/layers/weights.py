"""How a layer gets its weights: it says what it needs, and the same constructor serves to list and to load."""

from collections.abc import Callable, Mapping
from typing import Protocol

from karat.checkpoint.slices import sliced
from karat.checkpoint.weights import Weight, WeightSpec
from karat.ops.api import Loaded, Ops

Take = Callable[[WeightSpec], Loaded]


class Prepare(Protocol):
    """What is done to each weight between the file and the executor."""

    def __call__(self, weight: Weight) -> Weight: ...

    def stored_type(self, weight: Weight) -> str:
        """The type that the weight will have; nothing is read."""


class AsStored:
    """Nothing is done."""

    def __call__(self, weight: Weight) -> Weight:
        return weight

    def stored_type(self, weight: Weight) -> str:
        return weight.dtype


AS_STORED = AsStored()


class SpecCollector:
    """A `Take` that lists what a model needs, in order of construction and without repeats, and loads nothing."""

    def __init__(self) -> None:
        self._by_source: dict[str, WeightSpec] = {}

    @property
    def specs(self) -> list[WeightSpec]:
        return list(self._by_source.values())

    def __call__(self, spec: WeightSpec) -> Loaded:
        known = self._by_source.setdefault(spec.source, spec)
        assert known == spec, f"{spec.source} is wanted as {known} and as {spec}"
        return None


class WeightLoader:
    """A `Take` that loads each assigned weight into the executor once, however many layers share it.

    Each goes through `prepare` first, one at a time, so that never two weights are held twice. Of a tensor that is
    shared out over ranks only this rank's part is read. `bytes_read` counts the bytes of files that were taken, and
    `parts` are what was loaded for which spec.
    """

    def __init__(
        self,
        ops: Ops,
        weights: Mapping[str, Weight],
        prepare: Prepare,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._ops = ops
        self._weights = weights
        self._prepare = prepare
        self._progress = progress
        self._num_bytes = sum({weight.name: weight.num_bytes for weight in weights.values()}.values())
        self._loaded: dict[str, Loaded] = {}
        self.parts: dict[WeightSpec, Loaded] = {}
        self.bytes_read = 0

    def __call__(self, spec: WeightSpec) -> Loaded:
        if spec.source not in self._loaded:
            whole = self._weights[spec.source]
            weight = sliced(whole, spec)
            self.bytes_read += weight.num_bytes
            self._loaded[spec.source] = self.parts[spec] = self._ops.load(self._prepare(weight))
            if weight is not whole:
                whole.release()
            if self._progress is not None:
                self._progress(self.bytes_read, self._num_bytes)
        return self._loaded[spec.source]

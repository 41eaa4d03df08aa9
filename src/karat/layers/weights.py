"""How a layer gets its weights: its constructor asks a `Take`, which lists the weights or loads them."""

from collections.abc import Callable, Mapping
from typing import Protocol

from karat.checkpoint.packed import PackedFile
from karat.checkpoint.slices import sliced
from karat.checkpoint.weights import Weight, WeightSpec
from karat.ops.api import Loaded
from karat.ops.executor import Executor

Take = Callable[[WeightSpec], Loaded]


class Prepare(Protocol):
    """A conversion of each weight between the file and the executor."""

    def __call__(self, weight: Weight) -> Weight: ...

    def stored_type(self, weight: Weight) -> str:
        """The stored type that the converted weight will have. Nothing is read."""


class AsStored:
    """No conversion."""

    def __call__(self, weight: Weight) -> Weight:
        return weight

    def stored_type(self, weight: Weight) -> str:
        return weight.dtype


AS_STORED = AsStored()


def stays_mapped(ops: Executor, prepare: Prepare, spec: WeightSpec, weight: Weight) -> bool:
    """Whether rows of a tensor are read from its file whenever they are needed, and nothing of it is loaded."""
    return spec.gathered and prepare.stored_type(weight) == weight.dtype and ops.gathers_mapped(weight)


class SpecCollector:
    """A `Take` that lists the weights of a model, in order of construction, each once. It loads nothing."""

    def __init__(self) -> None:
        self._by_source: dict[str, WeightSpec] = {}

    @property
    def specs(self) -> list[WeightSpec]:
        """The weights asked for so far."""
        return list(self._by_source.values())

    def __call__(self, spec: WeightSpec) -> Loaded:
        known = self._by_source.setdefault(spec.source, spec)
        assert known == spec, f"{spec.source} is asked for as {known} and as {spec}"
        return None


class WeightLoader:
    """A `Take` that loads each assigned weight into the executor once, even if several layers share it.

    Weights are loaded one at a time, each through `prepare`, so memory holds at most one weight twice. Only this rank's
    part of a weight is read. `bytes_read` counts the bytes taken from files, those of tables that stay mapped, too.
    `parts` are the loaded weights by spec.
    `progress` is called with the bytes that are loaded and the bytes of all weights. With `later`, the weights are
    complete when `finish` returns. Matrices that `packed` has are taken from there, and their files are not read.
    """

    def __init__(
        self,
        ops: Executor,
        weights: Mapping[str, Weight],
        prepare: Prepare,
        progress: Callable[[int, int], None] | None = None,
        *,
        later: bool = False,
        packed: PackedFile | None = None,
    ) -> None:
        self._ops = ops
        self._packed = packed
        self._later = later
        self._weights = weights
        self._prepare = prepare
        self._progress = progress
        self._num_bytes = sum({weight.name: weight.num_bytes for weight in weights.values()}.values())
        self._loaded: dict[str, Loaded] = {}
        self.parts: dict[WeightSpec, Loaded] = {}
        self.bytes_read = self._reported = 0

    def __call__(self, spec: WeightSpec) -> Loaded:
        if spec.source not in self._loaded:
            whole = self._weights[spec.source]
            weight = sliced(whole, spec)
            self.bytes_read += weight.num_bytes
            self._loaded[spec.source] = self.parts[spec] = self._load(spec, weight)
            if weight is not whole or whole.made is not None:
                whole.release()
            self._report()
        return self._loaded[spec.source]

    def _load(self, spec: WeightSpec, weight: Weight) -> Loaded:
        if stays_mapped(self._ops, self._prepare, spec, weight):
            return self._ops.load_mapped(weight)
        if self._packed is not None:
            stored_type = self._prepare.stored_type(weight)
            if (place := self._packed.find(spec.source, stored_type, weight.shape)) is not None:
                return self._ops.load_packed(stored_type, weight.shape, place)
        return self._ops.load(self._prepare(weight), later=self._later)

    def finish(self, is_busy: Callable[[], bool] | None = None) -> None:
        """Complete all weights. While `is_busy()` is true, one core is left to another thread."""
        while self._ops.pending_bytes:
            self._ops.load_pending(spares_core=is_busy is not None and is_busy())
            self._report()

    def _report(self) -> None:
        done = self.bytes_read - self._ops.pending_bytes
        if self._progress is not None and done > self._reported:
            self._reported = done
            self._progress(done, self._num_bytes)

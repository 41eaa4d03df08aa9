"""assign: gives every layer its weight, or raises one error that lists every mismatch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from karat.checkpoint.joins import Grouped, joins_of
from karat.checkpoint.mismatch import likely_reason
from karat.checkpoint.weights import Checkpoint, Weight, WeightSpec
from karat.checkpoint.wording import listed, shown
from karat.errors import CheckpointError

_COMPARED_BYTES = 1 << 20


def is_recomputed(name: str) -> bool:
    """Whether a tensor is computed from the config anyway: RoPE's inverse frequencies, which older files store."""
    return name.endswith(".rotary_emb.inv_freq")


def assign(
    specs: Sequence[WeightSpec],
    checkpoint: Checkpoint,
    *,
    tied: Mapping[str, str] = MappingProxyType({}),
    grouped: Sequence[Grouped] = (),
) -> dict[str, Weight]:
    """The weight of each spec, by `spec.source`. No weight is read, except both copies of a tied one.

    `tied` maps an alias to the source that config.json ties it to. The alias may be absent. If it is present, its type,
    shape and bytes must equal the source's. A spec that names an alias gets the source's weight. Specs whose tensors
    are stored as one get its rows (karat.checkpoint.joins); `grouped` are such tensors that only this model knows.
    Raises one CheckpointError that lists every missing, unexpected and misshapen tensor, with the likely reason.
    """
    sources = [spec.source for spec in specs]
    assert len(set(sources)) == len(sources), "two layers need the same tensor"
    assert set(tied.values()) <= set(sources), "a tie to a tensor that no layer needs"
    stored = checkpoint.weights
    joins = [*joins_of(specs, stored), *(join for join in grouped if join.spec.source in stored)]
    parts = {part.source for join in joins for part in join.parts}
    wanted = [*(spec for spec in specs if spec.source not in parts), *(spec for join in joins for spec in join.specs)]
    assigned: dict[str, Weight] = {}
    missing: list[WeightSpec] = []
    misshapen: list[str] = []
    for spec in wanted:
        weight = stored.get(tied.get(spec.source, spec.source))
        if weight is None:
            if spec.source not in tied:
                missing.append(spec)
        elif weight.shape not in (spec.stored or (spec.shape,)):
            wanted_shapes = " or ".join(str(list(shape)) for shape in spec.stored or (spec.shape,))
            misshapen.append(f"{spec.source} is {list(weight.shape)} in {weight.file.name}, expected {wanted_shapes}")
        else:
            assigned[spec.source] = replace(weight, shape=spec.shape) if spec.stored else weight
    expected = {*(spec.source for spec in wanted), *tied}
    unexpected = [name for name in stored if name not in expected and not is_recomputed(name)]
    if missing or unexpected or misshapen:
        raise CheckpointError(_describe(checkpoint, missing, unexpected, misshapen))
    for alias, source in tied.items():
        if alias in stored:
            _check_tie(stored[alias], stored[source])
    for join in joins:
        assigned |= join.parted(assigned)
    return {source: assigned[source] for source in sources}


def _check_tie(alias: Weight, source: Weight) -> None:
    equal = alias.dtype == source.dtype and alias.shape == source.shape
    for start in range(0, source.num_bytes if equal else 0, _COMPARED_BYTES):
        part = slice(start, start + _COMPARED_BYTES)
        equal = equal and np.array_equal(alias.data[part], source.data[part])
    if not equal:
        raise CheckpointError(
            f"{alias.file}: {alias.name} ({alias.dtype} {list(alias.shape)}) differs from {source.name} "
            f"({source.dtype} {list(source.shape)}), although config.json ties them: set tie_word_embeddings "
            f"to false if the model has a head of its own, else remove {alias.name} from the file"
        )


def _describe(
    checkpoint: Checkpoint, missing: Sequence[WeightSpec], unexpected: Sequence[str], misshapen: Sequence[str]
) -> str:
    """A line with the counts and the likely reason, then a line for each kind of fault."""
    stored = checkpoint.weights
    lists = {
        "missing": [f"{spec.source} {list(spec.shape)}" for spec in missing],
        "unexpected": [f"{shown(name)} {list(stored[name].shape)} in {stored[name].file.name}" for name in unexpected],
        "of another shape": misshapen,
    }
    counts = ", ".join(f"{len(faults)} {kind}" for kind, faults in lists.items() if faults)
    in_gguf = checkpoint.path.is_file()
    reason = likely_reason([spec.source for spec in missing], unexpected, bool(misshapen), in_gguf=in_gguf)
    details = [f"\n  {kind}: {listed(faults)}" for kind, faults in lists.items() if faults]
    announced = "metadata" if in_gguf else "config.json"
    summary = f"{checkpoint.path}: the tensors are not those of its {announced}: {counts}; {reason}"
    return "".join([summary, *details])

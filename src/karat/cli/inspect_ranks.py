"""The share of a model that each tensor-parallel rank would hold, for `karat inspect --tensor-parallel-size N`."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from karat.cli.terminal import bytes_text, columns

if TYPE_CHECKING:
    from karat.checkpoint import ModelCheckpoint

_LAYER = re.compile(r"\.\d+\.")


def ranks_of(checkpoint: "ModelCheckpoint", size: int) -> list[dict[str, Any]]:
    """One object for each rank, for JSON. An impossible degree is a UsageError that lists the possible ones.

    Heads are null where layers have different ones.
    """
    from karat.checkpoint.slices import part_bytes, part_shape
    from karat.kv.groups import bytes_per_token
    from karat.layers.attention import Attention
    from karat.models.cut_units import cut_units
    from karat.models.decoder import outline, rank_specs
    from karat.models.degrees import check_degree
    from karat.models.registry import find_weights, read_config
    from karat.ranks.group import PlannedRank

    config = read_config(checkpoint.config)
    weights = find_weights(config, checkpoint)
    units = cut_units(config, weights)
    check_degree(config, units, size)
    ranks = []
    for rank in range(size):
        planned = PlannedRank(rank, size)
        tensors: list[dict[str, Any]] = [
            {
                "name": spec.source,
                "dtype": weights[spec.source].dtype,
                "axis": spec.shard_axis if spec.pieces else None,
                "pieces": spec.pieces,
                "shape": part_shape(weights[spec.source], spec),
                "bytes": part_bytes(weights[spec.source], spec),
            }
            for spec in rank_specs(config, units, planned)
        ]
        part = outline(config, units, planned)
        mixers = [branch.mixer for layer in part.layers for branch in layer.branches]
        heads = {(mixer.heads, mixer.kv_heads) for mixer in mixers if isinstance(mixer, Attention)}
        own, own_kv = heads.pop() if len(heads) == 1 else (None, None)
        ranks.append(
            {
                "rank": rank,
                "heads": own,
                "kv_heads": own_kv and list(range(*own_kv)),
                "weight_bytes": sum(tensor["bytes"] for tensor in tensors),
                "replicated_bytes": sum(tensor["bytes"] for tensor in tensors if tensor["axis"] is None),
                "kv_bytes_per_token": {dtype: bytes_per_token(part.keeps, dtype) for dtype in ("float16", "float32")},
                "tensors": tensors,
            }
        )
    return ranks


def ranks_text(ranks: Sequence[dict[str, Any]], all_tensors: bool) -> str:
    """A line a tensor (or a line for all layers' tensors that are cut alike), a column a rank."""
    groups: dict[tuple[str, ...], int] = defaultdict(int)
    by_name: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for rank in ranks:
        for part in rank["tensors"]:
            by_name[part["name"]][rank["rank"]] = part
    for name, parts in by_name.items():  # of experts in ranges of ids not every rank has a part
        what = {None: "whole", 0: "rows", 1: "columns"}[next(iter(parts.values()))["axis"]]
        held = (_pieces(parts[rank["rank"]]) if rank["rank"] in parts else "none" for rank in ranks)
        key = (name if all_tensors else _LAYER.sub(".*.", name), what, *held)
        groups[key] += sum(part["bytes"] for part in parts.values())
    head = ("tensor", "cut", *(f"rank {rank['rank']}" for rank in ranks), "bytes in all")
    rows = [head, *((*key, bytes_text(total)) for key, total in groups.items())]
    if all(rank["heads"] for rank in ranks):
        rows.append(
            ("query heads", "", *(f"{start}–{stop - 1}" for start, stop in (rank["heads"] for rank in ranks)), "")
        )
        rows.append(("KV heads", "", *(", ".join(map(str, rank["kv_heads"])) for rank in ranks), ""))
    rows += [
        _totals("weights", [rank["weight_bytes"] for rank in ranks]),
        _totals("of these on every rank", [rank["replicated_bytes"] for rank in ranks]),
        _totals("16-bit KV cache of a token", [rank["kv_bytes_per_token"]["float16"] for rank in ranks]),
    ]
    return f"what each of {len(ranks)} ranks would hold\n\n{columns(rows)}\n"


def _totals(what: str, sizes: Sequence[int]) -> tuple[str, ...]:
    return (what, "", *map(bytes_text, sizes), bytes_text(sum(sizes)))


def _pieces(part: dict[str, Any]) -> str:
    return ", ".join(f"{start}–{stop - 1}" for start, stop in part["pieces"] or ()) or "all"

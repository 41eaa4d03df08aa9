"""A model run a layer at a time: memory holds the weights and results of one layer."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from karat.check.model.graph import Graph
from karat.check.record.executors import Steps, caches_of_one, joined, one_sequence
from karat.check.replay.forced import ForcedTap
from karat.check.trace.format import Array, TraceInfo, make_info
from karat.check.trace.selection import EVERYTHING
from karat.checkpoint.weights import Weight
from karat.config import FloatName, ModelConfig
from karat.errors import CapacityError
from karat.kv.groups import SharedKeys
from karat.layers.block import Block
from karat.layers.place import Place
from karat.layers.shards import CutUnits
from karat.layers.weights import AS_STORED, SpecCollector, WeightLoader
from karat.models.cut_units import cut_units, experts_by_columns
from karat.models.decoder import default_kv_dtype, embedding, end, end_names, layer, layer_inputs, outline
from karat.ops.api import Cache, Ops, Tensor
from karat.ops.contract import contract_of, integers_read
from karat.ops.executor import Executor
from karat.ops.tap import Tap
from karat.ranks.group import SINGLE

States = list[Tensor]  # hidden states, one entry a step


@dataclass(frozen=True, slots=True)
class RunSide:
    """What parts hand on beside hidden states: in this run, or where each op reads another engine's results.

    given: what layers get of the tokens besides, of each step; done: the layers that were computed.
    """

    caches: Sequence[Cache]  # by layer
    given: list[tuple[Tensor, ...] | None] = field(default_factory=list)
    done: set[int] = field(default_factory=set)


Compute = Callable[[Ops, States, RunSide], States]


@dataclass(frozen=True, slots=True)
class LayerwisePart:
    """A part of the graph that is computed at once: the embedding, a layer, or all after the layers."""

    layer: int | None
    names: tuple[str, ...]


def parts_of(graph: Graph) -> list[LayerwisePart]:
    """The nodes of a graph in order: embedding, each layer, the end."""
    grouped: list[tuple[int | None, list[str]]] = []
    for name, node in graph.nodes.items():
        if not grouped or grouped[-1][0] != node.layer:
            grouped.append((node.layer, []))
        grouped[-1][1].append(name)
    return [LayerwisePart(layer, tuple(names)) for layer, names in grouped]


class LayerwiseRun:
    """Karat's run over one text, every result recorded, in the parts of `parts_of`.

    The layers are the engine's own, on `ops`. Each is loaded, runs all `steps`, and is dropped before the next one is
    loaded. The bits are those of a whole run (karat.check.record.executors). logit_rows: the tokens whose logits are
    computed, ascending (None: as many of the last as fit). Raises CapacityError for a text beyond the model's context.
    """

    def __init__(
        self,
        config: ModelConfig,
        stored: Mapping[str, Weight],
        ops: Executor,
        steps: Steps,
        kv_dtype: FloatName | None = None,
        *,
        logit_rows: Sequence[int] | None = None,
    ) -> None:
        total = len(steps.prompt)
        if total > config.max_position_embeddings:
            raise CapacityError(
                f"{total} tokens: the model was made for {config.max_position_embeddings}; take a shorter prompt"
            )
        self._config, self._stored, self._ops, self._steps = config, stored, ops, steps
        kv_dtype = kv_dtype or default_kv_dtype(config, ops)
        types = {weight.dtype for weight in stored.values() if len(weight.shape) > 1}
        by_columns = experts_by_columns(cut_units(config, stored))
        rows = tuple(EVERYTHING.rows_for(total, config.vocab_size) if logit_rows is None else logit_rows)
        self._logit_tokens = set(rows)
        self._cache_dtype: FloatName = kv_dtype
        self._again: tuple[Compute, int | None] | None = None
        self._forced: RunSide | None = None
        self.info: TraceInfo = make_info(
            steps.prompt,
            steps=steps.cuts,
            dtype=ops.dtype,
            kv_dtype=kv_dtype,
            executor=f"karat {ops.executor}",
            activations=integers_read(types, ops.activations),
            numeric_contract=contract_of(config, types, by_columns, ops.activations),
            rows=dict.fromkeys(end_names(config), rows) if len(rows) < total else {},
        )

    def parts(self) -> Iterator[dict[str, Array]]:
        """The arrays of each part, by canonical name."""
        config, tap = self._config, Tap(self._ops)
        units = cut_units(config, self._stored)
        side = RunSide(self._caches(self._cache_dtype))
        model = outline(config, units)
        ropes = model.rope_tables(tap, len(self._steps.prompt))
        batches = [
            one_sequence(self._steps.prompt, start, stop, self._logit_tokens, model.keeps, step=step)
            for step, (start, stop) in enumerate(self._spans)
        ]
        steps = [tap.begin(batch) for batch in batches]
        embed, inputs = embedding(self._place(units), config), layer_inputs(self._place(units), config)

        def start(ops: Ops, _states: States, side: RunSide) -> States:
            states = [embed(ops, step) for step in steps]
            for x, step in zip(states, steps, strict=True):
                side.given.append(None if inputs is None else inputs(ops, x, step))
            return states

        states = yield from self._part(start, tap, [], side)
        for index in range(config.num_layers):
            block = layer(self._place(units), config, index)

            def through(ops: Ops, states: States, side: RunSide, block: Block = block, index: int = index) -> States:
                side.done.add(index)
                return [
                    block(ops, x, step, side.caches[index], ropes, each and each[index])
                    for x, step, each in zip(states, steps, side.given, strict=True)
                ]

            states = yield from self._part(through, tap, states, side, index)
            del block, through
        place = self._place(units)
        tied = config.tie_word_embeddings
        norm, head = end(place, config, embedding(place if tied else replace(place, take=SpecCollector()), config))

        def rest(ops: Ops, states: States, _side: RunSide) -> States:
            return [
                head(ops, norm(ops, ops.select_rows(x, step, name="model.selected")))
                for x, step, batch in zip(states, steps, batches, strict=True)
                if len(batch.logit_rows)
            ]

        yield from self._part(rest, tap, states, side)

    def forced(self, theirs: Mapping[str, Array], before: Array | None) -> dict[str, Array]:
        """The latest part once more, each op on the inputs of another engine (karat.check.replay.forced).

        theirs: that engine's results in this part, with the same rows of logits. before: its result of the part before
        [tokens, hidden]; None for the embedding. The cache of this run rounds nothing. Without results of an earlier
        part that this one reads there are none of it.
        """
        assert self._again is not None, "there is no part"
        compute, index = self._again
        side = self._forced = self._forced or RunSide(self._caches(self._ops.dtype))
        keep = None if index is None else outline(self._config).keeps[index]
        if (index is not None and not side.given) or (isinstance(keep, SharedKeys) and keep.layer not in side.done):
            return {}
        tap = ForcedTap(self._ops, theirs)
        dtype = np.dtype(self._ops.dtype)
        compute(tap, [] if before is None else [before[a:b].astype(dtype) for a, b in self._spans], side)
        return self._taken(tap)

    def _part(
        self, compute: Compute, tap: Tap, states: States, side: RunSide, layer: int | None = None
    ) -> Generator[dict[str, Array], None, States]:
        states = compute(tap, states, side)
        self._again = compute, layer
        yield self._taken(tap)
        self._again = None
        return states

    def _caches(self, dtype: FloatName) -> Sequence[Cache]:
        return caches_of_one(self._ops, outline(self._config).keeps, dtype, len(self._steps.prompt))

    @property
    def _spans(self) -> list[tuple[int, int]]:
        """Each step's first token, and the token after its last one."""
        cuts = self._steps.cuts
        return list(zip(cuts, [*cuts[1:], len(self._steps.prompt)], strict=True))

    def _place(self, units: CutUnits) -> Place:
        """The root of a model; layers built from it load their weights anew."""
        return Place(WeightLoader(self._ops, self._stored, AS_STORED), "", units, SINGLE)

    def _taken(self, tap: Tap) -> dict[str, Array]:
        arrays = joined(tap, EVERYTHING, len(self._steps.prompt))
        tap.records.clear()
        return {name: np.asarray(array) for name, array in arrays.items()}

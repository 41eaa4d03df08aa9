"""A model run a layer at a time: the weights and results of one layer are in memory, and no more."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from karat.check.graph import Graph
from karat.check.record import BLOCK_SIZE, Steps, joined, one_sequence
from karat.check.selection import EVERYTHING
from karat.check.trace import Array, TraceInfo, make_info
from karat.checkpoint.weights import Weight
from karat.config import FloatName, ModelConfig
from karat.dist.group import SINGLE
from karat.errors import CapacityError
from karat.layers.norm import RMSNorm
from karat.layers.vocabulary import ParallelLMHead, VocabParallelEmbedding
from karat.layers.weights import AS_STORED, SpecCollector, Take, WeightLoader
from karat.models.decoder import DecoderLayer
from karat.models.units import units_of
from karat.ops.api import CacheSpec, Ops, Tensor
from karat.ops.tap import Tap


@dataclass(frozen=True, slots=True)
class Part:
    """What is computed at once: the embedding, a layer, or all behind the layers. `names` are nodes of the graph."""

    layer: int | None
    names: tuple[str, ...]


def parts_of(graph: Graph) -> list[Part]:
    """The nodes of a graph in order: embedding, each layer, the end."""
    grouped: list[tuple[int | None, list[str]]] = []
    for name, node in graph.nodes.items():
        if not grouped or grouped[-1][0] != node.layer:
            grouped.append((node.layer, []))
        grouped[-1][1].append(name)
    return [Part(layer, tuple(names)) for layer, names in grouped]


class LayerwiseRun:
    """Karat's run over one text, every result recorded, in the parts of `parts_of`.

    The layers are the engine's own, on `ops`; each is loaded when its turn comes, runs all `steps`, and is dropped. The
    bits are those of a whole run (karat.check.record). logit_rows: the tokens, ascending, whose logits are computed
    (None: as many of the last as fit). Raises CapacityError for a text that is too long.
    """

    def __init__(
        self, config: ModelConfig, stored: Mapping[str, Weight], ops: Ops, steps: Steps,
        kv_dtype: FloatName | None = None, *, logit_rows: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        total = len(steps.prompt)
        if total > config.max_position_embeddings:
            raise CapacityError(
                f"{total} tokens: the model was made for {config.max_position_embeddings}; take a shorter prompt"
            )
        self._config, self._stored, self._ops, self._steps = config, stored, ops, steps
        kv_dtype = kv_dtype or ops.default_kv_dtype
        rows = tuple(EVERYTHING.rows_for(total, config.vocab_size) if logit_rows is None else logit_rows)
        self._logit_tokens = set(rows)
        self._cache_dtype: FloatName = kv_dtype
        self.info: TraceInfo = make_info(
            steps.prompt, steps=steps.cuts, dtype=ops.dtype, kv_dtype=kv_dtype, executor=f"karat {ops.executor}",
            rows=dict.fromkeys(("model.selected", "model.norm", "lm_head"), rows) if len(rows) < total else {},
        )  # fmt: skip

    def parts(self) -> Iterator[dict[str, Array]]:
        """The arrays of each part, by canonical name."""
        config, tap = self._config, Tap(self._ops)
        units = units_of(config, self._stored)
        total = len(self._steps.prompt)
        cache = tap.new_cache(CacheSpec(
            num_layers=config.num_layers, num_blocks=-(-total // BLOCK_SIZE), block_size=BLOCK_SIZE,
            num_kv_heads=config.num_kv_heads, head_dim=config.head_dim, dtype=self._cache_dtype,
        ))  # fmt: skip
        rope = tap.rope_table(config.rope, head_dim=config.head_dim, num_positions=total)
        ends = [*self._steps.cuts[1:], total]
        batches = [
            one_sequence(self._steps.prompt, start, stop, self._logit_tokens, always_last=False)
            for start, stop in zip(self._steps.cuts, ends, strict=True)
        ]
        steps = [tap.begin(batch) for batch in batches]
        embed = self._embedding(self._take())
        states: list[Tensor] = [embed(tap, step) for step in steps]
        del embed
        yield self._taken(tap)
        for index in range(config.num_layers):
            layer = DecoderLayer(self._take(), f"model.layers.{index}", config, index, units, SINGLE)
            states = [layer(tap, x, step, cache, rope) for x, step in zip(states, steps, strict=True)]
            del layer
            yield self._taken(tap)
        take = self._take()
        tied = config.tie_word_embeddings
        embed = self._embedding(take if tied else SpecCollector())
        norm = RMSNorm(take, "model.norm", config.hidden_size, config.rms_norm_eps)
        head = ParallelLMHead(take, embed, config.vocab_size, config.hidden_size, tied=tied, group=SINGLE)
        for x, step, batch in zip(states, steps, batches, strict=True):
            if len(batch.logit_rows):
                head(tap, norm(tap, tap.select_rows(x, step, name="model.selected")))
        yield self._taken(tap)

    def _embedding(self, take: Take) -> VocabParallelEmbedding:
        config = self._config
        return VocabParallelEmbedding(take, "model.embed_tokens", config.vocab_size, config.hidden_size, SINGLE)

    def _take(self) -> WeightLoader:
        return WeightLoader(self._ops, self._stored, AS_STORED)

    def _taken(self, tap: Tap) -> dict[str, Array]:
        arrays = joined(tap, EVERYTHING, len(self._steps.prompt))
        tap.records.clear()
        return {name: np.asarray(array) for name, array in arrays.items()}

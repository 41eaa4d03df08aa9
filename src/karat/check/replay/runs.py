"""Runs: results of a trace computed again from the recorded results before them, with mistakes or without."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Callable, Collection, Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.nodes import changed, evaluate
from karat.check.mistakes.parts import PART, in_part
from karat.check.model.byte_lru import ByteLRU
from karat.check.model.context import Context, Weights
from karat.check.model.graph import Edits, Graph, Node
from karat.check.model.integers import on_other_side
from karat.check.model.tokens import Tokens
from karat.check.replay.align import Recordings, ResultShape
from karat.check.replay.finding import F64, Array
from karat.check.replay.noise import PRECISION, Noise
from karat.check.replay.segments import Segments
from karat.check.trace.format import Trace
from karat.errors import TraceError
from karat.models.decoder import end_names

_Through = Callable[[Array], Array]  # a name, as an annotation that a run's inner function evaluates takes time

_BUDGET = 1 << 28  # bytes of recorded results, and of others, that are kept
# How far off a number may be when a narrower cache or an integer rounds it, in units of its row's largest value.
_STRAY = 16


class Runs:
    """A trace beside the graph of its model. Raises TraceError if they do not fit each other."""

    def __init__(self, graph: Graph, weights: Weights, trace: Trace, *, seed: int = 0) -> None:
        self.graph = graph
        self.trace = trace
        self.tokens = Tokens.of(trace.info)
        vocab = graph.config.vocab_size
        if int(self.tokens.ids.max()) >= vocab:
            raise TraceError(f"token id {self.tokens.ids.max()}: the model has {vocab}; is this the trace's model?")
        self.unit = PRECISION[trace.info.dtype]
        head_rows = trace.rows_of("lm_head")
        kv_dtype = trace.info.kv_dtype
        narrow = kv_dtype is not None and PRECISION[kv_dtype] > self.unit
        self.context = Context(weights, self.tokens, head_rows, kv_dtype if narrow else None, trace.info.integers)
        loose = _STRAY * self.unit if narrow or trace.info.integers else 0.0
        self.exact = self.context.exact()  # for whole runs, in which rounding to integers is noise
        self.noise = Noise(trace.info, self.context, seed)
        rounding = self.noise.rounded if self.noise.moves_what_experts_read else None
        # One of them rounds every number near a tie up, the other one down.
        self._noisy = (
            self.context.disturbed(loose=loose, rounding=rounding),
            self.context.disturbed(jitter=2.0**-22, loose=-loose, rounding=rounding),
        )
        self.rounded = self.exact if rounding is None else self.exact.disturbed(rounding=rounding)  # for noisy runs
        places = {
            name: ResultShape(
                node,
                self.domain(node),
                self.features(node),
                graph.shape(node).num_heads if node.kind in ("scores", "softmax") else 0,
            )
            for name, node in graph.nodes.items()
        }
        self.recorded = Recordings(trace, self.tokens, places, _BUDGET)
        self._segments = Segments(graph, self.tokens, head_rows, self.recorded)
        self._finite: dict[str, bool] = {}
        self._right: dict[tuple[str, ...], dict[str, Array]] = {}
        self._computed: ByteLRU[str, Array] = ByteLRU(_BUDGET)  # results that are read and not recorded

    def domain(self, node: Node) -> NDArray[np.int64]:
        """The tokens that a node has rows for: from the selection of rows on, those with logits."""
        if node.name in end_names(self.graph.config):
            return self.context.logit_rows
        return np.arange(self.tokens.num_tokens)

    def features(self, node: Node) -> tuple[int, ...]:
        """A row's shape."""
        config, weights = self.graph.config, self.context.weights
        match node.kind:
            case "part":
                shape_of_part: tuple[int, ...] = node.params["shapes"][node.params["number"]]
                return shape_of_part
            case "delta_rule":
                return (prod(self.features(self.graph.nodes[node.inputs[2]])),)
            case "linear":
                size = weights.shape(node.params["weight"])[0]
                head_dim = node.params.get("head_dim")
                return (size // head_dim, head_dim) if head_dim else (size,)
            case "mix":
                shape = self.graph.shape(node)
                return (shape.num_heads * shape.head_dim,)
            case "chosen_ids":
                return (node.params["routing"].num_chosen,)
            case "chosen_weights":
                return self.features(self.graph.nodes[node.inputs[1]])
            case "embedding":
                return (weights.shape(node.params["weight"])[1],)
            case "add" if node.layer is not None:
                return (config.hidden_size,)
            case "scores" | "softmax":  # of which nobody asks
                return (config.hidden_size,)
            case _:
                return self.features(self.graph.nodes[node.inputs[0]])

    def segment(self, name: str) -> tuple[str, ...]:
        """The nodes between the recorded results and the recorded rows of `name`, in order, `name` last.

        A result of which only some tokens or heads are recorded is among them if its other rows are needed.
        """
        return self._segments.of(name)

    def is_partial(self, name: str) -> bool:
        """Whether a recorded result has only some of its tokens or heads."""
        return self._segments.is_partial(name)

    def run(self, names: tuple[str, ...], edits: Edits | None = None) -> Array:
        """The last of `names`, computed in float64 from recorded results, under `edits`.

        Results that the edits do not change are computed once and kept.
        """
        if not edits or len(names) == 1:
            return self._run(names, edits or {}, F64, 0.0, self.context)
        if names not in self._right:
            self._right = {names: {}}
            self._run(names, {}, F64, 0.0, self.context, kept=self._right[names])
        return self._run(names, edits, F64, 0.0, self.context, reuse=self._right[names])

    def _run(
        self,
        names: tuple[str, ...],
        edits: Edits,
        dtype: np.dtype[np.floating],
        unit: float,
        context: Context,
        *,
        kept: dict[str, Array] | None = None,
        reuse: Mapping[str, Array] | None = None,
        right: Mapping[str, Array] | None = None,
    ) -> Array:
        """The last of `names`, with noise of `unit`. `right`: what is near a tie there goes to the tie's other side."""
        local: dict[str, Array] = {} if kept is None else kept
        inside = set(names)
        result: Array = np.zeros(0)
        touched: set[str] = set()
        for name in names:
            node, edit = self.graph.nodes[name], edits.get(name, {})
            if name in edits or not touched.isdisjoint(node.inputs):
                touched.add(name)
            elif reuse is not None:
                local[name] = result = reuse[name]
                continue
            read = edit.get("inputs", node.inputs)
            for source in (*node.inputs, *read) if PART in edit else read:
                if source not in local:
                    assert source not in inside, f"{source} is used before it is computed"
                    local[source] = self._moved(source, self._input(source).astype(dtype, copy=False), unit)

            def compute(node: Node, through: _Through = _same) -> Array:
                return self._of_inputs(node, through, local, inside, dtype, unit, context, right or {})

            if PART in edit:
                result = in_part(node, edit, self.tokens, self.domain(node), compute)
            else:
                result = compute(changed(node, edit))
            if name != names[-1] and (recorded := self.recorded.get(name)) is not None:
                # Only some rows are recorded: these are used.
                known = self._moved(name, recorded.values.astype(dtype, copy=False), unit)
                result = known if recorded.present is None else np.where(recorded.present, known, result)
            local[name] = result
        return result

    def _moved(self, name: str, values: Array, unit: float) -> Array:
        """Values of a result with noise; ids have none."""
        return values if self.graph.nodes[name].kind == "chosen_ids" else self.noise.moved(values, unit)

    def _of_inputs(
        self,
        node: Node,
        through: _Through,
        local: Mapping[str, Array],
        inside: Collection[str],
        dtype: np.dtype[np.floating],
        unit: float,
        context: Context,
        right: Mapping[str, Array],
    ) -> Array:
        """A node's result of inputs that go through a function."""
        inputs, here = [through(local[source]) for source in node.inputs], context
        if node.kind == "linear" and self.context.reads_integers(node.params["weight"]):
            source, *others = node.inputs
            if not others and source not in inside and self.recorded.get(source) is not None:
                # The engine made integers of these very numbers.
                inputs, here = [through(self._input(source).astype(dtype, copy=False))], self.context
            elif source in right and self.trace.info.integers:
                exact, noisy = (through(x).reshape(len(x), -1) for x in (right[source], local[source]))
                by = _STRAY * self.unit * np.abs(exact).max(axis=-1, keepdims=True, initial=0)
                read = on_other_side(exact, by, noisy, self.trace.info.integers)
                inputs, here = [read.astype(dtype, copy=False)], self.exact
        elif unit:
            inputs = self.noise.as_rounded(node, inputs)
        result = evaluate(node, inputs, here, dtype)
        if unit:
            result = self.noise.with_gelu_of_library(node, inputs, self.noise.disturbed(node, inputs, result))
        return result

    def _input(self, name: str) -> Array:
        """A result that a segment reads. If only some of its rows are recorded, no other row is needed."""
        recorded = self.recorded.get(name)
        return self.value(name) if recorded is None else recorded.values

    def value(self, name: str) -> Array:
        """The result `name`: as recorded, and computed where it is not recorded."""
        recorded = self.recorded.get(name)
        if recorded is not None and recorded.present is None:
            return recorded.values
        return self._computed.get(name, lambda: self._completed(name))

    def _completed(self, name: str) -> Array:
        """A result that the trace lacks, wholly or in some rows, computed from the recorded results before it."""
        result, recorded = self.run(self._segments.of(name, missing=True)), self.recorded.get(name)
        if recorded is None or recorded.present is None:
            return result
        return np.where(recorded.present, recorded.values, result)

    def is_finite(self, source: str) -> bool:
        """Whether a result, as a segment reads it, has neither NaN nor infinity, masks aside."""
        if source not in self._finite:
            values = self._input(source)
            masked = self.graph.nodes[source].kind == "scores"
            self._finite[source] = bool((np.isfinite(values) | (masked & np.isneginf(values))).all())
        return self._finite[source]


def _same(x: Array) -> Array:
    return x

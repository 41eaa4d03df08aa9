"""What families of one file differ in is named where it is wrong: whose RoPE, its factors, the window, norms of heads,
what q is multiplied by.

The wrong engine is an executor with one wrong function, or with another RoPE table.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from karat.check.diagnosis.diagnose import Diagnoser
from karat.check.model.graph import Graph, build_graph
from karat.check.model.weights import CheckpointWeights
from karat.check.record.executors import Steps, record_model
from karat.check.trace.format import Trace
from karat.config import RopeConfig
from karat.models.registry import build, read_config
from karat.ops.api import KvWrite, L2Norm, Op, PagedAttention, PartNorm, RmsNorm, Scale
from karat.ops.reference import ReferenceOps
from tests.support import mistakes
from tests.support.parallel import config_of

PROMPT = tuple(np.random.default_rng(3).integers(0, 64, 48).tolist())  # longer than the windows
LONG = {
    "partial_rotary_factor": 0.5,
    "original_max_position_embeddings": 64,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.4], "long_factor": [1.0, 2.0, 5.0, 9.0]},
}


class Other(ReferenceOps):
    """Computes what `change` makes of each op, and with what `rope` makes of each RoPE."""

    def __init__(
        self,
        change: Callable[[Op[Any]], Op[Any]] = lambda op: op,
        rope: Callable[[RopeConfig], RopeConfig] = lambda rope: rope,
    ) -> None:
        super().__init__("float32")
        self._change, self._rope = change, rope

    def apply(self, op: Op[Any]) -> Any:
        return super().apply(self._change(op))

    def rope_table(self, rope: RopeConfig, *, head_dim: int, num_positions: int, growth: float = 0.0) -> Any:
        return super().rope_table(self._rope(rope), head_dim=head_dim, num_positions=num_positions, growth=growth)


def of_phi3() -> tuple[Graph, CheckpointWeights]:
    config = read_config(config_of("phi3", **(mistakes.SIZES | LONG)))
    return build_graph(config), mistakes.weights_of(config, "F32")


def classes(model: tuple[Graph, CheckpointWeights], ops: ReferenceOps) -> set[frozenset[str]]:
    graph, weights = model
    files = SimpleNamespace(path="", weights=weights.stored)
    trace: Trace = record_model(
        build(graph.config, ops, files, num_positions=len(PROMPT)), Steps(PROMPT), kv_dtype="float32"
    )
    diagnosis = Diagnoser(graph, weights, trace).run()
    assert not diagnosis.unexplained
    return {classes for named in diagnosis.named for classes in named.classes}


def window(by: int) -> Callable[[Op[Any]], Op[Any]]:
    return lambda op: replace(op, window=op.window and op.window + by) if isinstance(op, PagedAttention) else op


@pytest.mark.slow
@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("family", ["exaone4", "muse_glimmer_text", "olmo3"])
def test_a_window_that_is_one_off(family: str, by: int) -> None:
    assert classes(mistakes.model_of(family), Other(window(by))) == {frozenset({"mask-window"})}


@pytest.mark.slow
def test_long_factors_in_a_short_context() -> None:
    model = of_phi3()
    (long,) = model[0].config.other_ropes
    assert classes(model, Other(rope=lambda _: long)) == {frozenset({"rope-theta"})}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["exaone4", "olmo3"])
def test_norms_of_q_and_k_over_other_numbers(family: str) -> None:
    """Head by head where all heads are normalised together, and the reverse."""
    graph, weights = mistakes.model_of(family)
    head_dim = graph.config.shape(0).head_dim

    class Heads(ReferenceOps):
        def apply(self, op: Op[Any]) -> Any:
            if not isinstance(op, RmsNorm | PartNorm) or not op.label.endswith(("q_norm", "k_norm")):
                return super().apply(op)
            size = head_dim if op.weight.size != head_dim else op.x.size // len(op.x)
            x = op.x.reshape(len(op.x), -1, size)
            normed = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(op.eps))
            return (normed.reshape(len(x), -1, op.weight.size) * op.weight).reshape(op.x.shape)

    assert classes((graph, weights), Heads("float32")) == {frozenset({"qk-norm-heads"})}


@pytest.mark.slow
@pytest.mark.parametrize("part", ["q_normed", "k_normed"])
def test_norms_without_weights_over_all_heads(part: str) -> None:
    class Together(ReferenceOps):
        def apply(self, op: Op[Any]) -> Any:
            if not isinstance(op, L2Norm) or not op.name.endswith(part):
                return super().apply(op)
            heads = op.x.shape[1]
            square = np.mean(np.sum(op.x * op.x, axis=-1, keepdims=True), axis=1, keepdims=True)
            assert heads > 1
            return op.x / np.sqrt(square + np.float32(op.eps)) * np.float32(op.factor)

    assert classes(mistakes.model_of("muse_glimmer_text"), Together("float32")) == {frozenset({"qk-norm-heads"})}


@pytest.mark.slow
@pytest.mark.parametrize("part", ["q_normed", "embed_tokens_normed"])
def test_a_norm_without_weights_that_is_left_out(part: str) -> None:
    def left_out(op: Op[Any]) -> Op[Any]:
        if not isinstance(op, L2Norm) or not op.name.endswith(part):
            return op
        return Scale(op.x, 1.0, name=op.name)

    bug = "norm-missing" if part.startswith("embed") else "qk-norm-missing"
    assert classes(mistakes.model_of("muse_glimmer_text"), Other(left_out)) == {frozenset({bug})}


@pytest.mark.slow
@pytest.mark.parametrize(("times", "part"), [(-1, "q"), (1, "q"), (1, "k")])
def test_what_q_is_multiplied_by(times: int, part: str) -> None:
    """Left out, multiplied twice, and of k, too."""
    graph, weights = mistakes.model_of("muse_glimmer_text")
    factor = graph.config.qk_scale_factor

    def change(op: Op[Any]) -> Op[Any]:
        is_it = isinstance(op, L2Norm) and op.name.endswith(f"{part}_normed")
        return replace(op, factor=op.factor * factor**times) if is_it else op

    assert factor != 1 and classes((graph, weights), Other(change)) == {frozenset({"multiplier"})}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["smollm3", "exaone4", "muse_glimmer_text"])
def test_rope_in_a_layer_without(family: str) -> None:
    graph, weights = mistakes.model_of(family)
    plain = [index for index, shape in enumerate(graph.config.shapes) if shape.rope is None]
    rope = next(shape.rope for shape in graph.config.shapes if shape.rope is not None)
    table = ReferenceOps("float32").rope_table(rope, head_dim=graph.config.shape(0).head_dim, num_positions=64)

    class Turns(ReferenceOps):
        def apply(self, op: Op[Any]) -> Any:
            if isinstance(op, PagedAttention) and op.cache.layer in plain:
                op = replace(op, q=self.rope(op.q, table, op.step, name="q"))
            if isinstance(op, KvWrite) and op.cache.layer in plain:
                op = replace(op, k=self.rope(op.k, table, op.step, name="k"))
            return super().apply(op)

    assert plain and classes((graph, weights), Turns("float32")) == {frozenset({"rope-extra"})}

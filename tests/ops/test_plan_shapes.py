"""Attentions of several shapes and registers of several kinds of rows in one plan: each is what it is alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.machine.extension import native
from karat.ops.native import supported_isas, unavailable_reason

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

BLOCK = 16
CONTEXTS = (530, 120, 12)  # after both steps
NEW = ((529, 20, 9), (1, 100, 3))  # tokens of each sequence in a step: prompts; one in splits, others in tiles
MAX_TOKENS = sum(NEW[0])
TABLE = 34  # blocks of a sequence
SLOTS = len(CONTEXTS) * TABLE * BLOCK


@dataclass(frozen=True)
class Shape:
    """An attention and its cache. Query head h reads KV head (first + h) // group."""

    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    group: int = 2
    first: int = 0
    window: int = 0
    dtype: str = "float16"
    slots: int = SLOTS

    def record(self, plan: Any) -> tuple[list[int], int]:
        """The inputs q, k, v, and what attention makes of them."""
        kv = self.kv_heads * self.head_dim
        inputs = [plan.input(width) for width in (self.heads * self.head_dim, kv, kv)]
        _, cache = native().cache(self.dtype, [0, 1], self.slots, self.kv_heads, self.head_dim)
        plan.kv_write(*inputs[1:], cache)
        scale = self.head_dim**-0.5
        return inputs, plan.attention(inputs[0], cache, scale, self.window, self.group, self.first, None, 0.0)


def batch(step: int, wanted: Sequence[int] = ()) -> NDArray[np.int32]:
    """The numbers of a step: sequences whose blocks lie one behind the other."""
    positions, slots, starts = [], [], [0]
    contexts = [CONTEXTS[seq] - NEW[1][seq] * (1 - step) for seq in range(len(CONTEXTS))]
    for seq, context in enumerate(contexts):
        new = range(context - NEW[step][seq], context)
        positions += new
        slots += (position + seq * TABLE * BLOCK for position in new)
        starts.append(starts[-1] + len(new))
    return ForwardBatch.of(
        BLOCK,
        token_ids=[0] * starts[-1],
        positions=positions,
        query_starts=starts,
        context_lens=contexts,
        logit_rows=wanted,
        slots=[slots],
        block_tables=[np.arange(len(CONTEXTS) * TABLE).reshape(-1, TABLE)],
    ).flat


def results(isa: str, threads: int, shapes: Sequence[Shape]) -> list[NDArray[np.float32]]:
    """The results of each shape in one plan, of both steps. Inputs are random and depend on the shape alone."""
    plan = native().Plan(isa, threads)
    recorded = [shape.record(plan) for shape in shapes]
    plan.finish(MAX_TOKENS, 0, len(CONTEXTS), max(CONTEXTS), [out for _, out in recorded])
    found: list[list[NDArray[np.float32]]] = [[] for _ in shapes]
    for step, new in enumerate(NEW):
        for shape, (inputs, _) in zip(shapes, recorded, strict=True):
            rng = np.random.default_rng([step, shape.heads, shape.kv_heads, shape.head_dim])
            widths = shape.heads, shape.kv_heads, shape.kv_heads
            for register, heads in zip(inputs, widths, strict=True):
                plan.write(register, rng.standard_normal((sum(new), heads * shape.head_dim)).astype(np.float32))
        plan.run(batch(step))
        for of_shape, (_, out) in zip(found, recorded, strict=True):
            of_shape.append(plan.read(out).copy())
    return [np.concatenate(of_shape) for of_shape in found]


OTHERS = {
    "heads": Shape(heads=6, group=3),
    "a cut group": Shape(heads=4, kv_heads=2, group=3, first=1),
    "KV heads": Shape(heads=4, kv_heads=4, group=1),
    "head_dim": Shape(head_dim=40),
    "all": Shape(heads=12, kv_heads=1, head_dim=64, group=12, dtype="bfloat16", window=300),
    "the window": Shape(window=100),
    "slots and type of the cache": Shape(dtype="float32", slots=SLOTS + 1000),
}


@pytest.mark.drawn(1, each=("difference", "threads"))
@pytest.mark.parametrize("difference", OTHERS)
@pytest.mark.parametrize("threads", [1, 3])
def test_attentions_of_two_shapes_have_the_bits_of_each_alone(difference: str, threads: int) -> None:
    first, other = Shape(), OTHERS[difference]
    for isa in supported_isas():
        alone = [results(isa, threads, [shape])[0] for shape in (first, other)]
        together = results(isa, threads, [first, other, first, other])
        for i, found in enumerate(together):
            np.testing.assert_array_equal(found, alone[i % 2], err_msg=f"{isa}, attention {i}")
            assert np.isfinite(found).all() and found.any(axis=1).all()


@pytest.mark.parametrize("order", [1, -1])
def test_every_cache_has_its_own_slots(order: int) -> None:
    """A step that one of two caches cannot hold is refused, whichever was recorded first."""
    with pytest.raises(ValueError, match="a slot outside the cache"):
        results("generic", 1, [Shape(), Shape(slots=SLOTS // 2)][::order])


def test_scores_are_those_of_a_shape() -> None:
    plan = native().Plan("generic", 1)
    Shape().record(plan)
    plan.finish(MAX_TOKENS, 0, len(CONTEXTS), max(CONTEXTS), [])
    scores = np.zeros((Shape().heads + 1, NEW[0][1], NEW[0][1]), np.float32)
    with pytest.raises(ValueError, match="scores of another shape"):
        plan.run(batch(0), scores, 1)
    plan.run(batch(0), scores[1:], 1)


@pytest.mark.parametrize(("rows", "number"), [("tokens", MAX_TOKENS), ("sequences", 3), ("wanted", 2)])
def test_a_register_has_rows_of_its_kind(rows: str, number: int) -> None:
    plan = native().Plan("generic", 2)
    x, y = plan.input(5, rows), plan.input(5, rows)
    out = plan.add(x, y)
    plan.finish(MAX_TOKENS, 2, len(CONTEXTS), max(CONTEXTS), [x, y, out])
    values = np.arange(10 * number, dtype=np.float32).reshape(2, number, 5)
    plan.write(x, values[0])
    plan.write(y, values[1])
    plan.run(batch(0, [3, 5]))
    np.testing.assert_array_equal(plan.read(out), values[0] + values[1])
    with pytest.raises(ValueError, match="rows that do not fit"):
        plan.write(x, np.zeros((number + 1, 5), np.float32))


def test_rows_of_two_kinds_do_not_meet() -> None:
    plan = native().Plan("generic", 1)
    with pytest.raises(ValueError, match="a sum of different shapes"):
        plan.add(plan.input(5), plan.input(5, "sequences"))
    with pytest.raises(ValueError, match="a gate of 1 for rows of 5"):
        plan.sigmoid_mul(plan.input(5), plan.input(1, "sequences"))
    with pytest.raises(ValueError, match="unknown name 'pages'"):
        plan.input(5, "pages")


def test_rows_as_integers_are_no_floats() -> None:
    plan = native().Plan("generic", 1)
    x = plan.input(256)
    matrix = native().pack("Q4_K", 16, 256, np.zeros(16 * 144, np.uint8), 1)
    (out,) = plan.linear(x, [matrix], [None], [256])
    plan.finish(4, 0, 1, 1, [out])
    assert plan.op_names == ["quantise", "linear"]
    integers = out + 1  # the register between the two
    with pytest.raises(ValueError, match="a register of other elements"):
        plan.read(integers)
    with pytest.raises(ValueError, match="a register of other elements"):
        plan.write(integers, np.zeros((1, 256), np.float32))

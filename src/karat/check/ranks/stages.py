"""The stages of `karat check --tensor-parallel-size`: shards, logits and trace, against one process."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from karat.check.model.checked import CheckedModel
from karat.check.ranks.parallel import Blame, first_difference, record_ranks, shard_faults, shards_of
from karat.check.ranks.rank import HeldPart
from karat.check.record.executors import Steps, record_model
from karat.check.session.same_bits import digest
from karat.check.trace.selection import Selection
from karat.check.trace.writing import write_trace
from karat.config import FloatName
from karat.engine.engine import Engine
from karat.engine.loading import open_runner
from karat.engine.parallel import ParallelModel, load_command
from karat.engine.sizes import EngineConfig
from karat.errors import ExecutorError, KaratError, RankError
from karat.kv.blocks import BLOCK_SIZE
from karat.models.cut_units import cut_units
from karat.models.degrees import check_degree
from karat.models.registry import Model, build
from karat.ops import registry
from karat.ops.api import Ops
from karat.text.placeholder import placeholder_tokenizer


@dataclass(frozen=True, slots=True)
class ParallelStage:
    """The result of one stage: verdict "exact", "numerics", "bug" or "skipped", and what was compared, in lines."""

    name: str
    verdict: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """`model` on `size` ranks, over a text of `num_tokens` random tokens.

    trace: the file for the traces of all ranks, if any. module: the Python module that the ranks' processes run.
    """

    model: CheckedModel
    size: int
    num_tokens: int
    executor: str = "auto"
    dtype: FloatName = "float32"
    kv_dtype: FloatName | None = None
    threads: int | None = None
    trace: Path | None = None
    seed: int = 0
    module: str = "karat.check.ranks.rank"


def check_parallel(plan: ParallelPlan) -> Iterator[ParallelStage]:
    """The stages, one by one: shards, logits, trace. Raises what loading raises, and UsageError for a degree that the
    model does not allow."""
    model, size = plan.model, plan.size
    check_degree(model.config, cut_units(model.config, model.stored), size)
    ops = registry.create(plan.executor, plan.dtype, plan.threads)
    kv_dtype = plan.kv_dtype or ops.default_kv_dtype
    rng = np.random.default_rng(plan.seed)
    tokens = [int(i) for i in rng.integers(0, model.config.vocab_size, plan.num_tokens)]
    control = build(model.config, ops, model.checkpoint, num_positions=plan.num_tokens)
    ranks = ParallelModel(size, plan.module)
    try:
        load = load_command(
            model.checkpoint,
            _sizes(plan, plan.num_tokens),
            executor=ops.executor,
            dtype=plan.dtype,
            threads=plan.threads,
            kv_dtype=kv_dtype,
        )
        all_rows = replace(load.limits, num_logit_rows=plan.num_tokens)  # a trace has them
        try:
            ranks.load(msgspec.structs.replace(load, limits=all_rows), model.config)
        except ExecutorError as fault:
            yield _failed("shards", fault)
            return
        held = shards_of(ranks)
        faults = shard_faults(held, model.stored)
        yield _shards(plan, ranks, held, faults)
        wrong = {fault.name.rpartition(".")[0] for fault in faults if fault.kind == "loading"}
        stages: dict[str, Callable[[], ParallelStage]] = {
            "logits": lambda: _logits(plan, control, ranks, tokens, kv_dtype),
            "trace": lambda: _trace(plan, control, ranks, tokens, kv_dtype, wrong),
        }
        for name, run in stages.items():
            try:
                yield run()
            except (ExecutorError, RankError) as fault:
                yield _failed(name, fault)
                return
    finally:
        ranks.close()


def _sizes(plan: ParallelPlan, chunk: int) -> EngineConfig:
    return EngineConfig(
        vocab_size=plan.model.config.vocab_size,
        max_model_len=plan.num_tokens,
        num_blocks=-(-plan.num_tokens // BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_num_seqs=1,
        max_num_batched_tokens=chunk,
    )


def _failed(stage: str, fault: KaratError) -> ParallelStage:
    return ParallelStage(stage, "bug", (f"layer: the ranks fail where one process does not: {fault}",))


def _shards(
    plan: ParallelPlan, ranks: ParallelModel, held: Sequence[Sequence[HeldPart]], faults: Sequence[Blame]
) -> ParallelStage:
    total = sum(weight.num_bytes for weight in {w.name: w for w in plan.model.stored.values()}.values())
    read = ", ".join(f"{100 * holding.bytes_read / total:.1f} %" for holding in ranks.holdings)
    lines = [
        f"{sum(map(len, held))} parts of {len(plan.model.stored)} tensors gathered; ranks read {read} of the bytes"
    ]
    lines += [f"{fault.kind}: {fault.name}: {fault.what}" for fault in faults]
    return ParallelStage("shards", "bug" if faults else "exact", tuple(lines))


def _logits(
    plan: ParallelPlan, control: Model, ranks: ParallelModel, tokens: Sequence[int], kv_dtype: FloatName
) -> ParallelStage:
    """Digests of all logits, computed at once and in chunks. The reference executor may differ by rounding."""
    lines, verdicts = [], set()
    config = control.config
    for chunk in dict.fromkeys((plan.num_tokens, min(7, plan.num_tokens))):
        sizes = _sizes(plan, chunk)
        tokenizer = placeholder_tokenizer(config.vocab_size)  # ids are computed, and no text is made of them
        run = open_runner(control, kv_dtype, sizes.num_blocks, sizes.step_limits)
        want = _compute(Engine(run, tokenizer, sizes), tokens)
        got = _compute(Engine(ranks, tokenizer, sizes), tokens)
        verdict, how = _judged(control.ops, want, got)
        verdicts.add(verdict)
        lines.append(
            f"chunks of {chunk}: 1 process {digest([want])[:16]}, {plan.size} ranks {digest([got])[:16]}: {how}"
        )
    return ParallelStage("logits", overall(verdicts), tuple(lines))


def overall(verdicts: Collection[str]) -> str:
    """The worst of several verdicts; "skipped" only if all are."""
    return next(verdict for verdict in ("bug", "numerics", "exact", "skipped") if verdict in verdicts)


def _judged(ops: Ops, want: NDArray[np.floating], got: NDArray[np.floating]) -> tuple[str, str]:
    if bad := next((side for side, x in (("1 process", want), ("ranks", got)) if not np.isfinite(x).all()), None):
        return "bug", f"NaN or infinity in the logits of {bad}"
    if want.tobytes() == got.tobytes():
        return "exact", "the same bits"
    off = float(np.abs(want - got).max() / np.abs(want).max())
    if ops.executor != "native" and off < 1e-4:
        return "numerics", f"within roundings ({off:.1e}); only the native executor promises bits"
    return "bug", f"DIFFERENT by up to {off:.1e} of the largest"


def _compute(engine: Engine, tokens: Sequence[int]) -> NDArray[np.floating]:
    logits = np.empty((len(tokens), engine.config.vocab_size), np.float32)
    reader = engine.add_logits(tuple(tokens), logits)
    while not reader.done:
        engine.step()
    if reader.error:
        raise reader.error
    return logits


def _trace(
    plan: ParallelPlan,
    control: Model,
    ranks: ParallelModel,
    tokens: Sequence[int],
    kv_dtype: FloatName,
    wrong: Collection[str],
) -> ParallelStage:
    """Every result op by op, on one process and on all ranks; the first that differs is reported.

    wrong: names of layers whose weights differ from the checkpoint's on some rank.
    """
    steps = Steps.chunked(tokens, max(1, (plan.num_tokens + 1) // 2))
    alone = record_model(control, steps, selection=Selection(attention=False), kv_dtype=kv_dtype)
    trace = record_ranks(ranks, steps, kv_dtype)
    lines = []
    if plan.trace is not None:
        write_trace(plan.trace, trace)
        lines.append(f"the traces of all ranks are in {plan.trace}")
    if control.ops.executor != "native":
        return ParallelStage("trace", "skipped", (*lines, "not compared: only the native executor promises bits"))
    blame = first_difference(plan.model.graph, alone, trace, _biases(plan.model))
    if blame is None:
        lines.append(f"{len(alone.arrays)} results, op by op: the same bits")
        return ParallelStage("trace", "exact", tuple(lines))
    kind = "loading" if blame.name in wrong else blame.kind
    lines.append(f"{kind}: the first result that differs is {blame.name}, {blame.what}")
    return ParallelStage("trace", "bug", tuple(lines))


def _biases(model: CheckedModel) -> dict[str, Any]:
    """Biases of row-parallel layers, by the layers' names."""
    ends = (".o_proj.bias", ".down_proj.bias")
    return {
        name.removesuffix(".bias"): weight.to_array(np.dtype(np.float32))
        for name, weight in model.stored.items()
        if name.endswith(ends)
    }

"""`karat check --tensor-parallel-size`: ranks are loaded beside one process, and the stages run one after the other."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np

from karat.check.ranks.parallel import shard_faults, shards_of
from karat.check.ranks.session import ParallelPlan, ParallelSession, ParallelStage
from karat.check.ranks.verdicts import STAGES
from karat.engine.ranks.rank_model import ParallelModel, load_command
from karat.errors import ExecutorError, KaratError, RankError
from karat.models.cut_units import cut_units
from karat.models.decoder import default_kv_dtype
from karat.models.degrees import check_degree
from karat.models.registry import build
from karat.ops import registry


def check_parallel(plan: ParallelPlan) -> Iterator[ParallelStage]:
    """The stages, one by one: shards, logits, trace. Raises what loading raises, and UsageError for a degree that the
    model does not allow."""
    model, size = plan.model, plan.size
    check_degree(model.config, cut_units(model.config, model.stored), size)
    ops = registry.create(plan.executor, plan.dtype, plan.options)
    kv_dtype = plan.kv_dtype or default_kv_dtype(model.config, ops)
    rng = np.random.default_rng(plan.seed)
    tokens = [int(i) for i in rng.integers(0, model.config.vocab_size, plan.num_tokens)]
    control = build(model.config, ops, model.checkpoint, num_positions=plan.num_tokens)
    ranks = ParallelModel(size, plan.module)
    try:
        load = load_command(
            model.checkpoint,
            plan.sizes(plan.num_tokens),
            executor=ops.executor,
            dtype=plan.dtype,
            options=plan.options,
            kv_dtype=kv_dtype,
        )
        all_rows = replace(load.limits, num_logit_rows=plan.num_tokens)  # a trace has them
        try:
            ranks.load(msgspec.structs.replace(load, limits=all_rows), model.config)
        except ExecutorError as fault:
            yield _failed("shards", fault)
            return
        held = shards_of(ranks)
        session = ParallelSession(
            plan=plan,
            control=control,
            ranks=ranks,
            tokens=tokens,
            kv_dtype=kv_dtype,
            held=held,
            faults=shard_faults(held, model.stored),
        )
        for name, run in STAGES.items():
            try:
                yield run(session)
            except (ExecutorError, RankError) as fault:
                yield _failed(name, fault)
                return
    finally:
        ranks.close()


def _failed(stage: str, fault: KaratError) -> ParallelStage:
    return ParallelStage(stage, "bug", (f"layer: the ranks fail where one process does not: {fault}",))

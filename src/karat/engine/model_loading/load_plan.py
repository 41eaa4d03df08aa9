"""plan_load: what an LLM loads, and whether it fits into memory, decided before any weight is read."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from karat.checkpoint import ModelCheckpoint
from karat.config import FLOAT_BYTES, Activations, FloatName, ModelConfig
from karat.engine.engine_config import EngineConfig
from karat.engine.model_loading.cache_size import (
    num_cache_blocks,
    num_snapshots,
    require_room,
    warn_of_paging,
)
from karat.engine.model_loading.llm_options import Options
from karat.engine.model_loading.packing import plan_packing, reads_packed
from karat.engine.model_running import Preparation, open_runner
from karat.errors import UsageError
from karat.kv.blocks import BLOCK_SIZE
from karat.kv.cache import cache_specs, state_specs
from karat.kv.groups import Keep, groups_of, windows_of
from karat.layers.weights import stays_mapped
from karat.models.cut_units import cut_units, experts_by_columns
from karat.models.decoder import default_kv_dtype, outline, weight_specs
from karat.models.degrees import check_degree
from karat.models.registry import Model, build, find_weights
from karat.ops import registry
from karat.ops.contract import activations_read, contract_of, integers_read
from karat.ops.executor import Executor, Runner
from karat.ops.rope_table import table_bytes
from karat.ranks.group import PlannedRank

if TYPE_CHECKING:
    from karat.engine.ranks.rank_model import ParallelModel

_log = logging.getLogger(__name__)
MAX_STEP_MS = 200  # the default of the native executor
Progress = Callable[[int, int], None]  # bytes of weights that are loaded, and of all of them


@dataclass(frozen=True, slots=True, eq=False)
class LoadPlan:
    """A model that fits into memory, with its executor and the sizes of its KV cache and steps."""

    checkpoint: ModelCheckpoint
    config: ModelConfig
    ops: Executor
    options: Options
    kv_dtype: FloatName
    sizes: EngineConfig
    num_bytes: int  # of the weights in their files
    memory_bytes: int  # that all takes: weights, tables, caches, states and steps
    types: frozenset[str]  # of the matrices, as they are computed with
    by_columns: bool  # leaves of experts are columns

    @property
    def activations(self) -> Activations:
        """What the model's linear layers read."""
        return activations_read(self.types, self.ops.activations)

    @property
    def contracts(self) -> Mapping[Activations, int]:
        """The numeric contract by activations that the loaded weights can be run with; empty if there is no choice.

        The native executor packs weights in blocks alike for all of them. A rank has no plan beside its own.
        """
        read = [name for name in get_args(Activations) if integers_read(self.types, name)]
        if not read or not self.ops.traits.chooses_activations or self.options.tensor_parallel_size > 1:
            return {}
        return {name: contract_of(self.config, self.types, self.by_columns, name) for name in read}

    def model(self, progress: Progress, meanwhile: Callable[[], bool]) -> Model:
        """The model, loaded into this process. `meanwhile` is called while its weights are loading."""
        prepare, packed = Preparation(self.options.quantize), None
        if (folder := self.options.packed_cache) is not None and reads_packed(self.options, self.ops):
            arguments = (Path(folder), self.config, self.checkpoint, self.ops, prepare)
            packed = plan_packing(*arguments, quantize=self.options.quantize).written(progress)
        return build(
            self.config,
            self.ops,
            self.checkpoint,
            num_positions=self.sizes.max_model_len,
            prepare=prepare,
            progress=progress,
            meanwhile=meanwhile,
            packed=packed,
        )

    def runner(self, model: Model) -> Runner:
        """The loaded model as the engine runs it."""
        return self._open(model, self.sizes, guard=self.options.guard)

    def beside(self, model: Model, activations: Activations, num_tokens: int) -> tuple[Runner, EngineConfig]:
        """The loaded model with other activations (of `contracts`), and a KV cache for one sequence of so many tokens.

        Raises CapacityError for lack of memory.
        """
        sizes = replace(
            self.sizes,
            max_model_len=num_tokens,
            num_blocks=-(-num_tokens // self.sizes.block_size) if self.sizes.windows else 0,
            max_num_seqs=1,
            enable_prefix_caching=False,
            max_snapshots=0,
        )
        ops = registry.create(self.ops.executor, self.ops.dtype, {**self.ops.options, "activations": activations})
        return self._open(model.on(ops), sizes), sizes

    def _open(self, model: Model, sizes: EngineConfig, *, guard: bool = False) -> Runner:
        states = sizes.num_state_slots
        return open_runner(model, self.kv_dtype, sizes.group_blocks, sizes.step_limits, num_states=states, guard=guard)

    def ranks(self, progress: Progress) -> "ParallelModel":
        """The model, loaded into ranks, each its part. Bytes that several ranks read count once in `progress`."""
        from karat.engine.ranks.rank_model import ParallelModel, load_command  # not needed by a single process

        options = self.options
        command = load_command(
            self.checkpoint,
            self.sizes,
            executor=self.ops.executor,
            dtype=options.compute_dtype,
            options=options.executor_options,
            kv_dtype=self.kv_dtype,
            quantize=options.quantize,
            guard=options.guard,
        )
        ranks = ParallelModel(options.tensor_parallel_size)
        try:
            ranks.load(command, self.config, lambda done: progress(min(done, self.num_bytes), self.num_bytes))
        except BaseException:
            ranks.close()
            raise
        return ranks


def plan_load(
    checkpoint: ModelCheckpoint,
    config: ModelConfig,
    ops: Executor,
    options: Options,
    available_bytes: int | None = None,
) -> LoadPlan:
    """The plan for loading a model into so much memory (None: what is available here). Nothing is loaded.

    Raises CheckpointError if the weights do not fit the config, CapacityError for lack of memory, UsageError for a
    context beyond the model's and for a number of ranks that it cannot have.
    """
    longest = config.max_position_embeddings
    max_model_len = config.usual_context if options.max_model_len is None else options.max_model_len
    if options.max_model_len is None and max_model_len < longest:
        _log.warning(
            "the context is %d tokens: for longer ones, up to %d, RoPE has other factors, which then hold for short "
            "texts too; max_model_len (--max-model-len) asks for them",
            max_model_len,
            longest,
        )
    if max_model_len > longest:
        raise UsageError(
            f"max_model_len={max_model_len}: the model was made for {longest} tokens, and longer contexts give "
            "meaningless answers; lower it (--max-model-len), or scale RoPE for more, as by --rope-scaling yarn and "
            "--rope-factor 4, or LLM(rope_scaling='yarn', rope_factor=4)"
        )
    kv_dtype, num_ranks = options.kv_dtype or default_kv_dtype(config, ops), options.tensor_parallel_size
    if options.kv_dtype is None and kv_dtype != ops.default_kv_dtype:
        _log.warning(
            "the KV cache is %s: values of this kind of model do not fit %s; kv_dtype (--kv-dtype) chooses another",
            kv_dtype,
            ops.default_kv_dtype,
        )
    weights = find_weights(config, checkpoint)
    prepare = Preparation(options.quantize)
    units = cut_units(config, weights, prepare.stored_type)
    check_degree(config, units, num_ranks)
    each_once = {weight.name: weight for weight in weights.values()}.values()
    specs = {spec.source: spec for spec in weight_specs(config)}
    loaded = [weights[name] for name, spec in specs.items() if not stays_mapped(ops, prepare, spec, weights[name])]
    weight_bytes = sum(ops.bytes_of(prepare.stored_type(weight), weight.shape) for weight in loaded)
    if available_bytes is None:
        available_bytes = ops.available_bytes()
    if reads_packed(options, ops):
        warn_of_paging(weight_bytes, available_bytes)
        weight_bytes = min(weight_bytes, available_bytes // 2)  # pages of files, which the system may take back
    elif options.packed_cache is not None:
        _log.warning("packed_cache has no effect: only one process on the native executor reads packed files")
    require_room(weight_bytes, available_bytes)
    ranks = [outline(config, units, PlannedRank(rank, num_ranks)) for rank in range(num_ranks)]
    keeps = [rank.keeps for rank in ranks]
    of_layers = [[group.layers for group in groups_of(kept)] for kept in keeps]
    assert of_layers == [of_layers[0]] * num_ranks, "ranks have other cache groups"
    rope_dims = sum(rotation.head_dim for rank in ranks for rotation in rank.rotations)
    rope_bytes = table_bytes(rope_dims, max_model_len, FLOAT_BYTES[options.compute_dtype])
    step_bytes = ops.step_bytes(set(config.shapes), num_seqs=options.max_num_seqs, context=max_model_len)
    sizes = EngineConfig(
        vocab_size=config.vocab_size,
        max_model_len=max_model_len,
        num_blocks=1,  # as many as there is memory for, below
        block_size=BLOCK_SIZE,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        enable_prefix_caching=options.enable_prefix_caching,
        max_step_ms=_max_step_ms(ops, options),
        key_work=_key_work(config),
        overlaps_steps=ops.traits.overlaps and options.tensor_parallel_size == 1,
        windows=windows_of(ranks[0].keeps),
        **_states(keeps, ops, options, max(0, available_bytes - weight_bytes - rope_bytes - step_bytes)),
    )

    def cache_bytes(num_blocks: int) -> int:
        counts = replace(sizes, num_blocks=num_blocks).group_blocks
        return sum(ops.cache_bytes(spec) for kept in keeps for spec in cache_specs(kept, kv_dtype, counts))

    num_blocks = num_cache_blocks(
        cache_bytes,
        kv_dtype,
        block_size=BLOCK_SIZE,
        max_model_len=max_model_len,
        max_num_seqs=options.max_num_seqs,
        num_bytes=options.kv_cache_bytes,
        num_blocks=options.num_blocks,
        available_bytes=available_bytes,
        weight_bytes=weight_bytes,
        rope_bytes=rope_bytes,
        step_bytes=step_bytes,
        state_bytes=sizes.all_state_bytes,
        num_groups=len(sizes.windows),
    )
    sizes = replace(sizes, num_blocks=num_blocks)
    return LoadPlan(
        checkpoint,
        config,
        ops,
        options,
        kv_dtype,
        sizes,
        num_bytes=sum(weight.num_bytes for weight in each_once),
        memory_bytes=weight_bytes
        + rope_bytes
        + step_bytes
        + sizes.all_state_bytes
        + (cache_bytes(num_blocks) if sizes.windows else 0),
        types=frozenset(prepare.stored_type(weight) for weight in each_once if len(weight.shape) > 1),
        by_columns=experts_by_columns(units),
    )


def _states(keeps: Sequence[Sequence[Keep]], ops: Executor, options: Options, available: int) -> dict[str, int]:
    """The sizes of states of a model whose ranks keep these. CapacityError for lack of memory."""
    state_bytes = sum(ops.state_bytes(spec) for kept in keeps for spec in state_specs(kept, 1))
    if state_bytes == 0:
        if options.state_cache_bytes is not None:
            _log.warning("state_cache_bytes has no effect: no layer of this model keeps a state")
        return {}
    num_kept = num_snapshots(
        state_bytes,
        max_num_seqs=options.max_num_seqs,
        num_bytes=options.state_cache_bytes if options.enable_prefix_caching else 0,
        available=available,
    )
    return {"state_bytes": state_bytes, "max_snapshots": num_kept}


def _max_step_ms(ops: Executor, options: Options) -> int:
    """How long a step may take: it is bounded only where the cut of a prompt into chunks changes no bit."""
    if options.max_step_ms is not None:
        return options.max_step_ms
    return MAX_STEP_MS if ops.traits.chunk_invariant else 0


def _key_work(config: ModelConfig) -> float:
    """Multiply-adds of attention for one key that a token sees, as a fraction of those of the token's linear layers."""
    attention = sum(2 * shape.num_heads * shape.head_dim for shape in config.shapes)
    specs = [spec for spec in weight_specs(config) if spec.source.startswith("model.layers.")]
    return attention / sum(prod(spec.shape) for spec in specs if len(spec.shape) == 2)

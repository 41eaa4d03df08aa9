"""Traces of Karat's own executors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.check.model.weights import digest
from karat.check.trace.format import Array, Trace, make_info
from karat.check.trace.selection import EVERYTHING, Selection, padded
from karat.checkpoint.weights import Checkpoint
from karat.config import FloatName, ModelConfig
from karat.errors import CapacityError
from karat.kv.blocks import BLOCK_SIZE
from karat.kv.cache import new_caches
from karat.kv.groups import Keep, State, groups_of
from karat.models.decoder import default_kv_dtype, end_names
from karat.models.registry import Model, build, find_weights
from karat.ops.contract import contract_of, integers_read
from karat.ops.executor import Executor
from karat.ops.tap import Tap


@dataclass(frozen=True, slots=True)
class Steps:
    """How a text is computed: `prompt` in steps that begin at tokens `cuts`, then `decode` tokens, chosen greedily."""

    prompt: tuple[int, ...]
    cuts: tuple[int, ...] = (0,)
    decode: int = 0

    @classmethod
    def chunked(cls, prompt: Sequence[int], chunk: int | None, decode: int = 0) -> "Steps":
        """The prompt in chunks of at most `chunk` tokens (None: at once)."""
        return cls(tuple(prompt), tuple(range(0, len(prompt), chunk or len(prompt))), decode)

    @property
    def total(self) -> int:
        return len(self.prompt) + self.decode

    def stop_after(self, start: int) -> int:
        """The token after the last one of the step that begins at token `start`."""
        later = [cut for cut in self.cuts if cut > start]
        return min(later) if later else len(self.prompt) if start < len(self.prompt) else start + 1


def record(
    config: ModelConfig,
    checkpoint: Checkpoint,
    ops: Executor,
    steps: Steps,
    *,
    selection: Selection = EVERYTHING,
    kv_dtype: FloatName | None = None,
    with_digest: bool = True,
) -> Trace:
    """Build a model on `ops`, run it and record it. Raises what building raises, CapacityError and UsageError."""
    total = steps.total
    if total > config.max_position_embeddings:
        raise CapacityError(
            f"{total} tokens: the model was made for {config.max_position_embeddings}; take a shorter prompt or decode "
            "fewer"
        )
    model = build(config, ops, checkpoint, num_positions=total)
    trace = record_model(model, steps, selection=selection, kv_dtype=kv_dtype)
    if not with_digest:
        return trace
    info = replace(trace.info, model=str(checkpoint.path), digest=digest(find_weights(config, checkpoint)))
    return Trace(info, trace.arrays)


def record_model(
    model: Model, steps: Steps, *, selection: Selection = EVERYTHING, kv_dtype: FloatName | None = None
) -> Trace:
    """Run a loaded model on a tap of its executor, and record one sequence."""
    config, inner = model.config, model.ops
    selection.check(config.num_layers, max(shape.num_heads for shape in config.shapes))
    tap = Tap(inner, keep=selection.keeps)
    kv_dtype = kv_dtype or default_kv_dtype(config, inner)
    total = steps.total
    caches = caches_of_one(tap, model.keeps, kv_dtype, total)
    tapped = model.on(tap)
    ids = list(steps.prompt)
    logit_tokens = set(selection.rows_for(total, config.vocab_size))
    starts: list[int] = []
    logits: NDArray[np.floating] = np.zeros(0)
    done = 0
    while done < total:
        if done >= len(ids):
            ids.append(int(np.argmax(logits[-1])))
        stop = steps.stop_after(done)
        batch = one_sequence(ids, done, stop, logit_tokens, model.keeps, step=len(starts), always_last=steps.decode > 0)
        logits = np.array(tap.read(tapped.forward(tap.begin(batch), caches)))
        starts.append(done)
        done = stop
    rows = tuple(sorted(logit_tokens | ({s - 1 for s in [*starts[1:], total]} if steps.decode else set())))
    arrays = joined(tap, selection, total)
    _add_rope(arrays, model, total)
    with_rows = {name: rows for name in end_names(model.config) if len(rows) < total}
    heads = (
        {}
        if selection.heads is None
        else {name: selection.heads for name in arrays if name.endswith((".scores", ".weights"))}
    )
    info = make_info(
        ids,
        steps=tuple(starts),
        dtype=inner.dtype,
        kv_dtype=kv_dtype,
        executor=f"karat {inner.executor}",
        activations=integers_read(model.types, inner.activations),
        numeric_contract=contract_of(model.config, model.types, model.by_columns, inner.activations),
        rows=with_rows,
        heads=heads,
        generated=tuple(ids[len(steps.prompt) :]) or None,
        sampling={"temperature": 0} if steps.decode else None,
    )
    return Trace(info, arrays)


def caches_of_one(ops: Executor, keeps: Sequence[Keep], dtype: FloatName, num_tokens: int) -> tuple[Any, ...]:
    """What layers keep of one sequence, for `one_sequence`."""
    return new_caches(ops, keeps, dtype, -(-num_tokens // BLOCK_SIZE), num_states=2)


def one_sequence(
    ids: Sequence[int],
    start: int,
    stop: int,
    logit_tokens: set[int],
    keeps: Sequence[Keep],
    *,
    step: int = 0,
    always_last: bool = False,
) -> ForwardBatch:
    """The batch of tokens start … stop - 1 of one sequence. Block i of the sequence is block i of every cache group.

    `step` is the number of steps before it, which write two slots of states in turn.
    """
    positions, num_groups = range(start, stop), len(groups_of(keeps))
    has_states = any(isinstance(keep, State) for keep in keeps)
    return ForwardBatch.of(
        BLOCK_SIZE,
        token_ids=ids[start:stop],
        positions=positions,
        query_starts=[0, stop - start],
        context_lens=[stop],
        logit_rows=[p - start for p in positions if p in logit_tokens or (always_last and p == stop - 1)],
        slots=[positions] * num_groups,
        block_tables=[[range(-(-stop // BLOCK_SIZE))]] * num_groups,
        state_reads=[(step - 1) % 2 if has_states and step else -1],
        state_writes=[step % 2 if has_states else -1],
    )


def joined(tap: Tap, selection: Selection, context: int) -> dict[str, Array]:
    """One array for each name: the rows of all steps in order; scores and weights have keys by absolute position."""
    arrays = {}
    for name, parts in tap.records.items():
        if name.endswith((".scores", ".weights")):
            joined = padded(parts, context, -np.inf if name.endswith("scores") else 0.0)
            arrays[name] = joined if selection.heads is None else joined[list(selection.heads)]
        else:
            values = np.concatenate(parts)
            arrays[name] = values.astype(np.float32) if values.dtype == np.int32 else values  # ids of experts
    return arrays


def _add_rope(arrays: dict[str, Array], model: Model, num_tokens: int) -> None:
    """The table of RoPE, if all layers share one: radians per position, and cosine and sine at each token."""
    from karat.ops.rope_table import cos_sin_table, inverse_frequencies

    tables = {(rotation.rope, rotation.head_dim) for rotation in model.rotations}
    if len(tables) != 1:
        return
    ((rope, head_dim),) = tables
    table = cos_sin_table(rope, head_dim=head_dim, num_positions=num_tokens, dtype=np.dtype(np.float32))
    arrays["model.rotary_emb.inv_freq"] = inverse_frequencies(rope, head_dim)
    arrays["model.rotary_emb.cos"], arrays["model.rotary_emb.sin"] = table.cos, table.sin

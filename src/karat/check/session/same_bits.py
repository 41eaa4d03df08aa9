"""The same bits: a model's logits under every setting that must not change them, and the digest of each."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.session.interruptible import interruptible
from karat.checkpoint import ModelCheckpoint
from karat.config import FloatName, ModelConfig
from karat.engine.choosing.logits_readers import LogitsReader
from karat.engine.engine import Engine
from karat.engine.engine_config import EngineConfig
from karat.engine.model_running import open_runner
from karat.engine.ranks.rank_model import ParallelModel, load_command
from karat.errors import UsageError
from karat.kv.blocks import BLOCK_SIZE
from karat.kv.groups import bytes_of_state, windows_of
from karat.models.cut_units import cut_units
from karat.models.decoder import default_kv_dtype, outline
from karat.models.degrees import working_degrees
from karat.models.registry import Model, build, find_weights, read_config
from karat.ops.executor import Executor
from karat.ops.native import supported_isas, unavailable_reason
from karat.ops.registry import CPU, create, device_of, numerics_of
from karat.ops.tap import Tap
from karat.text import Tokenizer
from karat.text.placeholder import placeholder_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to compute the logits of some texts.

    chunk         tokens that a step takes at most
    together      all texts in one batch, or one after the other
    order         the texts' places in the queue
    share         find the blocks of each text's first half in the cache, from an earlier run
    preempt       take every sequence's blocks away once, midway, so that it starts anew
    tap           run op by op, recording every result, instead of a recorded plan
    options       of the executor
    ranks         processes that share the model
    """

    name: str
    options: Mapping[str, Any]
    chunk: int = 512
    together: bool = True
    order: tuple[int, ...] | None = None
    share: bool = False
    preempt: bool = False
    tap: bool = False
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting and the digest of all its logits. same: the digest is the first setting's. finite: all logits are."""

    setting: Setting
    digest: str
    same: bool
    finite: bool = True

    @property
    def is_right(self) -> bool:
        """The same bits, and numbers."""
        return self.same and self.finite

    @property
    def word(self) -> str:
        return "not finite" if not self.finite else "same" if self.same else "DIFFERENT"


def settings_for(ops: Executor, num_texts: int) -> list[Setting]:
    """The first setting, then every change of it that must not change a bit."""
    device = device_of(ops.executor)
    where = "whole prompts" if device == CPU else f"on {device}"
    first = Setting(name=f"{where}, all together", options=ops.options)
    rows = [first]
    rows += [replace(first, name=f"chunks of {n}", chunk=n) for n in (1, 7, 64)]
    rows.append(replace(first, name="one text at a time", together=False))
    rows.append(replace(first, name="texts in reverse order", order=tuple(reversed(range(num_texts)))))
    rows.append(replace(first, name="first halves found in the cache", share=True))
    rows.append(replace(first, name="preempted and recomputed", preempt=True, chunk=64))
    rows.append(replace(first, name="op by op, every result recorded", tap=True))
    others: dict[str, Mapping[str, Any]] = {
        f"{n} thread{'s' * (n > 1)}": {"threads": n} for n in (1, 2, 3) if "threads" in ops.options
    }
    others |= {f"kernels for {isa}": {"isa": isa} for isa in supported_isas() if isa != ops.options.get("isa", isa)}
    return rows + [replace(first, name=name, options={**ops.options, **other}) for name, other in others.items()]


def invariance_of(
    checkpoint: ModelCheckpoint,
    *,
    num_tokens: int,
    executor: str = "auto",
    dtype: FloatName = "float32",
    kv_dtype: FloatName | None = None,
    options: Mapping[str, Any] = {},
    seed: int = 0,
) -> Iterator[SettingRow]:
    """The table for a model, on texts of random tokens: one of `num_tokens`, one of a third of it, one of one token.

    `executor` and `options` are as in karat.ops.registry.create. Raises UsageError for an executor that does not
    promise the same bits.
    """
    config = read_config(checkpoint.config)
    ops = create(executor, dtype, options)
    if not ops.traits.chunk_invariant:
        why = f"; {reason}" if executor == "auto" and (reason := unavailable_reason()) else ""
        raise UsageError(f"--executor {ops.executor}: only the native executor and GPUs promise the same bits{why}")
    model, kv_dtype = (
        build(config, ops, checkpoint, num_positions=num_tokens),
        kv_dtype or default_kv_dtype(config, ops),
    )
    rng = np.random.default_rng(seed)
    texts = [rng.integers(0, config.vocab_size, n).tolist() for n in (num_tokens, max(1, num_tokens // 3), 1)]
    tokenizer = placeholder_tokenizer(config.vocab_size)  # ids are computed, and no text is made of them
    expected = ""
    for row in invariance(model, tokenizer, texts, kv_dtype=kv_dtype):
        expected = expected or row.digest
        yield row
    for setting in _on_devices(ops, config.num_layers):
        name = numerics_of(ops.executor) if setting.options["device"] == CPU else ops.executor
        elsewhere = build(config, create(name, dtype, setting.options), checkpoint, num_positions=num_tokens)
        logits = logits_under(setting, elsewhere, tokenizer, texts, kv_dtype)
        yield _row(setting, logits, expected)
    for size in working_degrees(config, cut_units(config, find_weights(config, checkpoint)))[1:]:
        alone = {**ops.options, "threads": 1}
        setting = Setting(name=f"{size} processes, chunks of 64", options=alone, chunk=64, ranks=size)
        logits = logits_on_ranks(setting, ops, checkpoint, tokenizer, texts, kv_dtype)
        yield _row(setting, logits, expected)


def _on_devices(ops: Executor, num_layers: int) -> list[Setting]:
    """Of a GPU: the same on the CPU, and half of the layers on each."""
    if device_of(ops.executor) == CPU:
        return []
    width, half = {"activations": ops.activations}, num_layers // 2
    mixed = Setting(name=f"{half} of {num_layers} layers on the CPU", options={**ops.options, "host_layers": half})
    return [Setting(name="on the CPU", options={**width, "device": CPU}), *([mixed] if half else [])]


def invariance(
    model: Model, tokenizer: Tokenizer, texts: Sequence[Sequence[int]], *, kv_dtype: FloatName | None = None
) -> Iterator[SettingRow]:
    """The rows of the table, one by one; all must equal the first. The model's executor promises the same bits."""
    ops = model.ops
    assert isinstance(ops, Executor) and ops.traits.chunk_invariant, "an executor that promises the same bits"
    kv_dtype = kv_dtype or default_kv_dtype(model.config, ops)
    expected = None
    for setting in settings_for(ops, len(texts)):
        row = _row(setting, logits_under(setting, model, tokenizer, texts, kv_dtype), expected)
        expected = expected or row.digest
        yield row


def _row(setting: Setting, logits: Sequence[NDArray[np.floating]], expected: str | None) -> SettingRow:
    """expected: the first setting's digest; None: this is the first."""
    found = digest(logits)
    return SettingRow(setting, found, expected in (None, found), all(bool(np.isfinite(part).all()) for part in logits))


def digest(logits: Sequence[NDArray[np.floating]]) -> str:
    """SHA-256 over the bits of all logits, in order."""
    total = hashlib.sha256()
    for part in logits:
        total.update(np.ascontiguousarray(part, "<f4").data)
    return total.hexdigest()


def logits_under(
    setting: Setting, model: Model, tokenizer: Tokenizer, texts: Sequence[Sequence[int]], kv_dtype: FloatName
) -> list[NDArray[np.floating]]:
    """Logits [tokens, vocab] of each text, in the order of `texts` under any setting."""
    config = model.config
    ops = create(model.ops.executor, model.ops.dtype, setting.options)
    if setting.tap:
        ops = Tap(ops, keep=lambda name: not name.endswith((".scores", ".weights", ".state_norm")))
    sizes = _sizes(config, setting, texts)
    states = sizes.num_state_slots
    run = open_runner(model.on(ops), kv_dtype, sizes.group_blocks, sizes.step_limits, num_states=states)
    engine = Engine(run, tokenizer, sizes)
    logits = _empty(config.vocab_size, texts)
    readers: dict[int, LogitsReader] = {}
    for index in setting.order or range(len(texts)):
        readers[index] = engine.add_logits(tuple(texts[index]), logits[index])
        if not setting.together:
            _finish(engine, [readers[index]], setting)
    _finish(engine, list(readers.values()), setting)
    if setting.share:
        for index in readers:
            again = engine.add_logits(tuple(texts[index]), logits[index])
            again.sequence.num_read = len(texts[index]) // 2  # rows that are not computed again
            _finish(engine, [again], setting)
    return logits


def logits_on_ranks(
    setting: Setting,
    ops: Executor,
    checkpoint: ModelCheckpoint,
    tokenizer: Tokenizer,
    texts: Sequence[Sequence[int]],
    kv_dtype: FloatName,
) -> list[NDArray[np.floating]]:
    """Logits [tokens, vocab] of each text from ranks of an executor like `ops`, all texts together."""
    config = read_config(checkpoint.config)
    sizes = _sizes(config, setting, texts)
    ranks = ParallelModel(setting.ranks)
    try:
        ranks.load(
            load_command(
                checkpoint,
                sizes,
                executor=ops.executor,
                dtype=ops.dtype,
                kv_dtype=kv_dtype,
                options=setting.options,
            ),
            config,
        )
        engine = Engine(ranks, tokenizer, sizes)
        logits = _empty(config.vocab_size, texts)
        readers = [engine.add_logits(tuple(text), rows) for text, rows in zip(texts, logits, strict=True)]
        _finish(engine, readers, setting)
    finally:
        ranks.close()
    return logits


def _empty(vocab_size: int, texts: Sequence[Sequence[int]]) -> list[NDArray[np.floating]]:
    return [np.empty((len(text), vocab_size), np.float32) for text in texts]


def _sizes(config: ModelConfig, setting: Setting, texts: Sequence[Sequence[int]]) -> EngineConfig:
    keeps = outline(config).keeps
    return EngineConfig(
        vocab_size=config.vocab_size,
        max_model_len=max(map(len, texts)),
        num_blocks=sum(-(-len(text) // BLOCK_SIZE) for text in texts) + len(texts),
        block_size=BLOCK_SIZE,
        max_num_seqs=min(len(texts), setting.chunk),
        max_num_batched_tokens=setting.chunk,
        enable_prefix_caching=setting.share,
        windows=windows_of(keeps),
        state_bytes=bytes_of_state(keeps, "float32"),
        max_snapshots=4 * len(texts) if setting.share else 0,
    )


def _finish(engine: Engine, readers: list[LogitsReader], setting: Setting) -> None:
    # A step on kernels without vectors takes seconds. A step of ranks exchanges messages, on the main thread only.
    step = engine.step if setting.ranks > 1 else partial(interruptible, engine.step)
    if setting.preempt:
        step()
        engine.scheduler.preempt_all()
    while not all(reader.done for reader in readers):
        step()
    for reader in readers:
        if reader.error:
            raise reader.error

"""The families whose layers keep a state: one digest of the logits, however the texts come to their end.

In chunks of any size, alone or beside others, found in the cache at every end of a block, preempted now and then, on
any number of threads, with any kernels, over ranks; and several of these at once.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat.engine.engine import Engine
from karat.engine.engine_config import EngineConfig
from karat.engine.model_running import open_runner
from karat.kv.blocks import BLOCK_SIZE
from karat.kv.groups import State, bytes_of_state
from karat.models.decoder import outline
from karat.models.families import FAMILIES
from karat.models.opening import open_model
from karat.models.registry import build, read_config
from karat.ops import registry
from karat.ops.native import supported_isas, unavailable_reason
from karat.quant import FORMATS
from karat.ranks.group import SINGLE, Group
from karat.text.placeholder import placeholder_tokenizer
from tests.support import parallel
from tests.support.seed import SEED
from tests.support.thread_group import on_all_ranks

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

RECURRENT = ("lfm2", "lfm2_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
STORED = ("F32", "Q8_0", "Q4_0", "Q4_K")
CHUNKS = (1, 7, 64, 65, 512)
LENGTHS = (131, 66, 7, 1)
QUICK = [isa for isa in supported_isas() if isa != "generic"] or [None]


@dataclass(frozen=True, slots=True)
class Setting:
    """`hit`: tokens of the first text that are found with a snapshot. `preempt`: steps from one preemption to the next,
    0 for none. `keeps`: whether what is preempted may be found again.
    """

    chunk: int = 512
    together: bool = True
    hit: int = 0
    preempt: int = 0
    keeps: bool = True
    threads: int = 1
    isa: str | None = None
    ranks: int = 1


def settings(rng: random.Random) -> Iterator[Setting]:
    """Every value of each, with the others at random."""

    def drawn(**given: Any) -> Setting:
        values: dict[str, Any] = {
            "chunk": rng.choice(CHUNKS),
            "together": rng.random() < 0.5,
            "hit": rng.choice([0, *range(BLOCK_SIZE, LENGTHS[0], BLOCK_SIZE)]),
            "preempt": rng.choice([0, 0, 1, 2, 5]),
            "keeps": rng.random() < 0.5,
            "threads": rng.choice([1, 2, 3]),
            "isa": rng.choice(QUICK),
        }
        return Setting(**values | given)

    for chunk in CHUNKS:
        for together in (False, True):
            yield drawn(chunk=chunk, together=together)
    for hit in range(BLOCK_SIZE, LENGTHS[0], BLOCK_SIZE):
        yield drawn(hit=hit)
    for keeps in (False, True):
        for preempt in (1, 3):
            yield drawn(preempt=preempt, keeps=keeps, chunk=rng.choice(CHUNKS[:3]))
    for threads in (1, 2, 3):
        for isa in QUICK:
            yield drawn(threads=threads, isa=isa)
    for ranks in (2, 4, 8):
        for chunk in CHUNKS:
            yield drawn(ranks=ranks, chunk=chunk, threads=1)
    yield drawn(isa="generic", chunk=7)


def logits_of(path: Path, texts: list[list[int]], setting: Setting, group: Group = SINGLE) -> list[np.ndarray]:
    """Logits [tokens, vocab] of each text."""
    checkpoint = open_model(path)
    config = read_config(checkpoint.config)
    ops = registry.create("native", "float32", {"threads": setting.threads, "isa": setting.isa})
    model = build(config, ops, checkpoint, num_positions=max(LENGTHS), group=group)
    sizes = EngineConfig(
        vocab_size=config.vocab_size,
        max_model_len=max(LENGTHS),
        num_blocks=sum(-(-length // BLOCK_SIZE) for length in LENGTHS),
        max_num_seqs=min(len(texts), setting.chunk),
        max_num_batched_tokens=setting.chunk,
        enable_prefix_caching=setting.keeps or setting.hit > 0,
        state_bytes=bytes_of_state(outline(config).keeps, "float32"),
        max_snapshots=8,
    )
    run = open_runner(model, "float16", sizes.group_blocks, sizes.step_limits, num_states=sizes.num_state_slots)
    engine = Engine(run, placeholder_tokenizer(config.vocab_size), sizes)
    logits = [np.full((len(text), config.vocab_size), np.nan, np.float32) for text in texts]
    readers: list[Any] = []
    if setting.hit:  # a text that ends there, and a token more: no prompt is found whole
        begun = setting.hit + 1
        readers.append(engine.add_logits(tuple(texts[0][:begun]), logits[0][:begun]))
        _finish(engine, readers, setting)
    found = engine.scheduler.num_found_tokens
    for number, (text, target) in enumerate(zip(texts, logits, strict=True)):
        readers.append(engine.add_logits(tuple(text), target))
        if number == 0:
            readers[-1].sequence.num_read = setting.hit
        if not setting.together:
            _finish(engine, readers, setting)
    _finish(engine, readers, setting)
    assert engine.scheduler.num_found_tokens >= found + setting.hit, "the snapshot was not found"
    return logits


def _finish(engine: Engine, readers: list[Any], setting: Setting) -> None:
    num_steps = 0
    while not all(reader.done for reader in readers):
        engine.step()
        engine.scheduler.check()
        num_steps += 1
        # Of what starts from nothing again, less and less is preempted: it would come to no end.
        if setting.preempt and num_steps % setting.preempt == 0 and num_steps < 40:
            engine.scheduler.preempt_all()
    for reader in readers:
        if reader.error:
            raise reader.error


def digest(logits: list[np.ndarray]) -> str:
    assert all(np.isfinite(part).all() for part in logits)
    return hashlib.sha256(b"".join(part.tobytes() for part in logits)).hexdigest()


def test_every_family_with_states_is_tried() -> None:
    found = {name for name in FAMILIES if any(isinstance(k, State) for k in _keeps(name))}
    assert found == set(RECURRENT)


def _keeps(family: str) -> Any:
    return outline(read_config(parallel.config_of(family))).keeps


@pytest.mark.long
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("family", RECURRENT)
def test_a_digest_for_all_settings(family: str, stored: str, tmp_path: Path) -> None:
    extra: dict[str, Any] = {"num_hidden_layers": 3}
    if family.startswith("lfm2") and stored in FORMATS and FORMATS[stored].block_size == 256:
        extra |= {"hidden_size": 2048, "intermediate_size": 2304}  # eight blocks of channels for eight ranks
    config = parallel.config_of(family, **extra)
    path = parallel.write(tmp_path, config, stored)
    rng = random.Random(f"{SEED}-{family}-{stored}")
    texts = [[rng.randrange(config["vocab_size"]) for _ in range(length)] for length in LENGTHS]
    first = logits_of(path, texts, Setting(keeps=False))
    assert all(part.std() > 0.1 for part in first), "logits that say nothing"
    expected = digest(first)
    for setting in settings(rng):
        work: Callable[[Any], list[np.ndarray]] = partial(logits_of, path, texts, setting)
        ranks = on_all_ranks(setting.ranks, work) if setting.ranks > 1 else [work(SINGLE)]
        assert {digest(logits) for logits in ranks} == {expected}, f"KARAT_SEED={SEED}: {setting}"

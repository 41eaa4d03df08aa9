"""A model and a tokenizer small enough to know what they do.

The fake model keeps token ids where K and V would go and reads its context back through the block tables, so that its
logits are an exact function of what positions, slots and tables say the sequence is: any slip in the bookkeeping
changes every token after it. With states (`state_bytes` of its config), a slot of states holds all tokens so far.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tokenizers
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.engine.engine import Engine
from karat.engine.engine_config import EngineConfig
from karat.engine.requests.request_updates import Gathered, RequestUpdate
from karat.ops.executor import Pending, Runner
from karat.outputs import RequestOutput, StreamChunk
from karat.request import SamplingParams
from karat.request_record import Request
from karat.text import Tokenizer

STALE = -7  # what a slot holds before it is written
SAMPLED: dict[str, Any] = {"temperature": 1.0, "max_tokens": 12, "logprobs": 2}


def byte_chars() -> list[str]:
    """The characters in which a byte-level tokenizer.json spells the 256 bytes (the alphabet of GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def piece_tokenizer(pieces: Sequence[bytes], num_special: int = 2) -> Tokenizer:
    """Token i is pieces[i], some bytes; special tokens <i> come after them and are skipped in text."""
    chars = byte_chars()
    vocab = {"".join(chars[byte] for byte in piece): i for i, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([f"<{len(pieces) + i}>" for i in range(num_special)])
    with tempfile.TemporaryDirectory() as folder:
        backend.save(str(Path(folder) / "tokenizer.json"))
        return Tokenizer.from_folder(Path(folder))


BYTES = piece_tokenizer([bytes([i]) for i in range(256)])
END, OTHER_END = 256, 257


class FakeModel(Runner):
    """A runner. `logits_of` gives logits [vocab] after a context; by default, noise keyed by a hash of it."""

    def __init__(
        self, config: EngineConfig, logits_of: Callable[[tuple[int, ...]], NDArray[np.floating]] | None = None
    ) -> None:
        self.slots = [np.full(num_blocks * config.block_size, STALE) for num_blocks in config.group_blocks]
        self.states: list[tuple[int, ...]] = [(STALE,)] * config.num_state_slots
        self.windows = config.windows
        self.vocab_size = config.vocab_size
        self.logits_of = logits_of or self.noise
        self.batches: list[ForwardBatch] = []

    def noise(self, context: tuple[int, ...]) -> NDArray[np.floating]:
        digest = hashlib.blake2b(repr(context).encode(), digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
        return (rng.standard_normal(self.vocab_size) * 3).astype(np.float32)

    def submit(self, batch: ForwardBatch) -> Pending:
        return Pending(lambda: self.compute(batch))

    def compute(self, batch: ForwardBatch) -> NDArray[np.floating]:
        self.batches.append(batch)
        for group, slots in enumerate(self.slots):
            slots[batch.slots(group)] = batch.token_ids
        self.told = self.advance_states(batch) if self.states else []
        owner = np.repeat(np.arange(batch.num_seqs), np.diff(batch.query_starts))
        rows = [self.logits_of(self.context(batch, owner[row], batch.positions[row])) for row in batch.logit_rows]
        return np.array(rows, np.float32).reshape(-1, self.vocab_size)

    def context(self, batch: ForwardBatch, seq: int, position: int) -> tuple[int, ...]:
        """The tokens up to `position`. Every cache group has those of them that its window reaches."""
        found = list(self.told[seq][: position + 1]) if self.told else []
        for group, window in enumerate(self.windows):
            positions = np.arange(0 if window is None else max(0, position + 1 - window), position + 1)
            blocks = batch.block_tables(group)[seq, positions // batch.block_size]
            seen = self.slots[group][blocks * batch.block_size + positions % batch.block_size].tolist()
            found = found or seen
            assert found[len(found) - len(seen) :] == seen, f"cache group {group} has other tokens than group 0"
        return tuple(found)

    def advance_states(self, batch: ForwardBatch) -> list[tuple[int, ...]]:
        """All tokens of each sequence, by the state it reads; written to the state that it writes."""
        told = []
        for read, (start, stop) in zip(batch.state_reads, pairwise(batch.query_starts), strict=True):
            before = () if read < 0 else self.states[read]
            assert len(before) == batch.positions[start], "a state of other tokens"
            told.append((*before, *batch.token_ids[start:stop].tolist()))
        assert len(set(batch.state_writes.tolist())) == batch.num_seqs, "two sequences write one state"
        for write, tokens in zip(batch.state_writes, told, strict=True):
            assert write not in batch.state_reads, "a state is read after it was written"
            self.states[write] = tokens
        return told


def says(text: bytes | Sequence[int], prompt_len: int, vocab_size: int = 258) -> Callable[..., NDArray[np.floating]]:
    """Logits of a model that continues a prompt of `prompt_len` tokens with `text`, and then with END for ever."""

    def logits_of(context: tuple[int, ...]) -> NDArray[np.floating]:
        place = len(context) - prompt_len
        logits = np.zeros(vocab_size, np.float32)
        logits[text[place] if place < len(text) else END] = 50
        return logits

    return logits_of


def make_config(**changes: Any) -> EngineConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 258,
        "max_model_len": 64,
        "num_blocks": 64,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "enable_prefix_caching": True,
    }
    return EngineConfig(**(sizes | changes))


def make_engine(
    logits_of: Callable[[tuple[int, ...]], NDArray[np.floating]] | None = None,
    tokenizer: Tokenizer = BYTES,
    **changes: Any,
) -> tuple[Engine, FakeModel]:
    config = make_config(**({"vocab_size": tokenizer.vocab_size} | changes))
    model = FakeModel(config, logits_of)
    return WholeEngine(model, tokenizer, config), model


class WholeEngine(Engine):
    """An engine whose last updates have the output, gathered of all that it gave of the request."""

    def add_request(self, request: Request, grammar: Any = None) -> None:
        self._gathered = {**getattr(self, "_gathered", {}), request.request_id: Gathered(request)}
        super().add_request(request, grammar)

    def step(self) -> list[RequestUpdate]:
        return list(map(self._whole, super().step()))

    def abort(self, request_id: str) -> RequestUpdate | None:
        update = super().abort(request_id)
        return None if update is None else self._whole(update)

    def _whole(self, update: RequestUpdate) -> RequestUpdate:
        assert update.output is None, "whoever hands the output out makes it, once"
        gathered = self._gathered[update.request_id]
        gathered.add(update)
        return msgspec.structs.replace(update, output=gathered.output()) if update.ended else update


def outputs_of(updates: Iterable[RequestUpdate], requests: Iterable[Request]) -> dict[str, RequestOutput]:
    """The outputs of the requests whose last updates are there, all updates of a plain engine given."""
    gathered = {item.request_id: Gathered(item) for item in requests}
    found: dict[str, RequestOutput] = {}
    for update in updates:
        assert update.request_id not in found, "ended twice"
        gathered[update.request_id].add(update)
        if update.ended:
            found[update.request_id] = gathered[update.request_id].output()
    return found


def request(
    name: str, prompt: bytes | Sequence[int], *, seed: int = 0, end: Sequence[int] = (END,), **params: object
) -> Request:
    return Request(name, tuple(prompt), SamplingParams(**params), seed, None, frozenset(end))


def drive(engine: Engine, max_steps: int = 10_000) -> tuple[dict[str, RequestOutput], dict[str, list[StreamChunk]]]:
    """Step until nothing is left, checking integrity after each step; outputs and chunks by request."""
    updates: list[RequestUpdate] = []
    for _ in range(max_steps):
        if not engine.has_work:
            break
        updates += engine.step()
        engine.scheduler.check()
    assert not engine.has_work, "still not done"
    assert engine.scheduler.blocks.num_free == sum(engine.config.group_blocks), "blocks are left in use"
    assert engine.scheduler.blocks.states is None or engine.scheduler.blocks.states.num_seqs == 0, "states are left"
    outputs = {update.request_id: update.output for update in updates if update.output}
    chunks: dict[str, list[StreamChunk]] = {}
    for update in updates:
        chunks.setdefault(update.request_id, []).extend(update.chunks)
    return outputs, chunks


def run(engine: Engine, *requests: Request) -> dict[str, RequestOutput]:
    for item in requests:
        engine.add_request(item)
    return drive(engine)[0]


def alone(item: Request) -> RequestOutput:
    """The output of a request that has an engine to itself, a step for each prompt, and shares nothing."""
    engine, _ = make_engine(max_num_batched_tokens=64, enable_prefix_caching=False)
    return run(engine, item)[item.request_id]

"""One measurement from beginning to end: load the model, measure workload by workload, put the figures together."""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import karat
from karat.bench.accounting import Account
from karat.bench.device_limits import DeviceMeter
from karat.bench.exchange import all_reduce_seconds
from karat.bench.limits import LimitMeter
from karat.bench.peers import Peer, PeerModel, load_peer, require_peer
from karat.bench.peers.process import PeerProcess
from karat.bench.report import SCHEMA, limits_object, peer_row, row, side_object
from karat.bench.shapes import random_model, written
from karat.bench.sides import KaratSide, Side
from karat.bench.workloads import measure, plan
from karat.checkpoint import ModelCheckpoint, Weight, requantized_type
from karat.checkpoint.overrides import NO_OVERRIDES, Overrides
from karat.checkpoint.weights import num_stored_bytes
from karat.engine.llm import LLM
from karat.kv.blocks import BLOCK_SIZE
from karat.kv.groups import windows_of
from karat.machine.cores import num_physical_cores
from karat.models.decoder import outline
from karat.models.opening import open_model
from karat.models.registry import find_weights, read_config
from karat.ops import native
from karat.ops.device import DeviceOps
from karat.ops.executor import Executor
from karat.quant import FORMATS
from karat.text import Tokenizer

_DEFAULT_BUDGET = 512  # tokens of a step
LOADER = f"{__name__}:load_beside"  # what loads the peer in its own process


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to measure: `model`, a folder or a GGUF file, on weights as stored or quantised at load; or `shape`, made as
    `stored` says.

    Karat, the limits and the peer have `threads` threads each (None: one a physical core). With tensor_parallel_size,
    that many ranks share the threads, and the peer is one process with all of them. With packed_cache, the model is
    mapped from a packed file there, and the peer has it in memory. `overrides` are what the user says of `model`.
    `loading` goes to LLM as it is.
    """

    model: Path | None = None
    shape: str | None = None
    stored: str = "bf16"
    quantize: str | None = None
    prompt_tokens: tuple[int, ...] = ()
    gen_tokens: int = 32
    batch: int = 16
    context: int | None = None
    repeat: int = 3
    max_num_batched_tokens: int | None = None
    peer: str | None = None
    tensor_parallel_size: int = 1
    packed_cache: Path | None = None
    threads: int | None = None
    overrides: Overrides = NO_OVERRIDES
    loading: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_threads(self) -> int:
        return num_physical_cores() if self.threads is None else self.threads


def run_bench(
    options: BenchOptions, progress: Callable[[str], None], *, limit_buffer_bytes: int | None = None
) -> dict[str, Any]:
    """Measure everything; the result is the JSON that docs/cli.md describes. Raises errors of LLM, of the peer and
    of `plan`.
    """
    session = _Session(options, progress)
    try:
        meter = _meter(session.ops, options.num_threads, limit_buffer_bytes)
        records = [
            measure(
                workload,
                session.sides,
                repeat=options.repeat,
                vocab_size=session.config.vocab_size,
                meter=meter,
                progress=progress,
            )
            for workload in session.workloads
        ]
    finally:
        session.close()
    limits = meter.limits() if meter else None  # the best of the whole session, for all rows
    rows = []
    for workload, series in zip(session.workloads, records, strict=True):
        rows.append(row(workload, series[0], limits))
        if len(series) > 1:
            rows[-1]["peer"] = peer_row(workload, series[0], series[1])
    described = [side_object(side) for side in session.sides]
    return {
        "schema": SCHEMA,
        **session.facts,
        "repeat": options.repeat,
        "karat": described[0],
        "peer": described[1] if len(described) > 1 else None,
        "exchange": session.exchange,
        "limits": limits_object(limits) if limits else None,
        "rows": rows,
    }


def _meter(ops: Executor, num_threads: int, buffer_bytes: int | None) -> LimitMeter | DeviceMeter | None:
    """Of where the model is computed; None where that is on both a GPU and the CPU, or in NumPy alone."""
    if isinstance(ops, DeviceOps):
        return None if ops.host_layers else DeviceMeter(ops, copied_bytes=buffer_bytes)
    return LimitMeter(num_threads, buffer_bytes=buffer_bytes) if native.unavailable_reason() is None else None


class _Session:
    """The model, loaded on every side, and the workloads to measure. The checkpoint is not kept."""

    def __init__(self, options: BenchOptions, progress: Callable[[str], None]) -> None:
        if options.peer is not None:
            require_peer(options.peer)  # before anything that takes time
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.sides: list[Side] = []
        try:
            self._load(options, progress)
        except BaseException:
            self.close()
            raise

    def _load(self, options: BenchOptions, progress: Callable[[str], None]) -> None:
        checkpoint, tokenizer = _open(options, progress)
        name = str(checkpoint.path)
        self.config = read_config(checkpoint.config)
        weights = find_weights(self.config, checkpoint)
        budget = options.max_num_batched_tokens or max(_DEFAULT_BUDGET, 2 * options.batch)
        self.workloads = plan(
            longest=self.config.max_position_embeddings,
            prompt_tokens=options.prompt_tokens,
            gen_tokens=options.gen_tokens,
            batch=options.batch,
            context=options.context,
            repeat=options.repeat,
            max_num_batched_tokens=budget,
        )
        lengths = [workload.context_len(options.repeat, budget) for workload in self.workloads]
        blocks = max(w.batch * (-(-n // BLOCK_SIZE) + 2) for w, n in zip(self.workloads, lengths, strict=True))
        if any(windows_of(outline(self.config).keeps)):  # where contexts have less room, windows have less, too
            blocks = max(w.batch for w in self.workloads) * -(-max(lengths) // BLOCK_SIZE)
        given = {"quantize": options.quantize, "threads": options.num_threads, **options.loading}
        sizes: dict[str, Any] = {
            "tokenizer": tokenizer,
            "max_model_len": max(lengths),
            "max_num_seqs": options.batch,
            "max_num_batched_tokens": budget,
            "max_step_ms": 0,  # prompts are computed in whole chunks, also while others decode
            "num_blocks": blocks,
            "generation_config": "none",
            "enable_prefix_caching": False,  # a turn measures the same prompt as the one before
        }
        ranks = options.tensor_parallel_size
        progress("loading the model")
        self.exchange: dict[str, Any] | None = None
        alone: LLM | None = None
        otherwise: dict[str, Any] = {}  # what is measured, beside the model without it
        if ranks > 1:
            progress("measuring the exchange between ranks")
            seconds, has_cores = all_reduce_seconds(ranks, self.config.hidden_size)
            self.exchange = {"all_reduce_s": seconds, "floats": self.config.hidden_size, "own_cores": has_cores}
            progress("loading the model")
            otherwise = {"tensor_parallel_size": ranks, "threads": max(1, options.num_threads // ranks)}
        elif options.packed_cache is not None:
            otherwise = {"packed_cache": options.packed_cache}
        if otherwise:
            alone = LLM(checkpoint, **sizes, **given)
            if options.shape is not None:  # ranks and packed files are made of files
                self._folder = tempfile.TemporaryDirectory(prefix="karat-bench-", dir=options.packed_cache)
                checkpoint = written(checkpoint, Path(self._folder.name) / "random.gguf")
                otherwise |= {"packed_cache": Path(self._folder.name)} if options.packed_cache else {}
        llm = LLM(checkpoint, **sizes, **{**given, **otherwise})
        self.ops = llm.plan.ops
        account = Account(self.config, stored_bytes(weights, options.quantize), llm.kv_dtype, llm.dtype)
        types = _stored_types(weights, options.quantize)
        self.facts: dict[str, Any] = {
            "model": name,
            "shape": options.shape,
            "quantize": options.quantize,
            "parameters": sum(prod(weight.shape) for weight in _each_once(weights)),
            "stored": types,
            "stored_bytes": sum(types.values()),
        }
        self.sides.append(KaratSide(llm, account, karat.__version__, num_threads=options.num_threads))
        if alone is not None:
            name = "1 process" if ranks > 1 else "in memory"
            side = KaratSide(alone, account, karat.__version__, num_threads=options.num_threads, name=name)
            side.details["logits_deviation"] = _difference(llm, alone)
            self.sides.append(side)
        if options.peer is not None:
            progress(f"loading the model into {options.peer}")
            peer = PeerProcess(
                LOADER,
                {
                    "model": None if options.model is None else str(options.model),
                    "shape": options.shape,
                    "stored": options.stored,
                    "quantize": options.quantize,
                    "peer": options.peer,
                    "num_threads": options.num_threads,
                },
            )
            self.sides.append(peer)
            peer.details["logits_deviation"] = _deviation(llm, peer)

    def close(self) -> None:
        for side in self.sides:
            side.close()
        if self._folder is not None:
            self._folder.cleanup()


def load_beside(
    *, model: str | None, shape: str | None, stored: str, quantize: str | None, peer: str, num_threads: int
) -> Peer:
    """A peer on the same weights. It runs in a process of its own, which opens or makes the weights once more."""
    options = BenchOptions(model=None if model is None else Path(model), shape=shape, stored=stored)
    checkpoint, _ = _open(options, lambda _: None)
    config = read_config(checkpoint.config)
    weights = {weight.name: weight for weight in _each_once(find_weights(config, checkpoint))}
    return load_peer(
        peer,
        PeerModel(
            raw_config=checkpoint.config,
            config=config,
            weights=weights,
            quantize=quantize,
            num_threads=num_threads,
        ),
    )


def _deviation(llm: LLM, peer: Peer | PeerProcess) -> float | None:
    """The difference of the peer's logits from Karat's after a short prompt, over the deviation of Karat's.

    A ratio of root mean squares. A small value means that both compute the same model. None if the peer shows no
    logits.
    """
    prompt = _short_prompt(llm)
    theirs = peer.logits(prompt)
    if theirs is None:
        return None
    ours = llm.logits(prompt)[-1].astype(np.float64)
    return float(np.sqrt(np.mean((theirs - ours) ** 2)) / ours.std())


def _difference(ranks: LLM, alone: LLM) -> float:
    """The same, between ranks and one process."""
    prompt = _short_prompt(ranks)
    ours, theirs = (llm.logits(prompt)[-1].astype(np.float64) for llm in (ranks, alone))
    return float(np.sqrt(np.mean((theirs - ours) ** 2)) / ours.std())


def _short_prompt(llm: LLM) -> list[int]:
    return [(7 * i + 3) % llm.config.vocab_size for i in range(min(8, llm.max_model_len))]


def stored_bytes(weights: Mapping[str, Weight], quantize: str | None) -> dict[str, int]:
    """Bytes of each weight as it is computed on: in its stored type, or in that of `quantize` (q8_0, q4_0)."""
    return {source: num_stored_bytes(_type_as(weight, quantize), weight.shape) for source, weight in weights.items()}


def _type_as(weight: Weight, quantize: str | None) -> str:
    return weight.dtype if quantize is None else requantized_type(weight, FORMATS[quantize.upper()])


def _stored_types(weights: Mapping[str, Weight], quantize: str | None) -> dict[str, int]:
    """Bytes by stored type."""
    totals: dict[str, int] = {}
    for weight in _each_once(weights):
        dtype = _type_as(weight, quantize)
        totals[dtype] = totals.get(dtype, 0) + num_stored_bytes(dtype, weight.shape)
    return totals


def _each_once(weights: Mapping[str, Weight]) -> Iterable[Weight]:
    """A tied head is the embedding's weight under another name."""
    return {weight.name: weight for weight in weights.values()}.values()


def _open(options: BenchOptions, progress: Callable[[str], None]) -> tuple[ModelCheckpoint, Tokenizer | None]:
    """The checkpoint, and its tokenizer unless the LLM reads that from a folder."""
    if options.shape is None:
        assert options.model is not None
        return open_model(options.model, options.overrides), None
    progress(f"making random weights: {options.shape}, {options.stored}")
    made = random_model(options.shape, stored=options.stored)
    return made.checkpoint, made.tokenizer

"""A side of a measurement: an engine that prefills prompts and continues them step by step. Karat is one side, a
peer the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count as numbers
from time import perf_counter
from typing import Protocol

from karat.batch import ForwardBatch
from karat.bench.accounting import Account, TokenWork
from karat.engine.llm import LLM
from karat.errors import NumericsError
from karat.ops.executor import Pending, Rows, Runner
from karat.request import SamplingParams
from karat.request_record import Request

Prompt = Sequence[int]


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed piece of work: all steps of a prefill, or one step of decode.

    model_s is the part of `seconds` in the model's forward pass. Only Karat has it and `work`.
    """

    seconds: float
    model_s: float | None = None
    work: TokenWork | None = None


class Side(Protocol):
    """An engine with a model loaded. One workload at a time: `prefill`, or `start`, `steps` as announced, `stop`."""

    name: str
    version: str
    details: dict[str, object]  # the other settings on which its figures depend

    def prefill(self, prompt: Prompt) -> Sample:
        """Compute the whole prompt up to the logits after its last token, and forget it."""

    def start(self, prompts: Sequence[Prompt], num_steps: int) -> None:
        """Prefill the prompts, untimed; each can then be continued for `num_steps` tokens."""

    def steps(self, count: int) -> list[Sample]:
        """`count` more tokens for every prompt, one at a time."""

    def stop(self) -> None:
        """Forget the prompts."""

    def close(self) -> None:
        """Free the model."""


class Watch(Runner):
    """An engine's runner, with notes of the work and the time of each step."""

    def __init__(self, run: Runner) -> None:
        self._run = run
        self.model_s = 0.0
        self.batches: list[ForwardBatch] = []

    def submit(self, batch: ForwardBatch) -> Pending:
        return Pending(lambda: self._watched(batch))

    def _watched(self, batch: ForwardBatch) -> Rows:
        before = perf_counter()
        logits = self._run(batch)
        self.model_s += perf_counter() - before
        self.batches.append(batch)
        return logits


def extra_tokens(prompt_lens: Sequence[int], max_num_batched_tokens: int) -> int:
    """A bound on the tokens that follow a prompt before all of `prompt_lens` are prefilled and have one token more.

    Early prompts decode while late ones are prefilled; decoding comes first in a step's budget.
    """
    num_seqs = len(prompt_lens)
    assert num_seqs < max_num_batched_tokens, "no room for prefill beside decoding"
    return sum(prompt_lens) // (max_num_batched_tokens - num_seqs) + 3


class KaratSide:
    """Karat through its engine. `Engine.step` is timed, with scheduling, sampling (greedy) and detokenising."""

    def __init__(self, llm: LLM, account: Account, version: str, *, num_threads: int, name: str = "karat") -> None:
        self.name = name
        self.version = version
        self.details: dict[str, object] = {
            "executor": llm.executor,
            "device": llm.device,
            "dtype": llm.dtype,
            "kv_dtype": llm.kv_dtype,
            "activations": llm.activations,
            "numeric_contract": llm.numeric_contract,
            "threads": num_threads,
            "isa": llm.plan.ops.options.get("isa"),
            "max_num_batched_tokens": llm.engine.config.max_num_batched_tokens,
            "tensor_parallel_size": llm.tensor_parallel_size,
        }
        self._llm = llm
        self._engine = llm.engine
        self._account = account
        self._watch = Watch(llm.engine.run)
        self._ids = numbers()
        self._running: list[str] = []

    def prefill(self, prompt: Prompt) -> Sample:
        self._add(prompt, 1)
        sample = self._timed_step()
        while self._engine.has_work:
            more = self._timed_step()
            assert sample.work and more.work and sample.model_s is not None and more.model_s is not None
            sample = Sample(sample.seconds + more.seconds, sample.model_s + more.model_s, sample.work + more.work)
        self._running.clear()
        return sample

    def start(self, prompts: Sequence[Prompt], num_steps: int) -> None:
        extra = extra_tokens([len(prompt) for prompt in prompts], self._engine.config.max_num_batched_tokens)
        for prompt in prompts:
            self._add(prompt, extra + num_steps)
        decodes = False
        while not decodes:
            assert self._engine.has_work, f"{len(prompts)} sequences never decoded together: the cache has less room"
            self._timed_step()
            decodes = all(batch.num_tokens == batch.num_seqs == len(prompts) for batch in self._watch.batches)

    def steps(self, count: int) -> list[Sample]:
        return [self._timed_step() for _ in range(count)]

    def stop(self) -> None:
        for request_id in self._running:
            self._engine.abort(request_id)
        self._running.clear()

    def close(self) -> None:
        self.stop()
        self._llm.close()

    def _add(self, prompt: Prompt, max_tokens: int) -> None:
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
        request_id = f"bench-{next(self._ids)}"
        self._engine.add_request(Request(request_id, tuple(prompt), params, 0, None, frozenset()))
        self._running.append(request_id)

    def _timed_step(self) -> Sample:
        watch, engine = self._watch, self._engine
        watch.model_s = 0.0
        watch.batches.clear()
        plain, engine.run = engine.run, watch
        try:
            before = perf_counter()
            updates = engine.step()
            seconds = perf_counter() - before
        finally:
            engine.run = plain
        for update in updates:
            for chunk in update.chunks:
                if chunk.error:
                    raise NumericsError(chunk.error)
        return Sample(seconds, watch.model_s, sum(map(self._account.of, watch.batches), TokenWork()))

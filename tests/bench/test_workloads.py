"""The order of a measurement, with sides that only take notes; and Karat as a side.

Covers: karat.bench.sides.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.bench.accounting import Account
from karat.bench.session import BenchOptions, run_bench, stored_bytes
from karat.bench.shapes import RandomModel, random_model
from karat.bench.sides import KaratSide, Prompt, Sample, extra_tokens
from karat.bench.workloads import NUM_WARM_UP_STEPS, WARM_UP_TOKENS, Workload, measure, plan
from karat.engine.llm import LLM
from karat.errors import UsageError
from karat.kv.groups import bytes_per_token
from karat.models.decoder import outline
from karat.models.registry import find_weights
from tests.engine.tiny import write_model


class Note:
    """A side that writes down what it is asked for, and takes as many seconds as it was asked things before."""

    version = "0"

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.details: dict[str, object] = {}
        self._log = log

    def _note(self, what: str) -> Sample:
        self._log.append(f"{self.name}: {what}")
        return Sample(float(len(self._log)))

    def prefill(self, prompt: Prompt) -> Sample:
        return self._note(f"prefill {len(prompt)}")

    def start(self, prompts: Sequence[Prompt], num_steps: int) -> None:
        self._note(f"start {len(prompts)} × {len(prompts[0])}, {num_steps}")

    def steps(self, count: int) -> list[Sample]:
        return [self._note("step") for _ in range(count)]

    def stop(self) -> None:
        self._note("stop")

    def close(self) -> None:
        self._note("close")


def measured(workload: Workload, repeat: int) -> tuple[list[str], list[list[list[float]]]]:
    log: list[str] = []
    sides = [Note("a", log), Note("b", log)]
    series = measure(workload, sides, repeat=repeat, vocab_size=100, meter=None, progress=lambda text: None)
    return log, [[[sample.seconds for sample in turn] for turn in record.turns] for record in series]


def test_sides_take_turns_and_the_first_changes() -> None:
    log, times = measured(Workload("prefill", WARM_UP_TOKENS + 88), 3)
    warm, whole = f"prefill {WARM_UP_TOKENS}", f"prefill {WARM_UP_TOKENS + 88}"
    assert log == [
        f"a: {warm}",
        f"b: {warm}",
        f"a: {whole}",
        f"b: {whole}",
        f"b: {whole}",
        f"a: {whole}",
        f"a: {whole}",
        f"b: {whole}",
        "a: stop",
        "b: stop",
    ]
    assert times == [[[3], [6], [7]], [[4], [5], [8]]]


def test_decode_starts_once_and_goes_on() -> None:
    log, times = measured(Workload("decode", 10, batch=4, gen_tokens=2), 2)
    warm_up = ["a: start 4 × 10, 7", *["a: step"] * 3, "b: start 4 × 10, 7", *["b: step"] * 3]
    assert NUM_WARM_UP_STEPS == 3
    assert log == [*warm_up, *["a: step"] * 2, *["b: step"] * 4, *["a: step"] * 2, "a: stop", "b: stop"]
    assert times == [[[9, 10], [15, 16]], [[11, 12], [13, 14]]]


def test_a_side_that_fails_leaves_nothing_running() -> None:
    log: list[str] = []

    class Broken(Note):
        def steps(self, count: int) -> list[Sample]:
            raise RuntimeError("broken")

    sides = [Note("a", log), Broken("b", log)]
    with pytest.raises(RuntimeError, match="broken"):
        measure(Workload("decode", 5), sides, repeat=1, vocab_size=9, meter=None, progress=lambda text: None)
    assert log[-2:] == ["a: stop", "b: stop"]


@given(
    longest=st.integers(1, 9000),
    gen_tokens=st.integers(1, 64),
    batch=st.integers(1, 40),
    repeat=st.integers(1, 6),
    context=st.one_of(st.none(), st.integers(0, 9000)),
    prompts=st.lists(st.integers(-1, 9000), max_size=2),
)
def test_every_plan_fits_the_model_or_is_refused(
    longest: int, gen_tokens: int, batch: int, repeat: int, context: int | None, prompts: list[int]
) -> None:
    try:
        workloads = plan(
            longest=longest,
            prompt_tokens=prompts,
            gen_tokens=gen_tokens,
            batch=batch,
            context=context,
            repeat=repeat,
            max_num_batched_tokens=512,
        )
    except UsageError:
        batched = Workload("decode", 128, batch, gen_tokens).context_len(repeat, 512)
        asked = [Workload("decode", context or 0, 1, gen_tokens).context_len(repeat, 512), *(n + 1 for n in prompts)]
        assert longest < max(batched, *asked) or min(prompts, default=1) < 1
        return
    for workload in workloads:
        assert workload.prompt_tokens >= 1
        assert workload.context_len(repeat, 512) <= longest
    if prompts:
        assert [w.prompt_tokens for w in workloads if w.kind == "prefill"] == prompts
    assert any(w.batch == batch for w in workloads)
    if context:
        assert workloads[-1].prompt_tokens == context


def test_the_usual_plan() -> None:
    names = [workload.name for workload in plan(longest=32768)]
    assert names == ["prefill 512", "decode after 128", "decode after 128, batch 16", "decode after 4096"]
    names = [workload.name for workload in plan(longest=32768, prompt_tokens=[7, 8192], batch=1, context=0)]
    assert names == ["prefill 7", "prefill 8192", "decode after 128"]
    with pytest.raises(UsageError, match="--gen-tokens 0: expected at least 1"):
        plan(longest=100, gen_tokens=0)


@cache
def tiny() -> RandomModel:
    return random_model("tiny", stored="f32")


def karat_side(*, budget: int = 16) -> tuple[KaratSide, LLM, int]:
    """A side, its LLM, and the bytes of all stored weights."""
    made = tiny()
    llm = LLM(
        made.checkpoint,
        tokenizer=made.tokenizer,
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        generation_config="none",
        kv_dtype="float32",
    )
    stored = stored_bytes(find_weights(llm.config, made.checkpoint), None)
    side = KaratSide(llm, Account(llm.config, stored, llm.kv_dtype), "0", num_threads=1)
    return side, llm, sum(stored.values())


def test_a_prefill_of_karat() -> None:
    side, llm, weight_bytes = karat_side()
    run = llm.engine.run
    sample = side.prefill(list(range(40)))
    assert sample.work and sample.model_s is not None
    assert 0 < sample.model_s < sample.seconds
    # Three steps of 16, 16 and 8 tokens; only the last wants logits, of one row.
    layers, rows = weight_bytes - 512 * 64 * 4, 64 * 4
    assert sample.work.weight_bytes == 3 * layers + 32 * rows + 512 * 64 * 4
    assert sample.work.cache_bytes == (16 + 32 + 40) * bytes_per_token(outline(llm.config).keeps, "float32")
    assert sample.work.attention_flops == 4 * 64 * 2 * sum(range(1, 41))  # heads × head_dim, layers
    assert not llm.engine.has_work and llm.engine.run == run


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_decode_of_karat_is_one_token_for_each(batch: int) -> None:
    side, llm, _ = karat_side()
    side.start([list(range(30 + i)) for i in range(batch)], 6)
    context = [len(seq.token_ids) for seq in llm.engine.scheduler._running]
    for step, sample in enumerate(side.steps(6)):
        assert sample.work
        assert sample.work.cache_bytes == (sum(context) + batch * step) * bytes_per_token(
            outline(llm.config).keeps, "float32"
        )
    assert llm.engine.scheduler.num_running == batch
    side.stop()
    assert not llm.engine.has_work


@given(lens=st.lists(st.integers(1, 60), min_size=1, max_size=4), budget=st.integers(5, 40))
def test_room_is_made_for_what_early_prompts_generate(lens: list[int], budget: int) -> None:
    side, llm, _ = karat_side(budget=budget)
    side.start([[1] * n for n in lens], 2)
    side.steps(2)
    grown = [len(seq.token_ids) - seq.prompt_len for seq in llm.engine.scheduler._running]
    assert len(grown) == len(lens), "one of them ended too early"
    assert max(grown) <= extra_tokens(lens, budget) + 2
    side.stop()


def test_every_turn_computes_the_whole_prompt() -> None:
    options = BenchOptions(
        shape="tiny", stored="f32", prompt_tokens=(64,), gen_tokens=1, batch=1, context=0, repeat=2, threads=1
    )
    prefill = run_bench(options, lambda text: None, limit_buffer_bytes=1 << 20)["rows"][0]
    assert prefill["attention_flops"] == 4 * 64 * 2 * sum(range(1, 65))  # heads × head_dim, layers


def test_a_batch_has_room_where_layers_have_windows(tmp_path: Path) -> None:
    """A long prompt's workload, beside the batch: in proportion to its context the window's group was small."""
    write_model(tmp_path, use_sliding_window=True, sliding_window=64, max_window_layers=1, max_position_embeddings=1024)
    options = BenchOptions(
        model=tmp_path,
        prompt_tokens=(900,),
        gen_tokens=2,
        batch=6,
        context=0,
        repeat=1,
        threads=1,
        max_num_batched_tokens=64,
    )
    row = run_bench(options, lambda text: None, limit_buffer_bytes=1 << 20)["rows"][-1]
    assert row["name"].endswith("batch 6")
    assert row["flops_per_s"] > 0 and row["overhead"] < 1

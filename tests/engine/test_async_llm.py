"""AsyncLLM gives what LLM gives: outputs, streams, prompts, tokens, errors. Its engine is a process, started once.

Covers: karat.engine.remote.client, karat.engine.remote.messages, karat.engine.remote.opening,
karat.engine.remote.process, karat.engine.remote.worker.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import numpy as np
import pytest

import karat
from karat import LLM, AsyncLLM, RequestOutput, SamplingParams
from karat.checkpoint import Weight
from karat.engine.requests.request_updates import PromptProgress, RequestUpdate
from karat.errors import CapacityError, CheckpointError, KaratError, RequestError, UsageError
from karat.receipts import fingerprint as fingerprint_module
from tests.engine.tiny import write_model

Result = TypeVar("Result")

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = ["Once upon a time", "The dog", "A", "Tom and Lily went to the park. They"]
MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]
KINDS = [
    GREEDY,
    SamplingParams(max_tokens=20, seed=3, top_p=0.9, n=3),
    SamplingParams(max_tokens=12, seed=4, logprobs=2, prompt_logprobs=1, n=2),
    SamplingParams(max_tokens=40, seed=5, stop=(" the", "!"), min_tokens=2),
    SamplingParams(max_tokens=300, seed=6),
    SamplingParams(max_tokens=60, seed=8, n=2, structured_outputs={"json": {"type": "object", "maxProperties": 1}}),
    SamplingParams(max_tokens=5, seed=7, logit_bias={5: 3.5}, allowed_token_ids=(5, 6, 7), temperature=np.float64(0.7)),
]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncLLM]:
    made = AsyncLLM(threads=1)
    yield made
    made.shutdown()


def run(work: Coroutine[Any, Any, Result], limit_s: float = 120) -> Result:
    async def bounded() -> Result:
        return await asyncio.wait_for(work, limit_s)

    return asyncio.run(bounded())


def alike(outputs: list[RequestOutput]) -> list[RequestOutput]:
    """Without the names, which are made up."""
    return [replace(output, request_id="") for output in outputs]


def test_the_outputs_are_those_of_llm(llm: LLM, engine: AsyncLLM) -> None:
    """Of each kind alone, and of all kinds side by side."""
    want = {params.seed: llm.generate(PROMPTS, params) for params in KINDS[1:]}

    async def all_kinds() -> list[list[RequestOutput]]:
        for params in KINDS[1:]:
            alone = await engine.generate(PROMPTS, params)
            assert alike(alone) == alike(want[params.seed])
        return await asyncio.gather(*(engine.generate(PROMPTS, params) for params in KINDS[1:]))

    for params, found in zip(KINDS[1:], run(all_kinds()), strict=True):
        assert alike(found) == alike(want[params.seed])


@pytest.mark.parametrize("params", KINDS, ids=range(len(KINDS)))
def test_a_stream_is_that_of_llm(params: SamplingParams, llm: LLM, engine: AsyncLLM) -> None:
    async def updates() -> list[RequestUpdate]:
        return [update async for update in engine.stream(PROMPTS[0], params, request_id="mine")]

    found = run(updates())
    chunks = [chunk for update in found for chunk in update.chunks]
    assert chunks == list(llm.stream(PROMPTS[0], params if params.seed is not None else replace(params, seed=1)))
    assert {update.request_id for update in found} == {"mine"}
    assert all((update.output is None) == (update is not found[-1]) for update in found)
    assert not any(update.progress for update in found)


def test_prompts_of_every_kind(llm: LLM, engine: AsyncLLM) -> None:
    ids = llm.tokenizer.encode(PROMPTS[0])
    for prompt in (PROMPTS[0], ids, tuple(ids), {"prompt": PROMPTS[0]}, {"prompt_token_ids": ids}):
        (want,) = llm.generate(prompt, GREEDY)
        found = run(engine.generate(prompt, GREEDY))
        assert isinstance(found, RequestOutput) and found.outputs == want.outputs and found.prompt == want.prompt
    listed = run(engine.generate([PROMPTS[0]], GREEDY))
    assert isinstance(listed, list) and listed[0].outputs == want.outputs
    assert run(engine.generate([], GREEDY)) == []


def test_conversations(llm: LLM, engine: AsyncLLM) -> None:
    async def talk() -> None:
        prompt = await engine.render(MESSAGES)
        assert prompt == llm.chat_prompt(MESSAGES)
        marked = [{"role": "user", "content": "<|endoftext|>"}]
        for safe in (True, False):
            found = await engine.render(marked, sanitize_control_tokens=safe)
            assert found == llm.chat_prompt(marked, sanitize_control_tokens=safe)
        (want,) = llm.chat(MESSAGES, GREEDY)
        assert (await engine.chat(MESSAGES, GREEDY)).outputs == want.outputs
        assert (await engine.generate(prompt, GREEDY)).outputs == want.outputs

    run(talk())


def test_text_to_tokens_and_back(llm: LLM, engine: AsyncLLM) -> None:
    async def there_and_back() -> None:
        ids = await engine.tokenize("Once upon a time")
        assert ids == llm.tokenizer.encode("Once upon a time")
        assert await engine.detokenize(ids) == "Once upon a time"
        with pytest.raises(RequestError, match="-1 is no token id; expected integers from 0 to"):
            await engine.detokenize([-1])
        with pytest.raises(CapacityError):
            await engine.tokenize("a " * 1_000_000)

    run(there_and_back())


def test_it_says_what_llm_says_of_the_model(llm: LLM, engine: AsyncLLM) -> None:
    for name in (
        "path",
        "config",
        "max_model_len",
        "executor",
        "dtype",
        "kv_dtype",
        "tensor_parallel_size",
        "default_params",
        "defaults_notice",
        "end_token_ids",
        "chat_end_token_ids",
    ):
        assert getattr(engine, name) == getattr(llm, name), name
    assert engine.vocab_size == llm.config.vocab_size and engine.max_num_seqs == 16
    assert engine.model_name == "karat-embedded" and engine.has_chat_template
    assert engine.healthy and engine.failure is None


@pytest.mark.slow
def test_an_unseeded_request_draws_a_seed_and_says_it(engine: AsyncLLM) -> None:
    async def draw() -> None:
        params = SamplingParams(max_tokens=20, ignore_eos=True)
        outputs = await engine.generate([PROMPTS[0]] * 4, params)
        assert len({output.seed for output in outputs}) == 4 and len({o.outputs[0].token_ids for o in outputs}) > 1
        for output in outputs:
            again = await engine.generate(PROMPTS[0], replace(params, seed=output.seed))
            assert again.outputs == output.outputs and again.seed == output.seed
        for name in range(3):  # one that asks for no parameters at all
            assert (await engine.generate(PROMPTS[name])).seed is not None

    run(draw())


def test_progress_of_a_prompt() -> None:
    async def progress() -> None:
        async with await AsyncLLM.open(threads=1, max_num_batched_tokens=16) as engine:
            found = [update async for update in engine.stream(range(1, 41), GREEDY, prompt_progress=True)]
            assert [u.progress for u in found if u.progress] == [
                PromptProgress(40),
                PromptProgress(40, 0, 16),
                PromptProgress(40, 0, 32),
                PromptProgress(40, 0, 40),
            ]
            assert found[0].chunks == () and found[3].chunks and found[4].progress is None
            again = [update async for update in engine.stream(range(1, 41), GREEDY, prompt_progress=True)]
            assert [u.progress for u in again if u.progress] == [PromptProgress(40), PromptProgress(40, 32, 40)]
            assert again[-1].output is not None and again[-1].output.num_cached_tokens == 32
            (other,) = [u.output async for u in engine.stream(range(1, 41), GREEDY, salt="a tenant") if u.output]
            assert other.num_cached_tokens == 0 and other.outputs == again[-1].output.outputs

    run(progress())


@pytest.mark.parametrize(
    ("prompt", "options", "kind", "message"),
    [
        ([], {}, RequestError, "the prompt has no tokens"),
        ([1, 10**6], {}, RequestError, "the prompt: 1000000 is no token id"),
        ("a", {"params": SamplingParams(max_tokens=10**6)}, CapacityError, r"max_tokens=1000000 .*leaves \d+"),
        ("word " * 3000, {}, CapacityError, "context"),
        ("a", {"params": 3}, RequestError, "no SamplingParams"),
        ("a", {"salt": 3}, RequestError, "salt=3"),
        ("a", {"salt": "\ud800"}, RequestError, r"'\\ud800' of the request is no valid Unicode"),
        ("a", {"params": SamplingParams(stop="x\udfff")}, RequestError, "no valid Unicode"),
        ("a", {"priority": "high"}, RequestError, "priority='high'"),
    ],
    ids=range(9),
)
def test_what_can_never_be_served(
    prompt: Any, options: dict[str, Any], kind: type[KaratError], message: str, engine: AsyncLLM
) -> None:
    async def refused() -> None:
        with pytest.raises(kind, match=message):
            await anext(engine.stream(prompt, **options))
        assert (await engine.generate(PROMPTS[0], GREEDY)).finished

    run(refused())


def test_two_open_requests_have_two_names(engine: AsyncLLM) -> None:
    async def twice() -> None:
        stream = engine.stream(PROMPTS[0], replace(GREEDY, max_tokens=900), request_id="mine")
        await anext(stream)
        with pytest.raises(RequestError, match="request 'mine' is already open"):
            await anext(engine.stream(PROMPTS[0], GREEDY, request_id="mine"))
        await stream.aclose()
        assert (await engine.generate(PROMPTS[0], GREEDY, request_id="mine")).request_id == "mine"

    run(twice())


def test_errors_of_loading_are_those_of_llm(tmp_path: Any) -> None:
    folder = write_model(tmp_path)
    (folder / "model.safetensors").write_bytes(b"not a model")
    for make in (LLM, AsyncLLM):
        with pytest.raises(CheckpointError) as found:
            make(folder)
        said = str(found.value)
    with pytest.raises(CheckpointError) as found:
        run(AsyncLLM.open(folder))
    assert str(found.value) == said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"no_such": 1}, "LLM has no no_such"),
        ({"seed": 1}, "AsyncLLM has no seed"),
        ({"max_queue": -1}, "max_queue=-1"),
        ({"queue_timeout_s": 0}, "queue_timeout_s=0"),
        ({"max_num_seqs": 0}, "max_num_seqs=0"),
        ({"tokenizer": 3}, "tokenizer=3"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_are_checked_before_a_process_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        AsyncLLM(**options)


def test_another_tokenizer_and_what_loading_warns_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The words of LLM, in the loggers of this process."""
    folder, other = tmp_path / "model", tmp_path / "other"
    for path in (folder, other):
        path.mkdir()
        write_model(path, hidden_size=32, intermediate_size=48, chat_template=None if path == folder else "{{ 'hi' }}")
    said = []
    for make in (LLM, AsyncLLM):
        caplog.clear()
        with caplog.at_level("WARNING", "karat"):
            made = make(folder, tokenizer=str(other), quantize="q8_0", threads=1)
        said.append([(record.name, record.getMessage()) for record in caplog.records])
    assert said[0] == said[1] and said[0]
    assert isinstance(made, AsyncLLM) and made.has_chat_template and made.model_name == "model"
    assert run(made.render([{"role": "user", "content": "x"}])).text == "hi"
    made.shutdown()


def test_progress_of_loading() -> None:
    calls: list[tuple[int, int]] = []
    AsyncLLM(threads=1, progress=lambda done, total: calls.append((done, total))).shutdown()
    assert calls and calls[-1][0] == calls[-1][1]


def test_it_is_imported_when_it_is_asked_for() -> None:
    assert karat.AsyncLLM is AsyncLLM and "AsyncLLM" in dir(karat)


def test_weights_are_hashed_beside_loading_and_no_token_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hashing, may_go_on = threading.Event(), threading.Event()
    leaf, texts = fingerprint_module._leaf, Mock(side_effect=fingerprint_module._texts)

    def held(name: str, weight: Weight, pause: Any) -> bytes:
        texts_first.append(texts.called)  # they hold the interpreter's lock, so they come before the model is loaded
        hashing.set()
        assert may_go_on.wait(120)
        return leaf(name, weight, pause)

    began, texts_first = list[bool](), list[bool]()  # before all is loaded
    monkeypatch.setattr(fingerprint_module, "_leaf", held)
    monkeypatch.setattr(fingerprint_module, "_texts", texts)
    engine = AsyncLLM(threads=1, progress=lambda done, total: began.append(hashing.wait(60)))
    try:
        assert began and all(began) and texts_first == [True]
        output = run(engine.generate("Once", GREEDY))
        assert isinstance(output, RequestOutput) and len(output.outputs[0].token_ids) == 12
        assert engine.system_fingerprint is None
        may_go_on.set()
        assert run(engine.fingerprint()).short == engine.system_fingerprint
    finally:
        may_go_on.set()
        engine.shutdown()


def test_weights_are_hashed_with_pauses_only_while_requests_are_open() -> None:
    async def asked() -> tuple[bool, ...]:
        async with await AsyncLLM.open(threads=1) as engine:
            is_idle = engine._fingerprinting._pace.is_idle
            before, stream = is_idle(), engine.stream("Once", replace(GREEDY, max_tokens=900))
            await anext(stream)
            beside = is_idle()
            await stream.aclose()
            return before, beside, is_idle()

    assert run(asked()) == (True, False, True)


def test_a_closed_model_is_hashed_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, hashed = threading.Event(), list[str]()

    def held(name: str, weight: Weight, pause: Any) -> bytes:
        hashed.append(name)
        assert may_go_on.wait(120)
        return b""

    monkeypatch.setattr(fingerprint_module, "_leaf", held)
    engine = AsyncLLM(threads=1)
    engine.shutdown()
    may_go_on.set()
    with pytest.raises(UsageError, match="closed before its weights were hashed"):
        run(engine.fingerprint())
    assert len(hashed) <= 1

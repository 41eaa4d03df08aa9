"""The same request has the same tokens, however it is asked and whatever happens beside it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from karat import LLM, AsyncLLM, SamplingParams
from karat.engine.scheduling.scheduler import Scheduler
from karat.engine.scheduling.sequence import Sequence
from tests.server.conftest import SOURCE, Running, serving
from tests.server.test_lifecycle import engine_of, needs_proc

TEXT = "Tell me a story about a fox and a lantern."
MESSAGES = [{"role": "user", "content": TEXT}]
GIVEN: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 11, "max_tokens": 48}


@needs_proc
def test_the_same_request_has_the_same_tokens_however_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM()
    expected = of_llm(llm)
    assert len(expected) == GIVEN["max_tokens"]
    assert of_llm_preempted(monkeypatch) == expected
    assert asyncio.run(of_async_llm()) == expected
    assert of_command_line() == expected
    with serving() as server:
        assert of_http(server) == expected
        os.kill(engine_of(server), signal.SIGKILL)
        server.until(lambda: server.ask("/health").status == 503)
        server.until(lambda: server.ask("/ready").status == 200)
        assert of_http(server) == expected, "after a restart"
    # The cache holds one context of 16 that grow beyond it together.
    with serving("--max-model-len", "256", "--kv-cache-bytes", "400000") as server, ThreadPoolExecutor(16) as threads:
        others = [threads.submit(server.text, prompt=[300 + n] * 40, max_tokens=60, ignore_eos=True) for n in range(15)]
        server.until(lambda: server.gauge("karat_sequences_running") > 2)
        asked = [threads.submit(of_http, server) for _ in range(3)]
        assert [one.result() for one in asked] == [expected] * 3, "beside fifteen others"
        assert {one.result().status for one in others} == {200}
        assert server.gauge("karat_preemptions") > 0


def of_llm(llm: LLM) -> list[int]:
    (output,) = llm.chat(MESSAGES, SamplingParams(**GIVEN))
    return list(output.outputs[0].token_ids)


def of_llm_preempted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The last of sixteen in a cache that they outgrow together: the first whose blocks are taken."""
    llm = LLM(max_model_len=256, num_blocks=70)
    others = [llm.tokenizer.decode([300 + n] * 40) for n in range(15)]
    grown = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    preempted: list[int] = []
    preempt = Scheduler._preempt

    def noted(scheduler: Scheduler, seq: Sequence) -> None:
        preempted.append(seq.seq_id)
        preempt(scheduler, seq)

    monkeypatch.setattr(Scheduler, "_preempt", noted)
    prompts = [*others, llm.chat_prompt(MESSAGES)]
    *_, ours = llm.generate(prompts, [*[grown] * 15, SamplingParams(**GIVEN)])
    assert 15 in preempted, "ours was not preempted"
    return list(ours.outputs[0].token_ids)


async def of_async_llm() -> list[int]:
    async with await AsyncLLM.open() as llm:
        output = await llm.chat(MESSAGES, SamplingParams(**GIVEN))
        return list(output.outputs[0].token_ids)


def of_command_line() -> list[int]:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in GIVEN.items()]
    done = subprocess.run(
        [sys.executable, "-m", "karat", "run", "--chat", TEXT, "-q", "--json", *options],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        check=True,
    )
    ids: list[int] = json.loads(done.stdout)["choices"][0]["token_ids"]
    return ids


def of_http(server: Running) -> list[int]:
    body = {"messages": MESSAGES, "return_token_ids": True, **GIVEN}
    choice = server.ask("/v1/chat/completions", body).json["choices"][0]
    ids: list[int] = choice["token_ids"]
    return ids

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
from tests.server.conftest import SOURCE, Running, serving
from tests.server.test_lifecycle import engine_of, needs_proc

TEXT = "Tell me a story about a fox and a lantern."
MESSAGES = [{"role": "user", "content": TEXT}]
GIVEN: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 11, "max_tokens": 48}


def of_http(server: Running) -> list[int]:
    body = {"messages": MESSAGES, "return_token_ids": True, **GIVEN}
    choice = server.ask("/v1/chat/completions", body).json["choices"][0]
    ids: list[int] = choice["token_ids"]
    return ids


@pytest.fixture(scope="module")
def expected() -> list[int]:
    """LLM's."""
    (output,) = LLM().chat(MESSAGES, SamplingParams(**GIVEN))
    return list(output.outputs[0].token_ids)


def test_of_async_llm(expected: list[int]) -> None:
    async def ask() -> list[int]:
        async with await AsyncLLM.open() as llm:
            output = await llm.chat(MESSAGES, SamplingParams(**GIVEN))
            return list(output.outputs[0].token_ids)

    assert asyncio.run(ask()) == expected


def test_of_the_command_line(expected: list[int]) -> None:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in GIVEN.items()]
    done = subprocess.run(
        [sys.executable, "-m", "karat", "run", "--chat", TEXT, "-q", "--json", *options],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        check=True,
    )
    assert json.loads(done.stdout)["choices"][0]["token_ids"] == expected


@needs_proc
def test_of_a_server_alone_and_after_its_engine_was_restarted(expected: list[int]) -> None:
    with serving() as server:
        assert of_http(server) == expected
        os.kill(engine_of(server), signal.SIGKILL)
        server.until(lambda: server.ask("/health").status == 503)
        server.until(lambda: server.ask("/ready").status == 200)
        assert of_http(server) == expected


def test_of_a_server_among_fifteen_others_that_preempt_each_other(expected: list[int]) -> None:
    """The cache holds one context of 16 that grow beyond it together."""
    with serving("--max-model-len", "256", "--kv-cache-bytes", "400000") as server, ThreadPoolExecutor(16) as threads:
        others = [threads.submit(server.text, prompt=[300 + n] * 40, max_tokens=60, ignore_eos=True) for n in range(15)]
        server.until(lambda: server.gauge("karat_sequences_running") > 2)
        asked = [threads.submit(of_http, server), *(threads.submit(of_http, server) for _ in range(2))]
        assert [one.result() for one in asked] == [expected] * 3
        assert {one.result().status for one in others} == {200}
        assert server.gauge("karat_preemptions") > 0

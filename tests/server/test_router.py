"""Replicas behind vllm-router with cache-aware routing: a conversation stays where its beginning is in the cache, and
goes on at another replica, to the same token, when its own is killed."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from benchmarks.serving import free_port
from karat import LLM, SamplingParams
from karat.client import stream
from tests.server.conftest import Running, serving

if importlib.util.find_spec("vllm_router") is None:
    pytest.skip("vllm-router is not installed (requirements/router.txt)", allow_module_level=True)

NAMES = ("fox", "lantern", "rabbit", "river", "grandmother", "boat")
JSON = "application/json"
GREEDY = {"temperature": 0, "max_tokens": 12}
Conversation = list[dict[str, str]]


@pytest.fixture
def replicas() -> Iterator[list[Running]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving("--served-model-name", "m", "--threads", "1")) for _ in range(2)]


@pytest.fixture
def router(replicas: list[Running]) -> Iterator[Running]:
    port, ports = free_port(), ("--prometheus-port", str(free_port()))
    command = [sys.executable, "-m", "vllm_router.launch_router", "--port", str(port), *ports]
    options = ["--policy", "cache_aware", "--balance-abs-threshold", "1", "--balance-rel-threshold", "1.0"]
    options += ["--cb-failure-threshold", "1"]  # no second request to one that has died
    urls = ["--worker-urls", *(replica.url for replica in replicas)]
    process = subprocess.Popen(
        [*command, *options, *urls], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    )
    running = Running(process, port)

    def is_up() -> bool:
        try:
            return running.ask("/health").status == 200
        except OSError:
            return False

    try:
        running.until(is_up)
        yield running
    finally:
        process.kill()
        process.wait(30)


def opening(name: str) -> Conversation:
    """Of different lengths, so that no two conversations share their beginning or end at the same time."""
    return [{"role": "user", "content": f"{name} " * (30 + len(name)) + f"Tell me a story about the {name}."}]


def turn(router: Running, conversation: Conversation) -> int:
    """Ask, append the answer and the next question. Returns the number of tokens that were found in the cache."""
    body = {"model": "m", "messages": conversation, **GREEDY}
    answer = router.ask("/v1/chat/completions", body, content_type=JSON)
    assert answer.status == 200, answer.content
    text = answer.json["choices"][0]["message"]["content"]
    conversation += [{"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
    return int(answer.json["usage"]["prompt_tokens_details"]["cached_tokens"])


def num_answered(replica: Running) -> int:
    found = re.search(r'^karat_requests_total{end="ok"} (\S+)$', replica.ask("/metrics").content.decode(), re.MULTILINE)
    return 0 if found is None else int(float(found[1]))


def kill_in_the_middle_of_a_stream(replicas: list[Running], router: Running) -> Running:
    """The replica that was killed. The client's stream goes on through the router, as if nothing had happened."""
    request = {"prompt": "Once upon a time", "temperature": 1, "seed": 3, "max_tokens": 900, "ignore_eos": True}
    text, killed = "", None
    for count, piece in enumerate(stream({"model": "m", **request}, url=router.url)):
        text += piece.text
        if count == 5:
            (killed,) = (replica for replica in replicas if replica.gauge("karat_sequences_running"))
            killed.process.kill()
    assert killed is not None
    (other,) = (replica for replica in replicas if replica is not killed)
    assert text == other.text(**request).json["choices"][0]["text"] and len(text) > 600
    return killed


@pytest.mark.slow
def test_conversations_survive_their_replica(replicas: list[Running], router: Running) -> None:
    conversations = [opening(name) for name in NAMES]

    def all_turn() -> list[int]:
        with ThreadPoolExecutor(len(NAMES)) as threads:
            return list(threads.map(lambda conversation: turn(router, conversation), conversations))

    all_turn()
    assert all(num_answered(replica) for replica in replicas), "both have some"
    found = [turn(router, conversation) for conversation in conversations]
    assert min(found) >= 48, "each goes back to where its beginning is"
    replicas.remove(kill_in_the_middle_of_a_stream(replicas, router))
    all_turn()
    found = [turn(router, conversation) for conversation in conversations]
    assert min(found) >= 96, "now they are at home on the other"
    with LLM(threads=1) as llm:
        for conversation in conversations:
            for end in range(1, len(conversation), 2):
                (output,) = llm.chat(conversation[:end], SamplingParams(**GREEDY), sanitize_control_tokens=True)  # type: ignore[arg-type]
                assert output.outputs[0].text == conversation[end]["content"], "an undisturbed one"


@pytest.mark.slow
def test_what_the_router_adds_to_requests_is_known(replicas: list[Running], router: Running) -> None:
    """It states defaults of its own in every request that it passes on."""
    for path, body in (
        ("/v1/chat/completions", {"messages": opening("fox"), "return_token_ids": True, "top_k": 3}),
        ("/v1/completions", {"prompt": "Once upon a time", "return_token_ids": True}),
        ("/v1/completions", {"prompt": [5, 6, 7]}),
        ("/v1/messages", {"messages": opening("fox")}),
        ("/v1/responses", {"input": "Once upon a time"}),
    ):
        limit: dict[str, Any] = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 4}
        answer = router.ask(path, {"model": "m", **limit, **body}, content_type=JSON)
        assert answer.status == 200, (path, answer.content)
        if "return_token_ids" in body:
            assert answer.json["choices"][0]["token_ids"], "fields that it does not know go through"
    streaming = {"model": "m", "prompt": "Once", "max_tokens": 4, "stream": True}
    streamed = router.ask("/v1/completions", streaming, content_type=JSON)
    assert streamed.events and json.dumps(streamed.events[-1]["karat"]["seed"]) == streamed.headers["karat-seed"]

"""While long prompts are computed, the server answers, pings, and drops who leaves."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.server.conftest import Running
from tests.server.test_hostile import request_bytes

LATE_S = 10 * 0.1  # ten times the goal: the machine may be busy
PING_S = 0.1
NUM_PROMPTS, PROMPT_LEN = 6, 1000


@pytest.fixture(scope="module")
def slow(start: Callable[..., Any]) -> Iterator[Running]:
    """The reference executor, which takes some tenths of a second for a step."""
    with start("--executor", "reference", "--ping-s", str(PING_S)) as server:
        yield server


def body(first: int) -> dict[str, Any]:
    """Prompts that no other request has."""
    prompts = [[first + number, *range(5, PROMPT_LEN + 4)] for number in range(NUM_PROMPTS)]
    return {"prompt": prompts, "max_tokens": 1, "stream": True}


def test_it_answers_and_pings_in_the_middle_of_steps(slow: Running) -> None:
    answers = []
    steps = slow.gauge("karat_steps")
    asking = threading.Thread(target=lambda: answers.append(slow.ask("/v1/completions", body(100))))
    begun = time.monotonic()
    asking.start()
    waits = []
    while asking.is_alive():
        asked = time.monotonic()
        assert slow.ask("/health").status == 200
        waits.append(time.monotonic() - asked)
        time.sleep(0.01)
    took_s = time.monotonic() - begun
    num_steps = slow.gauge("karat_steps") - steps
    assert len(answers[0].events) >= NUM_PROMPTS and num_steps >= 3
    assert len(waits) > 3 * num_steps, "it answers between steps at most"
    assert sorted(waits)[int(len(waits) * 0.99)] < LATE_S
    assert answers[0].content.count(b": ping") > took_s / LATE_S - num_steps, "a ping comes a second late"


@pytest.mark.slow
def test_who_leaves_is_dropped_in_the_middle_of_a_step(slow: Running) -> None:
    busy = slow.gauge("karat_http_requests_busy")
    connection = socket.create_connection(("127.0.0.1", slow.port))
    connection.sendall(request_bytes("/v1/completions", body(200)))
    slow.until(lambda: slow.gauge("karat_http_requests_busy") > busy)
    slow.until(lambda: slow.gauge("karat_sequences_running") > 0 or slow.gauge("karat_http_requests_busy") == busy)
    steps, left = slow.gauge("karat_steps"), time.monotonic()
    connection.close()
    slow.until(lambda: slow.gauge("karat_http_requests_busy") == busy)
    assert time.monotonic() - left < LATE_S
    slow.until(lambda: slow.gauge("karat_sequences_running") == 0)
    assert slow.gauge("karat_steps") <= steps + 2 and slow.gauge("karat_kv_blocks_used") == 0

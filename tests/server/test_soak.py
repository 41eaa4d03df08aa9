"""Many clients for a while, of whom a fifth leave: in the end the server holds what it held at the beginning."""

import http.client
import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_states_elsewhere import CONFIG
from tests.engine.tiny import write_model
from tests.server.conftest import Running, serving
from tests.server.test_hostile import request_bytes
from tests.support.seed import SEED

NUM_CLIENTS = 12
MAX_GROWTH_KB = 64 * 1024
pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")


def held(server: Running) -> dict[str, int]:
    """Descriptors, threads and memory (kB) of the server's process."""
    place = Path(f"/proc/{server.process.pid}")
    status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    return {
        "descriptors": len(list((place / "fd").iterdir())),
        "threads": int(status["Threads"]),
        "memory": int(status["VmRSS"].split()[0]),
    }


def request(rng: random.Random) -> tuple[str, dict[str, Any]]:
    common = {"max_tokens": rng.randint(1, 48), "temperature": rng.choice([0, 1]), "stream": rng.random() < 0.6}
    if rng.random() < 0.5:
        message = {"role": "user", "content": "word " * rng.randint(1, 60)}
        return "/v1/chat/completions", {"messages": [message], **common}
    return "/v1/completions", {"prompt": [rng.randrange(5, 250)] * rng.randint(1, 200), **common}


class Client(threading.Thread):
    """Asks until the end, and leaves one answer in five in the middle."""

    def __init__(self, server: Running, seed: str, end: float) -> None:
        super().__init__()
        self._server, self._rng, self._end = server, random.Random(seed), end
        self.num_whole = self.num_left = 0
        self.faults: list[str] = []

    def run(self) -> None:
        while time.monotonic() < self._end:
            route, body = request(self._rng)
            connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=600)
            try:
                if self._rng.random() < 0.2:
                    connection.connect()
                    connection.sock.sendall(request_bytes(route, body))
                    time.sleep(self._rng.random() * 0.2)
                    self.num_left += 1
                    continue
                connection.request("POST", route, json.dumps(body))
                answer = connection.getresponse()
                content = answer.read()
                if answer.status != 200 or (body["stream"] and not content.endswith(b"data: [DONE]\n\n")):
                    self.faults.append(f"{answer.status} {content[-200:]!r}")
                self.num_whole += 1
            except OSError as fault:
                self.faults.append(repr(fault))
            finally:
                connection.close()


def load(server: Running, seconds: float) -> tuple[list[Client], list[float]]:
    """Clients for so long, and how long /health took meanwhile."""
    end = time.monotonic() + seconds
    clients = [Client(server, f"{SEED} {number}", end) for number in range(NUM_CLIENTS)]
    for client in clients:
        client.start()
    waits = []
    while time.monotonic() < end:
        begun = time.monotonic()
        assert server.ask("/health").status == 200
        waits.append(time.monotonic() - begun)
        time.sleep(0.05)
    for client in clients:
        client.join()
    return clients, waits


def settled(server: Running) -> dict[str, int]:
    """What is held when nothing is under way."""
    names = ("karat_kv_blocks_used", "karat_sequences_waiting", "karat_sequences_running")
    server.until(lambda: not any(server.gauge(name) for name in names))
    return held(server)


@pytest.fixture(params=["embedded", "hybrid"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """The embedded model, or one with recurrent layers, few sequences at once and room for few states."""
    if request.param == "embedded":
        return []
    return [str(write_model(tmp_path, **CONFIG)), "--max-num-seqs", "4", "--state-cache-bytes", "100000"]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [3, pytest.param(1200, marks=pytest.mark.long)])
@pytest.mark.timeout(1800)
def test_a_soak_with_disconnects(seconds: int, model: list[str]) -> None:
    with serving(*model) as server:
        load(server, 2)  # threads and buffers that stay
        before = settled(server)
        clients, waits = load(server, seconds)
        assert [fault for client in clients for fault in client.faults] == []
        assert sum(client.num_whole for client in clients) > seconds and sum(client.num_left for client in clients) > 0
        server.until(lambda: settled(server)["descriptors"] <= before["descriptors"])
        after = settled(server)
        assert after["threads"] <= before["threads"]
        assert after["memory"] < before["memory"] + MAX_GROWTH_KB
        assert sorted(waits)[int(len(waits) * 0.99)] < 10 * 0.5, "ten times the goal: the machine may be busy"
        if model:
            assert server.gauge("karat_state_snapshots") <= server.gauge("karat_state_snapshots_most")
            assert server.gauge("karat_prefix_cache_hits") > 0, "chats begin alike"
        assert server.stop() == 0

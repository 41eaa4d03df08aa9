"""Everything at once for a while: every answer is that of the same request alone, and the event loop stays awake."""

import json
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from karat.ops.native import unavailable_reason
from tests.engine.test_states_elsewhere import CONFIG as STATEFUL
from tests.engine.tiny import write_model
from tests.server.conftest import Running, serving
from tests.server.test_hostile import request_bytes
from tests.support.scripted import write_scripted
from tests.support.seed import SEED
from tests.text.tools.models import HERMES

if reason := unavailable_reason():
    pytest.skip(reason, allow_module_level=True)

NUM_CLIENTS = 8
HEALTH_S = 0.05  # the goal, of 99 in 100
CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
VERIFY, COMPARE = "/v1/receipts/verify", "/v1/receipts/compare"
USER = [{"role": "user", "content": "What is the weather in Oslo, and why?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "parameters": SCHEMA}
FORM = {"type": "json_schema", "json_schema": {"name": "f", "schema": SCHEMA}}
SHORT: dict[str, Any] = {"max_tokens": 24, "temperature": 1, "seed": 7}
LARGE = [{"role": "user", "content": "word " * 500}, {"role": "assistant", "content": "Yes."}, *USER]
KINDS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": USER, **SHORT}),
    (CHAT, {"messages": USER, **SHORT, "stream": True, "temperature": 0}),
    (CHAT, {"messages": USER, **SHORT, "n": 3, "logprobs": True, "top_logprobs": 2}),
    (CHAT, {"messages": LARGE, **SHORT, "max_tokens": 4}),
    (CHAT, {"messages": LARGE, **SHORT, "max_tokens": 8, "karat": {"receipt": True}}),
    (CHAT, {"messages": USER, **SHORT, "response_format": FORM}),
    (CHAT, {"messages": USER, **SHORT, "tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}),
    (TEXT, {"prompt": "Once upon a time", **SHORT, "stream": True, "n": 2, "karat": {"receipt": True}}),
    (TEXT, {"prompt": [5, 6, 7] * 20, **SHORT, "repetition_penalty": 1.2, "explain": True}),
    (RESPONSES, {"input": USER, "max_output_tokens": 24, "temperature": 1, "seed": 7}),
    (RESPONSES, {"input": USER, "tools": [{"type": "function", **TOOL}], "tool_choice": "required", "seed": 7}),
    (MESSAGES, {"messages": USER, **SHORT, "stream": True}),
    (
        MESSAGES,
        {
            "messages": USER,
            "max_tokens": 64,
            "seed": 7,
            "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any"},
        },
    ),
]
OWN = {"id", "call_id", "item_id", "created", "created_at", "completed_at", "timings", "usage", "seconds"}
"""Fields that are another in each answer."""


def same_of(value: Any) -> Any:
    """A value of JSON without OWN; of verdicts and comparisons without their words, which tell the seconds."""
    if isinstance(value, dict):
        own = OWN | ({"text"} if "seconds" in value else set())
        return {name: same_of(each) for name, each in value.items() if name not in own}
    return [same_of(each) for each in value] if isinstance(value, list) else value


def said(server: Running, route: str, body: dict[str, Any]) -> Any:
    """An answer as it is to be every time. Of a stream with several choices the events of each: steps may part them."""
    answer = server.ask(route, body, timeout=600)
    if answer.status != 200:
        return answer.status, answer.content
    if not body.get("stream"):
        return same_of(answer.json)
    lines = [line.removeprefix("data: ") for line in answer.content.decode().splitlines() if line.startswith("data: ")]
    events = [same_of(json.loads(line)) for line in lines if line != "[DONE]"]
    return sorted(events, key=lambda event: [choice["index"] for choice in event.get("choices", ())])


def kinds_with_receipts(server: Running) -> list[tuple[str, dict[str, Any]]]:
    """All kinds, and receipts of two of them, verified and compared."""
    made = [server.ask(CHAT, body).json["karat"]["receipt"] for route, body in KINDS[4:5]]
    made.append(server.ask(TEXT, {"prompt": "Once", **SHORT, "karat": {"receipt": True}}).json["karat"]["receipt"])
    compared = [(COMPARE, {"receipt": receipt, "activations": "int8"}) for receipt in made]
    return [*KINDS, *[(VERIFY, {"receipt": receipt}) for receipt in made], *compared]


class Client(threading.Thread):
    """Asks until the end; leaves one answer in six in the middle."""

    def __init__(self, server: Running, wanted: list[tuple[str, dict[str, Any], Any]], seed: str, end: float) -> None:
        super().__init__()
        self._server, self._wanted, self._rng, self._end = server, wanted, random.Random(seed), end
        self.faults: list[str] = []
        self.num_whole = 0

    def run(self) -> None:
        while self.num_whole == 0 or time.monotonic() < self._end:  # each has an answer, however busy the machine
            route, body, want = self._rng.choice(self._wanted)
            try:
                if self._rng.random() < 1 / 6:
                    with socket.create_connection(("127.0.0.1", self._server.port)) as connection:
                        connection.sendall(request_bytes(route, body))
                        connection.settimeout(self._rng.random() * 0.1 + 0.001)
                        connection.recv(1)
                    continue
                if (found := said(self._server, route, body)) != want:
                    self.faults.append(f"{route} {body}: {found!r}, alone {want!r}"[:3000])
                self.num_whole += 1
            except TimeoutError:
                pass  # it leaves before the first byte
            except Exception as fault:  # noqa: BLE001 - reported by the test
                self.faults.append(repr(fault))
                return


def soak(seconds: int, model: list[str]) -> float:
    """Seconds within which 99 % of /health were answered. AssertionError if an answer differs, or something is held in
    the end.
    """
    with serving(*model, "--quantize", "q8_0", "--max-model-len", "4096") as server:
        kinds = kinds_with_receipts(server)
        wanted = [(route, body, said(server, route, body)) for route, body in kinds]
        assert [(route, body, want) for route, body, want in wanted if isinstance(want, tuple)] == []
        end = time.monotonic() + seconds
        clients = [Client(server, wanted, f"{SEED} {number}", end) for number in range(NUM_CLIENTS)]
        waits = []
        for client in clients:
            client.start()
        while time.monotonic() < end:
            begun = time.monotonic()
            assert server.ask("/health").status == 200
            waits.append(time.monotonic() - begun)
            time.sleep(0.02)
        for client in clients:
            client.join()
        assert [fault for client in clients for fault in client.faults][:3] == []
        most = sorted(waits)[int(len(waits) * 0.99)]
        print(f"{sum(client.num_whole for client in clients)} answers; 99 % of /health within {most * 1000:.0f} ms")
        names = ("karat_kv_blocks_used", "karat_sequences_waiting", "karat_sequences_running")
        server.until(lambda: not any(server.gauge(name) for name in names))
        assert server.stop() == 0
    return most


@pytest.mark.parametrize("seconds", [3, pytest.param(600, marks=pytest.mark.long)])
@pytest.mark.timeout(1800)
def test_every_answer_is_that_of_its_request_alone(seconds: int, tmp_path: Path) -> None:
    most = soak(seconds, [str(write_scripted(tmp_path, HERMES))])
    assert most < 10 * HEALTH_S, "ten times the goal: the machine may be busy"


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [3, pytest.param(600, marks=pytest.mark.long)])
@pytest.mark.timeout(1800)
def test_so_it_is_with_recurrent_layers(seconds: int, tmp_path: Path) -> None:
    """With room for few states, which come and go."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "linear_key_head_dim": 8, "linear_value_head_dim": 16}
    changes = sizes | {"max_position_embeddings": 4096}
    folder = write_model(tmp_path, chat_template=HERMES, **(STATEFUL | changes))
    soak(seconds, [str(folder), "--max-num-seqs", "6", "--state-cache-bytes", "400000"])

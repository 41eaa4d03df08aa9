"""An application of karat.ray on a cluster here, asked as its users do, and the processes of its replicas."""

import json
import os
import random
import re
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.ray_nodes import processes

_NAME = "karat-test"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class Streamed:
    """The events of an answer, and the longest time between two of them."""

    events: list[dict[str, Any]] = field(default_factory=list)
    gap_s: float = 0.0
    closed: bool = False

    @property
    def said(self) -> str:
        """Everything that the answer says, without what no two answers share: ids, times, tokens that were cached."""
        joined = dict[str, str]()
        rest = dict[str, Any]()
        for event in self.events:
            _gather(_plain(event), (), joined, rest)
        return json.dumps([joined, rest], sort_keys=True, indent=1)

    @property
    def ids(self) -> set[str]:
        """The ids of the answer that its events have."""
        found = [
            event.get("id") or (event.get("response") or event.get("message") or {}).get("id") for event in self.events
        ]
        return {each for each in found if each}


class Application:
    """An application at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def open(self, route: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + route, data, {"content-type": "application/json"})
        return urllib.request.urlopen(asked, timeout=300)

    def ask(self, route: str, body: Mapping[str, Any] | None = None) -> Any:
        with self.open(route, body) as answer:
            return json.loads(answer.read())

    def stream(
        self, route: str, body: Mapping[str, Any], seen: Callable[[Streamed], None] = lambda _: None
    ) -> Streamed:
        """An answer as events. `seen` is called after each of them."""
        made = Streamed()
        with self.open(route, {**body, "stream": True}) as answer:
            last = time.monotonic()
            for line in answer:
                if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                    continue
                made.events.append(json.loads(line.removeprefix(b"data: ")))
                now = time.monotonic()
                if len(made.events) > 1:
                    made.gap_s = max(made.gap_s, now - last)
                last = now
                seen(made)
                if made.closed:
                    break
        return made

    def streams(
        self, asked: list[tuple[str, Mapping[str, Any]]], seen: Callable[[Streamed], None] = lambda _: None
    ) -> list[Streamed]:
        """Several at once."""
        made: list[Streamed | None] = [None] * len(asked)

        def one(number: int) -> None:
            made[number] = self.stream(*asked[number], seen)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(len(asked))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(made), "a stream raised an error"
        return [each for each in made if each is not None]

    def await_replicas(self, number: int, wait_s: float = 240) -> list[int]:
        """The processes of so many replicas, once their engines are loaded."""
        end = time.monotonic() + wait_s
        while time.monotonic() < end:
            found = [pid for pid in replicas() if engine_of(pid) is not None]
            if len(found) == number and self._is_running(number):
                return found
            time.sleep(0.2)
        raise TimeoutError(f"{len(replicas())} replicas after {wait_s} s, {number} are wanted")

    def _is_running(self, number: int) -> bool:
        from ray import serve

        states = serve.status().applications[_NAME].deployments["Replica"].replica_states
        return {str(state): count for state, count in states.items() if count} == {"RUNNING": number}


@contextmanager
def application(replica: Mapping[str, Any] | None = None, **arguments: Any) -> Iterator[Application]:
    """An application, as `deploy` has it."""
    from ray import serve

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    try:
        _start_serve(port)
        deploy(replica, **arguments)
        yield Application(f"http://127.0.0.1:{port}")
    finally:
        serve.shutdown()


def _start_serve(port: int) -> None:
    from ray import serve

    for tries_left in (4, 3, 2, 1, 0):
        try:
            serve.start(proxy_location="HeadOnly", http_options={"port": port})
            return
        except TimeoutError:  # after a minute, and a busy machine may need more
            if not tries_left:
                raise


def deploy(replica: Mapping[str, Any] | None = None, **arguments: Any) -> None:
    """Deploy it, or change the one that is there, as a file does: these arguments, and options of Serve's for the
    deployment of the replicas.
    """
    import ray
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    given = {"name": _NAME, "import_path": "karat.ray:app", "route_prefix": "/", "args": arguments}
    given["deployments"] = [{"name": "Replica", **(replica or {})}]
    client = _get_global_client()
    client.deploy_apps(ServeDeploySchema.model_validate({"applications": [given]}))
    while not ray.get(client._controller.get_serve_status.remote(_NAME)):
        time.sleep(0.1)
    client._wait_for_application_running(_NAME)


def replicas() -> list[int]:
    """The processes of the replicas."""
    return processes(f"ray::ServeReplica:{_NAME}:Replica")


def ingresses() -> list[int]:
    """The processes of the ingresses."""
    return processes(f"ray::ServeReplica:{_NAME}:Ingress")


def engine_of(replica: int) -> int | None:
    """The process of a replica's engine, the youngest of its children."""
    with suppress(OSError):
        threads = [each.name for each in Path(f"/proc/{replica}/task").iterdir()]
        children = [
            pid for each in threads for pid in Path(f"/proc/{replica}/task/{each}/children").read_text().split()
        ]
        return max(map(int, children), default=None)
    return None


def work_s(replica: int) -> float:
    """Processor time of a replica's engine."""
    engine = engine_of(replica)
    with suppress(OSError):
        return 0.0 if engine is None else processor_s(engine)
    return 0.0


def processor_s(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


class Busiest:
    """Which replica has worked since this was made."""

    def __init__(self) -> None:
        self._before = {pid: work_s(pid) for pid in replicas()}

    def __call__(self) -> int:
        return max(self._before, key=lambda pid: work_s(pid) - self._before[pid])


class KillsAt:
    """`seen` for streams: when one has so many events, the replica that works most gets a signal, once."""

    def __init__(self, number: int, number_of_signal: int = signal.SIGKILL) -> None:
        self._number, self._signal = number, number_of_signal
        self._busiest, self._lock = Busiest(), threading.Lock()
        self.killed: int | None = None

    def __call__(self, streamed: Streamed) -> None:
        with self._lock:
            if self.killed is None and len(streamed.events) >= self._number:
                self.killed = self._busiest()
                os.kill(self.killed, self._signal)


def asked_in_all_protocols(draws: random.Random, num_tokens: int) -> list[tuple[str, dict[str, Any]]]:
    """A request of each protocol, with a story of about so many tokens."""
    word = draws.choice(["fox", "girl", "robot", "dog", "princess", "boat"])
    seed, talk = draws.randrange(1 << 30), [{"role": "user", "content": f"Tell me a story of a {word}."}]
    common = {"seed": seed, "temperature": 1.0, "ignore_eos": True, "karat": {"receipt": True}}
    usage = {"stream_options": {"include_usage": True}, "return_token_ids": True}
    return [
        (
            "/v1/chat/completions",
            {"messages": talk, "max_tokens": num_tokens, "n": 2, "logprobs": True, **usage, **common},
        ),
        ("/v1/completions", {"prompt": f"The {word}", "max_tokens": num_tokens, "stop": ["xyz"], **usage, **common}),
        ("/v1/responses", {"input": talk[0]["content"], "max_output_tokens": num_tokens, **common}),
        ("/v1/messages", {"messages": talk, "max_tokens": num_tokens, **common}),
    ]


_CHANGING = frozenset(
    "id created created_at completed_at timings item_id obfuscation sequence_number cached_tokens "
    "cache_read_input_tokens input_tokens prompt_tokens_details input_tokens_details".split()
)


def _plain(value: Any) -> Any:
    """Without what differs between two answers to the same request."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if key not in _CHANGING}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return re.sub(r"\b(?:msg|resp|chatcmpl|cmpl|rs|fc)[-_][0-9a-f]{8,}[-_0-9]*", "ID", value)
    return value


def _gather(value: Any, path: tuple[str, ...], joined: dict[str, str], rest: dict[str, Any]) -> None:
    """Texts and lists of the events joined by their place, as events are cut where the time wants it; the last of all
    other values.
    """
    if isinstance(value, dict):
        index = str(value["index"]) if isinstance(value.get("index"), int) else ""
        kind = str(value["type"]) if path == () and "type" in value else ""
        for key, each in value.items():
            _gather(each, (*path, kind, index, key), joined, rest)
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, dict) and "index" in each:
                _gather(each, path, joined, rest)
            else:
                joined["/".join(path)] = joined.get("/".join(path), "") + json.dumps(each, sort_keys=True) + " "
    elif isinstance(value, str) and path[-1] in ("content", "text", "delta", "thinking", "partial_json"):
        joined["/".join(path)] = joined.get("/".join(path), "") + value
    elif value is not None:
        rest["/".join(path)] = value

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
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.ray_nodes import processes

_NAME = "karat-test"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class Streamed:
    """The events of an answer, and when they came."""

    events: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    closed: bool = False

    @property
    def said(self) -> str:
        """Everything that the answer says, without times and tokens that were cached.

        Ids that a server draws anew for each answer are numbered as they come, so two answers agree if they have the
        same ids in the same places, each of them the same from its first event to its last. Events are cut where the
        time wants it, so they are joined; how they are numbered, they say without a hole.
        """
        joined, rest, ids = dict[str, str](), dict[str, Any](), dict[str, str]()
        for event in self.events:
            _gather(_plain(event, ids), (), joined, rest)
        numbers = [event["sequence_number"] for event in self.events if "sequence_number" in event]
        assert numbers == list(range(len(numbers))), numbers
        begun = {event[name] for event in self.events for name in ("created", "created_at") if name in event}
        assert len(begun) <= 1, begun
        return json.dumps([joined, rest, len(ids)], sort_keys=True, indent=1)

    def gap_s(self, waits: "Waits") -> float:
        """The longest time between two events, less what the application's processes waited for a core meanwhile: zero
        on a machine that is theirs alone, and little where they wait for Ray.
        """
        return max((end - begin - waits.between(begin, end) for begin, end in pairwise(self.times)), default=0.0)


class Waits:
    """How long processes that had something to do waited for a core: those of replicas, engines, ingresses and Serve's
    proxy, and this one. To be used as a context, in which it looks ten times a second.
    """

    def __init__(self) -> None:
        self._times, self._sums = list[float](), list[float]()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Waits":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def between(self, begin: float, end: float) -> float:
        """Seconds, of time.monotonic."""
        first = max(bisect_right(self._times, begin) - 1, 0)
        last = min(bisect_left(self._times, end), len(self._times) - 1)
        return self._sums[last] - self._sums[first]

    def _look(self) -> None:
        known, total = dict[Path, float](), 0.0
        pids = list[int]()
        while not self._ends.wait(0.1):
            if len(self._times) % 20 == 0:
                kinds = replicas(), ingresses(), processes("ray::ProxyActor")
                found = [pid for kind in kinds for pid in kind]
                pids = [*found, *filter(None, map(engine_of, found)), os.getpid()]
            for pid in pids:
                grown = [self._grown(path, known) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
                total += max(grown, default=0.0)  # its threads wait side by side
            self._times.append(time.monotonic())
            self._sums.append(total)

    @staticmethod
    def _grown(path: Path, known: dict[Path, float]) -> float:
        try:
            now = int(path.read_text().split()[1]) / 1e9
        except (OSError, IndexError):
            return 0.0
        before = known.get(path, now)
        known[path] = now
        return now - before


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
            for line in answer:
                if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                    continue
                made.events.append(json.loads(line.removeprefix(b"data: ")))
                made.times.append(time.monotonic())
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
    "created created_at completed_at timings obfuscation sequence_number cached_tokens cache_read_input_tokens".split()
)
_ID = re.compile(r"\b(?:msg|resp|chatcmpl|cmpl|rs|fc)[-_][0-9a-f]{8,}[-_0-9]*")


def _plain(value: Any, ids: dict[str, str]) -> Any:
    """Without what differs between two answers to the same request, and with ids by the order in which they come."""
    if isinstance(value, dict):
        cached = value.get("cache_read_input_tokens") or 0  # which Anthropic's input_tokens does not count
        plain = {key: _plain(each, ids) for key, each in value.items() if key not in _CHANGING}
        return {**plain, "input_tokens": value["input_tokens"] + cached} if "input_tokens" in value else plain
    if isinstance(value, list):
        return [_plain(each, ids) for each in value]
    if isinstance(value, str):
        return _ID.sub(lambda found: ids.setdefault(found[0], f"id {len(ids)}"), value)
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

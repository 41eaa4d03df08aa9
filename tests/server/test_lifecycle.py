"""How a server begins and ends: signals, a dead engine, a full queue, keys, TLS, and command lines that are wrong.

Covers: karat.cli.serve, karat.server.keys, karat.server.metrics, karat.server.serving, karat.server.state.
"""

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from karat.cli import main
from karat.cli.exits import TERMINATED
from karat.errors import EngineDiedError, KaratError, OverloadedError, UsageError
from karat.server.errors import of_karat
from tests.server.conftest import Running, serving
from tests.server.test_hostile import LONG, TEXT, connected, everything, request_bytes

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")


def streaming(server: Running, **given: Any) -> socket.socket:
    """A connection to whose request tokens have come."""
    connection = connected(server, request_bytes(TEXT, LONG | {"stream": True, **given}))
    received = b""
    while b'"text"' not in received:
        received += connection.recv(65536)
    return connection


def descendants(pid: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if parent == pid:
                yield int(entry.name)
                yield from descendants(int(entry.name))


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def is_alive(pid: int) -> bool:
    """Whether it runs: one that has ended may wait for whoever started it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def engine_of(server: Running) -> int:
    for pid in descendants(server.process.pid):
        if b"karat.engine.remote.worker" in command_of(pid):
            return pid
    raise AssertionError("no engine")


def test_sigterm_finishes_what_is_under_way_and_takes_nothing_new() -> None:
    with serving() as server:
        connection = streaming(server, max_tokens=150)
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: server.ask("/ready").status == 503)
        assert server.ask("/health").status == 200
        refused = server.text(max_tokens=1)
        assert (
            refused.status == 503 and refused.json["error"]["code"] == "draining" and "retry-after" in refused.headers
        )
        assert everything(connection).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert server.process.wait(30) == 0


def test_the_deadline_of_the_end() -> None:
    with serving("--drain-s", "0.3") as server:
        connection = streaming(server)
        server.process.send_signal(signal.SIGTERM)
        received = everything(connection)
        assert server.process.wait(30) == 0
        assert b'"code":"aborted"' in received and b"[DONE]" not in received
    assert any("/v1/completions 200, then an error" in line for line in server.said), server.said


@pytest.mark.parametrize("error", [OverloadedError("full"), EngineDiedError("killed"), UsageError("closed")])
def test_every_503_says_when_to_ask_again(error: KaratError) -> None:
    answer = of_karat(error)
    assert answer.status == 503 and int(answer.headers["retry-after"]) > 0


def test_a_second_signal_ends_at_once() -> None:
    with serving() as server:
        connection = streaming(server)
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: server.ask("/ready").status == 503)
        server.process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        assert server.process.wait(30) == TERMINATED and time.monotonic() - begun < 10
        assert b"[DONE]" not in everything(connection)


@pytest.mark.slow
@needs_proc
def test_an_engine_that_dies_is_started_again_once() -> None:
    with serving() as server:
        body = {"temperature": 1, "seed": 5, "max_tokens": 8}
        before = server.text(**body).json["choices"]
        connection = streaming(server)
        os.kill(engine_of(server), signal.SIGKILL)
        received = everything(connection)
        assert b'"error":{' in received and b'"code":"engine_died"' in received and b"[DONE]" not in received
        server.until(lambda: server.ask("/ready").status == 200)
        assert server.ask("/health").status == 200 and server.text(**body).json["choices"] == before
        engine = engine_of(server)
        os.kill(engine, signal.SIGKILL)
        begun = time.monotonic()
        assert server.process.wait(60) == EngineDiedError.exit_code and time.monotonic() - begun < 10
        assert "again within a minute" in "".join(server.said)


@pytest.mark.slow
@needs_proc
def test_health_is_503_while_there_is_no_engine() -> None:
    with serving() as server:
        os.kill(engine_of(server), signal.SIGSTOP)  # noticed within 2 s, and given up
        server.until(lambda: server.ask("/health").status == 503)
        assert server.text(max_tokens=1).json["error"]["code"] == "engine_died"
        server.until(lambda: server.ask("/health").status == 200)


@pytest.mark.slow
@needs_proc
def test_a_rank_that_dies_is_an_engine_that_dies() -> None:
    with serving("--tensor-parallel-size", "2") as server:
        before = server.text(temperature=0, max_tokens=8).json["choices"]
        connection = streaming(server)
        engine = engine_of(server)
        rank = next(pid for pid in descendants(engine) if b"karat.engine.ranks.rank" in command_of(pid))
        os.kill(rank, signal.SIGKILL)
        assert b'"code":"engine_died"' in everything(connection)
        server.until(lambda: server.ask("/ready").status == 200)
        assert server.text(temperature=0, max_tokens=8).json["choices"] == before


@needs_proc
def test_nothing_is_left_of_a_server_that_is_killed() -> None:
    with serving() as server:
        connection = streaming(server)
        left = list(descendants(server.process.pid))
        assert left
        server.process.kill()
        server.until(lambda: not any(map(is_alive, left)))
        connection.close()


def test_a_full_queue_is_said_at_once() -> None:
    with serving("--max-num-seqs", "1", "--max-queue", "1") as server:
        running = streaming(server)
        waiting = connected(server, request_bytes(TEXT, LONG))
        server.until(lambda: server.gauge("karat_sequences_waiting") == 1)
        for given in ({}, {"stream": True}):
            refused = server.text(max_tokens=1, **given)
            assert refused.status == 503 and refused.json["error"]["code"] == "overloaded"
            assert int(refused.headers["retry-after"]) > 0
        for connection in (waiting, running):
            connection.close()


def test_who_waits_too_long_is_told_to_try_later() -> None:
    slow = ("--executor", "reference")  # or the answer that is computed ends before the others have waited
    with serving("--max-num-seqs", "1", "--queue-timeout-s", "0.3", "--ping-s", "0.05", *slow) as server:
        running = streaming(server)
        refused = server.text(max_tokens=1)
        assert refused.status == 503 and refused.json["error"]["code"] == "overloaded"
        assert "has waited for 0.3 s" in refused.json["error"]["message"] and int(refused.headers["retry-after"]) > 0
        stream = server.text(max_tokens=1, stream=True)  # a ping came before, and with it the headers
        assert stream.status == 200 and b"has waited for 0.3 s" in stream.content and b"[DONE]" not in stream.content
        running.close()


def test_a_stream_that_waits_is_pinged() -> None:
    with serving("--max-num-seqs", "1", "--ping-s", "0.05") as server:
        running = streaming(server)
        waiting = connected(server, request_bytes(TEXT, LONG | {"stream": True, "max_tokens": 1}))
        received = b""
        while received.count(b": ping\n\n") < 3:
            part = waiting.recv(65536)
            assert part, received  # the first answer ended too soon
            received += part
        assert received.startswith(b"HTTP/1.1 200 OK") and b"data:" not in received
        running.close()
        assert b"data: [DONE]" in everything(waiting)


def test_keys_are_tenants(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first-key\n\nsecond-key\n")
    with serving("--api-key-file", str(keys), "--served-model-name", "a", "--served-model-name", "b") as server:
        prompt = list(range(300, 380))

        def cached(key: str, **given: Any) -> int:
            body = {"prompt": prompt, "max_tokens": 1, "model": "b", **given}
            answer = server.ask(TEXT, body, Authorization=f"Bearer {key}")
            assert answer.status == 200 and answer.json["model"] == "b"
            return int(answer.json["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert server.text(max_tokens=1).status == 401 and server.ask("/metrics").status == 401
        assert server.ask("/health").status == 200
        assert [cached("first-key"), cached("first-key"), cached("second-key")] == [0, 64, 0]
        assert cached("second-key", cache_salt="x") == 0
        names = server.ask("/v1/models", Authorization="Bearer second-key").json["data"]
        assert [model["id"] for model in names] == ["a", "b"]
        assert "first-key" not in "".join(server.said)


@pytest.mark.slow
def test_tls(tmp_path: Path) -> None:
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-days",
        "2",
        "-keyout",
        str(tmp_path / "key.pem"),
        "-out",
        str(tmp_path / "cert.pem"),
    ]
    try:
        subprocess.run(made, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    with serving("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")) as server:
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        connection = http.client.HTTPSConnection("localhost", server.port, context=context, timeout=60)
        connection.request("GET", "/ready")
        assert json.loads(connection.getresponse().read()) == {"status": "ready"}
        connection.close()


def test_a_model_that_is_not_there_ends_the_server_with_its_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "karat", "serve", str(tmp_path / "none.gguf"), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 4 and done.stderr.splitlines()[-1].startswith("karat: error: ")


def over(path: Path, route: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("a-name", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(60)
    with closing(connection):
        connection.sock.connect(str(path))
        connection.request("GET" if body is None else "POST", route, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


@pytest.mark.slow
def test_a_unix_socket_is_for_its_user_and_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "karat.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))  # as a killed server leaves it
    command = [sys.executable, "-m", "karat", "serve", "--unix-socket", str(path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if " serves " in line)
        assert line.startswith(f"{path} (http): /v1 serves karat-embedded")
        assert path.stat().st_mode & 0o777 == 0o600
        assert over(path, "/ready") == (200, {"status": "ready"})
        status, answer = over(path, "/v1/completions", {"prompt": "Once", "max_tokens": 2})
        assert status == 200 and answer["usage"]["completion_tokens"] == 2
        again = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert again.returncode == 1 and "cannot be listened on" in again.stderr
        assert over(path, "/health")[0] == 200, "the first is undisturbed"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 and not path.exists()
    finally:
        process.kill()
        process.communicate()


def test_a_file_in_the_place_of_a_unix_socket_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("a")
    for path in (file, tmp_path / "none" / "karat.sock", tmp_path / ("x" * 200)):
        assert main(["serve", "--unix-socket", str(path)]) == 1
        assert f"--unix-socket {path} cannot be listened on" in capfd.readouterr().err.replace("\n", " ")
    assert file.read_text() == "a"


def test_a_port_that_is_taken_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 1
    assert "cannot be listened on" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["a", "-m", "b"], "two models"),
        (["--tls-cert", "x"], "go together"),
        (["--unix-socket", "x", "--port", "1"], "instead of them"),
        (["--tls-cert", "x", "--tls-key", "y"], "no such file"),
        (["--ping-s", "0"], "expected a number above 0"),
        (["--api-key", "a b"], "an API key"),
        (["--api-key", ""], "an API key"),
        (["--api-key-file", "/nowhere/keys"], "No such file"),
    ],
)
def test_command_lines_that_are_wrong(args: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *args]) in (1, 2)
    assert said in capfd.readouterr().err


def test_an_empty_file_of_keys_lets_nobody_in(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\n \n")
    assert main(["serve", "--api-key-file", str(keys)]) == 2
    assert "has no key" in capfd.readouterr().err

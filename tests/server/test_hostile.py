"""What hostile, slow and leaving clients do: never a 500, never a server that others wait for.

Covers: karat.server.errors, karat.server.http.
"""

import json
import random
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.server.fields import (
    ANTHROPIC,
    CHAT,
    COUNT,
    DETOKENIZE,
    INPUT_TOKENS,
    MESSAGES,
    RENDER,
    RESPONSES,
    TEXT,
    TOKENIZE,
    fields_of,
)
from tests.server.conftest import Running, serving
from tests.support.drawn import examples
from tests.support.seed import SEED


@pytest.fixture(scope="module")
def strict() -> Iterator[Running]:
    """A server with tight limits."""
    options = "--head-timeout-s 2 --body-timeout-s 3 --write-timeout-s 1 --max-body-bytes 10000"
    with serving(*options.split(), "--max-head-bytes", "8000") as running:
        yield running


def connected(server: Running, content: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    connection.sendall(content)
    return connection


def everything(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    received = b""
    with closing(connection):
        try:
            while part := connection.recv(65536):
                received += part
        except ConnectionResetError:
            pass
    return received


def is_healthy(server: Running) -> bool:
    try:
        return server.ask("/health").status == 200
    except OSError:
        return False


def error_of(received: bytes) -> tuple[int, Any]:
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
CHEAP = {"max_tokens": 1}
NEEDED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "a"}], **CHEAP},
    TEXT: {"prompt": "a", **CHEAP},
    MESSAGES: {"messages": [{"role": "user", "content": "a"}], **CHEAP},
    COUNT: {"messages": [{"role": "user", "content": "a"}]},
    RESPONSES: {"input": "a", "max_output_tokens": 1},
    INPUT_TOKENS: {"input": "a"},
    RENDER: {"messages": [{"role": "user", "content": "a"}]},
    TOKENIZE: {"prompt": "a"},
    DETOKENIZE: {"tokens": [5]},
}


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_body_of_json_is_a_500(server: Running, data: st.DataObject) -> None:
    route = data.draw(st.sampled_from(sorted(NEEDED)))
    names = st.sampled_from(sorted(set(fields_of(route)) - {"max_tokens", "max_output_tokens", "n"})) | st.text(
        max_size=8
    )
    body = NEEDED[route] | data.draw(st.dictionaries(names, JSON_VALUES, max_size=3))
    answer = server.ask(route, body)
    assert answer.status in (200, 400, 404), (body, answer.content)
    if answer.status != 200:
        names = {"message", "type"} if route in ANTHROPIC else {"message", "type", "param", "code"}
        assert answer.json["error"].keys() == names


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    message=st.dictionaries(
        st.sampled_from(["role", "content", "name", "tool_calls"]) | st.text(max_size=5), JSON_VALUES
    )
)
def test_no_message_is_a_500(server: Running, message: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "a"} | message]
    for route in (CHAT, MESSAGES):
        answer = server.ask(route, {"messages": messages, "max_tokens": 1})
        assert answer.status in (200, 400), (route, message, answer.content)
    answer = server.ask(RESPONSES, {"input": messages, "max_output_tokens": 1})
    assert answer.status in (200, 400), (message, answer.content)


@pytest.mark.parametrize("depth", [100, 900, 5000])
@pytest.mark.parametrize("name", ["user", "tools", "chat_template_kwargs", "logit_bias", "unknown"])
def test_depth_is_no_500(server: Running, name: str, depth: int) -> None:
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    body = b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "%s": %s}' % (name.encode(), nested)
    answer = server.ask(CHAT, body)
    assert answer.status in (200, 400), answer.content


def test_bytes_that_are_no_http_are_refused_or_closed(strict: Running) -> None:
    rng = random.Random(SEED)
    whole = b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n{"prompt": "a"}'
    for number in range(60):
        junk = rng.randbytes(rng.randrange(1, 200))
        if number % 2:
            spoiled = bytearray(whole)
            for _ in range(rng.randrange(1, 6)):
                spoiled[rng.randrange(50)] = rng.randrange(256)
            junk = bytes(spoiled)
        connection = connected(strict, junk)
        connection.shutdown(socket.SHUT_WR)
        received = everything(connection)
        assert not received.startswith(b"HTTP/1.1 5"), (junk, received)
    assert strict.ask("/health").status == 200


@pytest.mark.parametrize(
    "head", [b"X-A: " + b"a" * 9000 + b"\r\n\r\n", b"X-A: a\r\n" * 2000 + b"\r\n", b"X-A: " + b"a" * 100_000]
)
def test_heads_have_a_limit(strict: Running, head: bytes) -> None:
    status, error = error_of(everything(connected(strict, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + head)))
    assert status == 431 and error["code"] == "head_too_large"


def test_a_url_has_the_same_limit(strict: Running) -> None:
    status, _ = error_of(
        everything(connected(strict, b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    )
    assert status == 431


@pytest.mark.drawn(1)
@pytest.mark.parametrize("beginning", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(strict: Running, beginning: bytes) -> None:
    begun = time.monotonic()
    status, error = error_of(everything(connected(strict, beginning)))
    assert status == 408 and error["code"] == "timeout" and time.monotonic() - begun < 20


@pytest.mark.slow
def test_a_body_that_does_not_come_is_not_waited_for(strict: Running) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    status, error = error_of(everything(connected(strict, head)))
    assert status == 408 and error["code"] == "timeout"


def test_bodies_have_a_limit(strict: Running) -> None:
    answer = strict.ask(TEXT, b"a" * 10_001)
    assert answer.status == 413 and answer.json["error"]["code"] == "body_too_large"
    chunked = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, _ = error_of(everything(connected(strict, chunked + b"4e20\r\n" + b"a" * 20_000)))
    assert status == 413
    assert strict.ask(TEXT, b"{}", Content_Encoding="br").status == 415
    assert strict.ask(TEXT, b"{}", Content_Encoding="gzip").status == 400
    assert strict.ask(TEXT, {"prompt": "a", "max_tokens": 1}).status == 200


@pytest.mark.parametrize("num_bytes", [1000, 33_000, 65_000, 70_000, 300_000])
def test_bodies_within_the_limit_are_read_in_whatever_pieces_they_come(server: Running, num_bytes: int) -> None:
    """A body is none of the bytes of a head, whose limit is smaller."""
    asked = request_bytes(TOKENIZE, {"prompt": "a", "cache_salt": "b" * num_bytes})
    status, error = error_of(everything(connected(server, asked)))
    assert status == 400 and error["param"] == "cache_salt"


@pytest.mark.slow
def test_a_thousand_connections(start: Callable[..., Any]) -> None:
    """As many as the limit are admitted, the others refused at once, and who is in is served."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2048 if hard == resource.RLIM_INFINITY else min(2048, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    many: list[socket.socket] = []
    poll = select.poll()
    try:
        with start("--max-connections", "100", "--head-timeout-s", "600") as server:
            first = connected(server)
            many.append(first)
            for _ in range(999):
                many.append(connected(server))
                poll.register(many[-1], select.POLLIN)
            server.until(lambda: len(poll.poll(0)) == 900)
            refused = {fd for fd, _ in poll.poll(0)}
            for connection in many[1:]:
                if connection.fileno() in refused:
                    assert connection.recv(65536).startswith(b"HTTP/1.1 503")
            begun = time.monotonic()
            first.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in first.recv(65536)
            assert time.monotonic() - begun < 10 * 0.5, "ten times the goal: the machine may be busy"
            for connection in many:
                connection.close()
            server.until(lambda: is_healthy(server))
    finally:
        for connection in many:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def request_bytes(route: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {route} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


LONG: dict[str, Any] = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True}


@pytest.mark.parametrize("body", [LONG, LONG | {"stream": True}, LONG | {"prompt": [[5], [6]], "n": 2}])
def test_who_leaves_is_forgotten(server: Running, body: dict[str, Any]) -> None:
    server.until(lambda: server.gauge("karat_sequences_running") == 0)
    connection = connected(server, request_bytes(TEXT, body))
    server.until(lambda: server.gauge("karat_sequences_running") > 0)
    connection.close()
    steps = server.gauge("karat_steps")
    server.until(lambda: server.gauge("karat_sequences_running") == 0)
    assert server.gauge("karat_steps") - steps < 400, "it was computed to its end"
    server.until(lambda: server.gauge("karat_kv_blocks_used") == 0)


def final(received: bytes) -> tuple[int, bytes]:
    """Status and body of an answer, behind any 100 Continue."""
    while received.startswith(b"HTTP/1.1 100"):
        received = received.partition(b"\r\n\r\n")[2]
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize("stream", [False, True])
def test_who_sends_no_more_still_gets_the_answer(server: Running, stream: bool) -> None:
    """`nc -N` and others close their half of the connection after the request."""
    body = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "stream": stream, "seed": 1}
    connection = connected(server, request_bytes(TEXT, body))
    connection.shutdown(socket.SHUT_WR)
    status, content = final(everything(connection))
    assert status == 200
    if stream:
        assert content.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    else:
        assert json.loads(content)["usage"]["completion_tokens"] == 300


def test_two_requests_in_one_piece_and_no_more_are_both_answered(server: Running) -> None:
    whole = request_bytes(TEXT, {"prompt": "Once", "max_tokens": 20}).replace(b"Connection: close\r\n", b"")
    connection = connected(server, whole * 2)
    connection.shutdown(socket.SHUT_WR)
    assert everything(connection).count(b"HTTP/1.1 200") == 2


def test_a_body_that_ends_early_is_a_400(server: Running) -> None:
    connection = connected(server, request_bytes(TEXT, {"prompt": "Once"})[:-3])
    connection.shutdown(socket.SHUT_WR)
    status, error = error_of(everything(connection))
    assert status == 400 and error["code"] == "cut_body"


@pytest.mark.parametrize("chunks", [b"zz\r\n{}\r\n0\r\n\r\n", b"1\r\n{}\r\n0\r\n\r\n", b"-2\r\n{}\r\n", b"\r\n\r\n"])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_wrong_chunk_is_a_400(server: Running, chunks: bytes, is_late: bool) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection = connected(server, head + (b"1\r\n{\r\n" if is_late else b""))
    if is_late:
        server.until(lambda: server.gauge("karat_http_requests_busy") == 2)
    connection.sendall(chunks)
    status, error = error_of(everything(connection))
    assert status == 400 and error["code"] == "invalid_http" and "chunks" in error["message"]
    server.until(lambda: server.gauge("karat_http_requests_busy") == 1)


@pytest.mark.slow
def test_who_leaves_the_queue_or_a_prefill_is_forgotten(start: Callable[..., Any]) -> None:
    with start("--max-num-seqs", "1") as server:
        running = connected(server, request_bytes(TEXT, LONG))
        server.until(lambda: server.gauge("karat_sequences_running") == 1)
        queued = connected(server, request_bytes(TEXT, LONG | {"prompt": list(range(5, 900)), "max_tokens": 9}))
        server.until(lambda: server.gauge("karat_sequences_waiting") == 1)
        queued.close()
        server.until(lambda: server.gauge("karat_sequences_waiting") == 0)
        prefilled = connected(server, request_bytes(TEXT, LONG | {"prompt": list(range(5, 900)), "max_tokens": 9}))
        running.close()
        prefilled.close()
        server.until(lambda: server.gauge("karat_kv_blocks_used") == 0 == server.gauge("karat_http_requests_busy") - 1)


@pytest.mark.slow
def test_who_does_not_read_is_left(strict: Running) -> None:
    body = LONG | {"stream": True, "logprobs": 64, "n": 8, "timings_per_token": True}
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with closing(connection):
        connection.connect(("127.0.0.1", strict.port))
        connection.sendall(request_bytes(TEXT, body))
        strict.until(lambda: strict.gauge("karat_sequences_running") == 8)
        strict.until(lambda: strict.gauge("karat_sequences_running") == 0, 120)
        assert strict.gauge("karat_generation_tokens_total") < 8 * 900

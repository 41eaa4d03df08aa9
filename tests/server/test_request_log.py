"""Ids of requests: taken, made, and in headers, errors and lines of the log; lines for programs are JSON."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from karat.server.errors import ApiError
from karat.server.request_log import checked_id, new_id
from tests.server.conftest import Running

OURS = re.compile(r"req_[0-9a-f]{24}")
SECRET = "xylophone-7319"


def lines(running: Running) -> list[dict[str, Any]]:
    return [json.loads(line) for line in running.said]


@pytest.mark.parametrize("given", ["a", "req-1:2/3_x.y", "x" * 128, "é"])
def test_ids_of_clients(given: str) -> None:
    if given == "é":
        with pytest.raises(ApiError, match="visible ASCII"):
            checked_id(given)
    else:
        assert checked_id(given) == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\tb", "a\x7fb"])
def test_ids_that_are_none(given: str) -> None:
    with pytest.raises(ApiError, match="x-request-id"):
        checked_id(given)


def test_new_ids_differ() -> None:
    found = {new_id() for _ in range(50)}
    assert len(found) == 50 and all(map(OURS.fullmatch, found))


def test_an_id_comes_back_and_is_in_every_line_for_people(server: Running) -> None:
    answer = server.text(max_tokens=1)
    assert OURS.fullmatch(answer.headers["x-request-id"])
    answer = server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1}, x_request_id="mine-42")
    assert answer.headers["x-request-id"] == "mine-42"
    server.until(lambda: any("mine-42" in line for line in server.said))
    (line,) = (line for line in server.said if "mine-42" in line)
    assert re.search(r"POST /v1/completions 200 \S+ s mine-42\n$", line)


def test_every_error_has_it(server: Running) -> None:
    for path, body in (("/v1/completions", {"prompt": 5}), ("/nothing", None), ("/v1/chat/completions", b"{")):
        answer = server.ask(path, body, x_request_id="mine-43")
        assert answer.status >= 400 and answer.json["request_id"] == answer.headers["x-request-id"] == "mine-43"
    answer = server.ask("/v1/messages", {"messages": []}, x_request_id="mine-44")
    assert answer.status == 400 and answer.json["type"] == "error" and answer.json["request_id"] == "mine-44"
    assert answer.headers["request-id"] == answer.headers["x-request-id"] == "mine-44", "the name of Anthropic's header"


def test_an_id_that_is_none_is_refused_and_not_repeated(server: Running) -> None:
    answer = server.ask("/v1/models", x_request_id="x" * 200)
    assert answer.status == 400 and answer.json["error"]["code"] == "invalid_request_id"
    assert OURS.fullmatch(answer.json["request_id"]) and "xxxx" not in answer.content.decode()


def test_what_is_no_request_has_an_id_too(server: Running) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    assert json.loads(body)["request_id"] in head.decode() and b"x-request-id: req_" in head


def test_lines_for_programs(start: Callable[..., Any]) -> None:
    """Every line is one JSON object, also of the start and the end; a request's has what it cost and no prompt."""
    with start("--log-format", "json") as running:
        running.text(prompt=SECRET, max_tokens=3, temperature=0, ignore_eos=True)
        events = running.ask(
            "/v1/completions",
            {"prompt": SECRET, "max_tokens": 2, "ignore_eos": True, "stream": True},
            x_request_id="mine-45",
        )
        assert events.headers["x-request-id"] == "mine-45"
        running.ask("/v1/completions", {"prompt": SECRET, "mood": SECRET})
        assert running.stop() == 0
        running.until(lambda: any("ending" in line for line in running.said))
        found = lines(running)
    assert SECRET not in "".join(running.said)
    assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, found))
    assert any("/v1 serves" in line["message"] for line in found)
    whole, streamed, refused = (line for line in found if "method" in line)
    assert (whole["method"], whole["path"], whole["status"], whole["end"]) == ("POST", "/v1/completions", 200, "ok")
    assert whole["output_tokens"] == 3 and whole["prompt_tokens"] > 0 and whole["cached_tokens"] == 0
    assert whole["seconds"] > 0 and OURS.fullmatch(whole["request_id"])
    assert streamed["request_id"] == "mine-45" and streamed["output_tokens"] == 2
    assert refused["status"] == 400 and "end" not in refused and OURS.fullmatch(refused["request_id"])


def test_a_form_that_is_none(start: Callable[..., Any]) -> None:
    with start("--log-format", "xml", wait=False) as running:
        assert running.process.wait(60) == 2
        running.until(lambda: "expected text or json" in "".join(running.said))

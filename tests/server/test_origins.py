"""Pages of other origins (CORS): those that are allowed are answered so that a browser shows them the answer."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from karat.server.origins import Origins, answer_preflight
from tests.server.conftest import Running

PAGE = "https://page.example"
ASKING = {"access_control_request_method": "POST", "access_control_request_headers": "authorization,content-type"}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def allowing(start: Callable[..., Any]) -> Iterator[Running]:
    with start("--allowed-origin", f"{PAGE}/", "--api-key", "the-key") as running:
        yield running


def cors(headers: dict[str, str]) -> dict[str, str]:
    prefix = "access-control-"
    return {name.removeprefix(prefix): value for name, value in headers.items() if name.startswith(prefix)}


@pytest.mark.slow
def test_an_allowed_page_may_ask(allowing: Running) -> None:
    answer = allowing.ask(CHAT, method="OPTIONS", origin=PAGE, **ASKING)
    assert answer.status == 204 and answer.content == b"" and answer.headers["vary"] == "origin"
    told = cors(answer.headers)
    assert told["allow-origin"] == PAGE and "POST" in told["allow-methods"]
    assert told["allow-headers"] == "authorization,content-type" and "allow-credentials" not in told
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    for key, status in (("the-key", 200), ("another", 401)):
        for stream in (False, True):
            answer = allowing.ask(CHAT, body | {"stream": stream}, origin=PAGE, authorization=f"Bearer {key}")
            assert answer.status == status
            told = cors(answer.headers)
            assert told["allow-origin"] == PAGE and "karat-seed" in told["expose-headers"], "errors are shown too"


def test_another_page_may_not(allowing: Running) -> None:
    for origin in ("https://evil.example", "null", f"{PAGE}.evil.example", "http://page.example"):
        for answer in (
            allowing.ask(CHAT, method="OPTIONS", origin=origin, **ASKING),
            allowing.ask("/v1/models", origin=origin, authorization="Bearer the-key"),
        ):
            assert answer.status == 403 and not cors(answer.headers)
    assert not cors(allowing.ask("/v1/models", authorization="Bearer the-key").headers)
    plain = allowing.ask(CHAT, method="OPTIONS", origin=PAGE)
    assert plain.status == 401, "no preflight, so no answer without a key"


def test_a_star_allows_all() -> None:
    origins = Origins(["*"])
    assert origins.allows("https://any.example") and origins.allows("null")
    told = dict(origins.told([(b"origin", b"https://any.example")]))
    assert told[b"access-control-allow-origin"] == b"*" and b"vary" not in told
    assert origins.told([]) == [] == origins.told([(b"origin", b"a"), (b"origin", b"b")])


def test_what_a_preflight_is_told() -> None:
    def told(**headers: str) -> dict[bytes, bytes]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        given = [
            (f"access-control-request-{name}".replace("_", "-").encode(), v.encode()) for name, v in headers.items()
        ]
        asyncio.run(answer_preflight(given, send))
        return dict(sent[0]["headers"])

    assert told(headers="x-a, x-b")[b"access-control-allow-headers"] == b"x-a, x-b"
    for wrong in ("x\r\nset-cookie: a", "é", "a" * 3000):
        assert b"access-control-allow-headers" not in told(headers=wrong)
    assert told(private_network="true")[b"access-control-allow-private-network"] == b"true"
    assert b"access-control-allow-private-network" not in told()

"""Who may ask: Host, Origin, key; and that no error says more than it should."""

import asyncio
import hmac
import json
import logging
from typing import Any

import pytest

from karat.server.gate import CONTAINER_HOSTS, Gate
from karat.server.settings import ServerSettings
from karat.server.state import ServerState


class Inner:
    """What is behind the gate."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.tenants: list[str | None] = []
        self.paths: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.tenants.append(scope.get("karat.tenant"))
        self.paths.append(scope["path"])
        if self.fault is not None:
            raise self.fault
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


def ask(
    headers: list[tuple[str, str]],
    settings: ServerSettings | None = None,
    inner: Inner | None = None,
    path: str = "/v1/models",
    state: ServerState | None = None,
    **scope: Any,
) -> tuple[int, Any, dict[str, str]]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def go() -> None:
        gate = Gate(inner or Inner(), settings or ServerSettings(model_names=("m",)), state or ServerState())
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        asked = {"type": "http", "method": "GET", "path": path, "headers": encoded} | scope
        await gate(asked, None, send)  # type: ignore[arg-type]

    asyncio.run(go())
    named = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], json.loads(sent[1]["body"] or "null"), named


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "LOCALHOST:8000",
        "127.0.0.1:8000",
        "[::1]:8000",
        "192.168.1.7",
        "karat.example:80",
    ],
)
def test_addresses_and_known_names_are_ours(host: str) -> None:
    settings = ServerSettings(model_names=("m",), allowed_hosts=("karat.example",))
    assert ask([("host", host)], settings)[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "", "a@127.0.0.1", "127.0.0.1.nip.example", "[::1", "x/localhost"],
)
def test_foreign_names_are_refused(host: str) -> None:
    status, body, _ = ask([("host", host)])
    assert status == 403 and body["error"]["code"] == "foreign_host"


def test_two_hosts_are_none() -> None:
    assert ask([("host", "localhost"), ("host", "localhost")])[0] == 400


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:9999", "file://", "http://[x"])
def test_foreign_origins_are_refused_and_ours_are_not(origin: str) -> None:
    status, body, headers = ask([("host", "localhost:8000"), ("origin", origin)])
    assert status == 403 and body["error"]["code"] == "foreign_origin"
    assert not any(name.startswith("access-control") for name in headers)
    assert ask([("host", "localhost:8000"), ("origin", "http://localhost:8000")])[0] == 200
    allowing = ServerSettings(model_names=("m",), allowed_origins=("https://page.example",))
    assert ask([("host", "localhost"), ("origin", "https://page.example")], allowing)[0] == 200


@pytest.mark.parametrize("host", CONTAINER_HOSTS)
def test_containers_reach_their_host_and_no_page_does_by_that_name(host: str) -> None:
    """Who answers DNS in a network can make a page's name lead here, so pages of such a name are foreign."""
    assert ask([("host", f"{host}:8000")])[0] == 200
    status, body, _ = ask([("host", f"{host}:8000"), ("origin", f"http://{host}:8000")])
    assert status == 403 and body["error"]["code"] == "foreign_origin"
    for allowing in (
        ServerSettings(model_names=("m",), allowed_origins=(f"http://{host}:8000",)),
        ServerSettings(model_names=("m",), allowed_hosts=(host,)),
    ):
        assert ask([("host", f"{host}:8000"), ("origin", f"http://{host}:8000")], allowing)[0] == 200
    assert ask([("host", f"{host}.evil.example")])[0] == 403


def test_a_unix_socket_takes_any_host_and_no_foreign_page() -> None:
    assert ask([("host", "whatever")], server=("/run/karat.sock", None))[0] == 200
    assert ask([("host", "whatever")], server=("127.0.0.1", 8000))[0] == 403
    assert ask([("host", "a"), ("origin", "http://b")], server=("/run/karat.sock", None))[0] == 403


def test_each_way_to_write_a_route_is_that_route() -> None:
    inner = Inner()
    for path in ("/chat/completions/", "//v1/chat/completions", "/v1/v1/chat/completions", "/v1/chat/completions"):
        assert ask([("host", "localhost")], inner=inner, path=path)[0] == 200
    assert set(inner.paths) == {"/v1/chat/completions"}
    status, body, _ = ask([("host", "localhost")], KEYED, path="/messages/")
    assert status == 401 and body["type"] == "error", "the form of Anthropic's errors"


KEYED = ServerSettings(model_names=("m",), api_keys=("first-key", "second-key"))


def test_a_key_is_asked_for_on_every_route_but_two() -> None:
    for path in ("/v1/models", "/metrics", "/version", "/openapi.json", "/nothing"):
        status, body, headers = ask([("host", "localhost")], KEYED, path=path)
        assert status == 401 and body["error"]["code"] == "invalid_api_key"
        assert headers["www-authenticate"] == "Bearer"
    for path in ("/health", "/ready"):
        assert ask([("host", "localhost")], KEYED, path=path)[0] == 200


@pytest.mark.parametrize(
    "given",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic first-key",
        "first-key",
        "Bearer first-key second-key",
        "Bearer é",
    ],
)
def test_wrong_keys_are_refused_without_being_said(given: str) -> None:
    status, body, _ = ask([("host", "localhost"), ("authorization", given)], KEYED)
    assert status == 401 and "wrong" not in body["error"]["message"].replace("missing or wrong", "")


def test_each_key_is_a_tenant_of_its_own_that_does_not_tell_it() -> None:
    inner = Inner()
    for key in ("first-key", "second-key", "first-key"):
        assert ask([("host", "localhost"), ("authorization", f"bearer {key}")], KEYED, inner)[0] == 200
    first, second, again = inner.tenants
    assert first == again and first != second and "key" not in str(first)


def test_a_key_of_anthropics_clients_is_the_same_tenant() -> None:
    inner = Inner()
    for headers in (
        [("authorization", "Bearer first-key")],
        [("x-api-key", "first-key")],
        [("x-api-key", "first-key"), ("authorization", "Bearer first-key")],
    ):
        assert ask([("host", "localhost"), *headers], KEYED, inner)[0] == 200
    assert len(set(inner.tenants)) == 1 and inner.tenants[0]


@pytest.mark.parametrize(
    "headers",
    [
        [("x-api-key", "")],
        [("x-api-key", "wrong")],
        [("x-api-key", "Bearer first-key")],
        [("x-api-key", "first-key"), ("authorization", "Bearer second-key")],
        [("x-api-key", "first-key"), ("authorization", "Bearer wrong")],
        [("x-api-key", "wrong"), ("authorization", "Bearer first-key")],
        [("x-api-key", "first-key"), ("authorization", "Basic first-key")],
    ],
)
def test_keys_that_are_wrong_or_differ_are_refused(headers: list[tuple[str, str]]) -> None:
    inner = Inner()
    assert ask([("host", "localhost"), *headers], KEYED, inner)[0] == 401
    assert inner.tenants == []


def test_two_headers_of_a_key_are_none() -> None:
    headers = [("host", "localhost"), ("x-api-key", "first-key"), ("x-api-key", "first-key")]
    assert ask(headers, KEYED)[0] == 400


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/other"])
def test_errors_have_the_form_of_the_routes_protocol(path: str) -> None:
    status, body, headers = ask([("host", "localhost")], KEYED, path=path)
    assert status == 401 and headers["www-authenticate"] == "Bearer"
    assert body["type"] == "error" and body["error"].keys() == {"type", "message"}
    assert body["error"]["type"] == "authentication_error"
    assert ask([("host", "localhost")], KEYED, path="/v1/messages2")[1].keys() == {"error", "request_id"}


def test_keys_are_compared_in_constant_time_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for header in (("authorization", "Bearer first-key"), ("x-api-key", "first-key")):
        compared.clear()
        ask([("host", "localhost"), header], KEYED)
        assert compared == [(32, 32), (32, 32)]


def test_a_server_that_ends_takes_nothing_new() -> None:
    state = ServerState()
    state.draining = True
    status, body, headers = ask([("host", "localhost")], state=state)
    assert status == 503 and body["error"]["code"] == "draining" and int(headers["retry-after"]) > 0
    assert ask([("host", "localhost")], state=state, path="/health")[0] == 200


def test_a_bug_is_a_500_that_tells_neither_client_nor_log_what_was_asked(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        status, body, _ = ask([("host", "localhost")], inner=Inner(ZeroDivisionError("a prompt")), path="/v1/\x1b[31m")
    assert status == 500 and "ZeroDivisionError" in body["error"]["message"]
    assert "a prompt" not in caplog.text and "a prompt" not in str(body) and "\x1b" not in caplog.text
    assert "test_gate.py" in caplog.text, "the log says where"

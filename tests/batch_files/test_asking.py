"""Places to ask, and how long one is asked again."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from karat.batch_files import asking
from karat.batch_files.asking import AppHere, PatientPlace, ServerThere
from karat.batch_files.journal import BatchAnswer
from karat.errors import ClientError
from karat.http_client import FailedError
from tests.support.scripted_server import plain, serve, url_of

Script = list[tuple[int, Mapping[str, str]] | FailedError]


class Scripted:
    """A place whose answers are written down."""

    name = "http://a"

    def __init__(self, script: Script) -> None:
        self.script = script
        self.num_asked = 0

    async def post(self, route: str, body: bytes) -> tuple[BatchAnswer, Mapping[str, str]]:
        self.num_asked += 1
        made = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(made, FailedError):
            raise made
        return BatchAnswer(made[0], None, b"{}"), made[1]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited, in a time that goes by itself."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(asking.asyncio, "sleep", sleep)
    return found


def ask(script: Script, give_up_s: float = 10**6) -> tuple[BatchAnswer, Scripted]:
    place = Scripted(script)
    return asyncio.run(PatientPlace(place, give_up_s).answer("/v1/completions", b"{}")), place


@pytest.mark.parametrize("status", [200, 400, 404, 422])
def test_an_answer_is_an_answer(status: int, waits: list[float]) -> None:
    answer, place = ask([(status, {})])
    assert (answer.status, place.num_asked, waits) == (status, 1, [])


def test_what_passes_is_asked_again(waits: list[float]) -> None:
    """Longer each time, and as long as the server says."""
    script: Script = [
        (503, {}),
        FailedError("refused"),
        (429, {"retry-after": "7"}),
        (502, {"retry-after": "soon"}),
        (200, {}),
    ]
    answer, place = ask(script)
    assert (answer.status, place.num_asked, waits) == (200, 5, [0.25, 0.5, 7.0, 2.0])


def test_a_bug_of_the_server_is_the_answer_the_second_time(waits: list[float]) -> None:
    assert ask([(500, {}), (200, {})])[0].status == 200
    answer, place = ask([(500, {}), (503, {}), (500, {}), (200, {})])
    assert (answer.status, place.num_asked) == (500, 3)


def test_giving_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that answers nobody; one that answers others is busy, not gone."""
    monkeypatch.setattr(asking, "_LONGEST_S", 0.01)
    place = Scripted([FailedError("the connection was refused")])
    with pytest.raises(ClientError, match=r"http://a the connection was refused, for 0\.3 s; .* is kept"):
        asyncio.run(PatientPlace(place, 0.3).answer("/v1/completions", b"{}"))
    assert place.num_asked > 3


def test_the_app_is_asked_as_over_http() -> None:
    seen: dict[str, Any] = {}

    async def echo(request: Request) -> JSONResponse:
        seen.update(request.headers)
        return JSONResponse(await request.json(), status_code=201, headers={"x-request-id": "req_1"})

    app = Starlette(routes=[Route("/v1/completions", echo, methods=["POST"])])
    body = json.dumps({"prompt": "ä" * 100_000}).encode()
    answer, headers = asyncio.run(AppHere(app, receipts=True).post("/v1/completions", body))
    assert (answer.status, answer.request_id) == (201, "req_1")
    assert json.loads(answer.body) == json.loads(body) and headers["content-type"] == "application/json"
    assert (seen["karat-receipt"], seen["content-length"]) == ("1", str(len(body)))


def test_a_server_s_large_answer_is_whole() -> None:
    text = "x" * 3_000_000

    async def run() -> BatchAnswer:
        server = await serve({"/base/v1/completions": plain(200, {"text": text})})
        async with server:
            place = ServerThere(url_of(server) + "/base/v1/", api_key="k", receipts=False, timeout_s=30)
            return (await place.post("/v1/completions", b"{}"))[0]

    assert json.loads(asyncio.run(run()).body) == {"text": text}

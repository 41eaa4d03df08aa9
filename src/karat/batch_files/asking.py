"""Who answers the requests of a batch: the server's own app in this process, or servers elsewhere."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from starlette.types import ASGIApp, Message

from karat.batch_files.journal import BatchAnswer
from karat.errors import ClientError
from karat.http_client import Client, FailedError
from karat.server.asking.terms import RECEIPT_HEADER

MAX_ANSWER = 256 << 20  # bytes
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_FIRST_S, _LONGEST_S = 0.25, 30.0  # between two tries: at first, and at the most
_TRIES_OF_A_BUG = 2


class PlaceToAsk(Protocol):
    """One place to ask. It raises FailedError where there is no whole answer."""

    name: str

    async def post(self, route: str, body: bytes) -> tuple[BatchAnswer, Mapping[str, str]]:
        """The answer to a request, whatever its status, and its headers."""
        ...


class AppHere:
    """The app of a server, which is called without a socket."""

    name = "the engine"

    def __init__(self, app: ASGIApp, *, receipts: bool) -> None:
        self._app = app
        self._headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        if receipts:
            self._headers.append((RECEIPT_HEADER.encode(), b"1"))

    async def post(self, route: str, body: bytes) -> tuple[BatchAnswer, Mapping[str, str]]:
        sent: list[Message] = []
        came: asyncio.Queue[Message] = asyncio.Queue()
        came.put_nowait({"type": "http.request", "body": body})

        async def send(message: Message) -> None:
            sent.append(message)

        length = (b"content-length", str(len(body)).encode())
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": route,
            "query_string": b"",
            "headers": [*self._headers, length],
            "server": None,
        }
        await self._app(scope, came.get, send)  # after the body nothing comes: this client never leaves
        start, *parts = sent
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in start["headers"]}
        content = b"".join(part.get("body", b"") for part in parts)
        return BatchAnswer(start["status"], headers.get("x-request-id"), content), headers


class ServerThere:
    """A server of OpenAI's or Anthropic's protocol."""

    def __init__(self, url: str, *, api_key: str | None, receipts: bool, timeout_s: float) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        if receipts:
            headers[RECEIPT_HEADER] = "1"
        self._client = Client(url, headers=headers, timeout_s=timeout_s, max_body=MAX_ANSWER)
        self.name = self._client.url

    async def post(self, route: str, body: bytes) -> tuple[BatchAnswer, Mapping[str, str]]:
        got = await self._client.post(route, body, lambda data, when: None)
        return BatchAnswer(got.status, got.headers.get("x-request-id"), got.body), got.headers


class PatientPlace:
    """Asks until there is an answer that says something of the request. `give_up_s`: how long one place may give none.

    A place that refuses for the moment is asked again later, as late as it says. An error of a server's own (500) is
    taken for the answer if it comes twice.
    """

    def __init__(self, asked: PlaceToAsk, give_up_s: float) -> None:
        self._asked = asked
        self._give_up_s = give_up_s
        self._failing_since: float | None = None

    @property
    def is_failing(self) -> bool:
        """Whether its last try gave no answer."""
        return self._failing_since is not None

    async def answer(self, route: str, body: bytes) -> BatchAnswer:
        """Raises ClientError when the place has given no answer to anybody for give_up_s seconds."""
        now, wait_s, bugs = asyncio.get_running_loop().time, _FIRST_S, 0
        while True:
            headers: Mapping[str, str] = {}
            try:
                answer, headers = await self._asked.post(route, body)
                bugs += answer.status == 500
                if answer.status not in _AGAIN or (answer.status == 500 and bugs == _TRIES_OF_A_BUG):
                    self._failing_since = None
                    return answer
                said = f"answers {answer.status}: {answer.body[:200].decode('utf-8', 'replace')}"
            except FailedError as error:
                said = str(error)
            if self._failing_since is None:
                self._failing_since = now()
            elif now() - self._failing_since > self._give_up_s:
                raise ClientError(
                    f"{self._asked.name} {said}, for {self._give_up_s:g} s; see whether it runs, then the same command "
                    "goes on: what was answered is kept"
                )
            await asyncio.sleep(max(wait_s, _seconds(headers.get("retry-after"))))
            wait_s = min(2 * wait_s, _LONGEST_S)


def _seconds(stated: str | None) -> float:
    """Of a header retry-after in seconds; 0 for none, or a date."""
    return min(float(stated), _LONGEST_S) if stated and stated.strip().isdecimal() else 0.0

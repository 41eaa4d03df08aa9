"""Client of `karat serve`, of the standard library alone: answers as they come, and the rest of one that broke off."""

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from karat.errors import ClientError

URL = "http://127.0.0.1:8000"
_MAX_LINE = 1 << 26  # bytes of an event


@dataclass(frozen=True, slots=True)
class Piece:
    """New text and tokens of choice `index`. The last piece of a choice has a finish_reason.

    seed: that of the answer. Keep it with the token ids: both are what `resume` needs.
    """

    text: str
    token_ids: tuple[int, ...]
    seed: int
    index: int = 0
    finish_reason: str | None = None


def stream(
    request: Mapping[str, Any], *, url: str = URL, api_key: str | None = None, timeout_s: float = 600
) -> Iterator[Piece]:
    """The answer to a request, as it comes.

    request: the body for /v1/chat/completions if it has messages, else for /v1/completions. timeout_s: the longest wait
    for anything to come. Raises ClientError for a server that cannot be reached or refuses, and for an answer that
    breaks off: the pieces so far are right, and `resume` gives the rest.
    """
    route = "/v1/chat/completions" if "messages" in request else "/v1/completions"
    body = json.dumps({**request, "stream": True, "return_token_ids": True})
    with closing(_connection(url, timeout_s)) as connection:
        answer = _asked(connection, urlsplit(url).path.rstrip("/") + route, body, api_key)
        seed = int(answer.headers["karat-seed"])
        for event in _events(answer):
            if "error" in event:
                raise ClientError(
                    f"the server ended the answer: {event['error'].get('message')}; resume it, or ask again"
                )
            for choice in event.get("choices", ()):
                text = choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
                ids, reason = tuple(choice.get("token_ids") or ()), choice["finish_reason"]
                if text or ids or reason is not None:
                    yield Piece(text, ids, seed, choice["index"], reason)


def resume(
    request: Mapping[str, Any],
    token_ids: Sequence[int],
    *,
    seed: int | None = None,
    choice: int = 0,
    url: str = URL,
    api_key: str | None = None,
    timeout_s: float = 600,
) -> Iterator[Piece]:
    """The rest of an answer after its first tokens, as `stream` gives it: what an undisturbed answer would have added.

    request: as it was sent. token_ids: the answer's so far, of choice number `choice`. seed: the answer's, unless the
    request has it. Any server of the same model may be asked. Raises ClientError as `stream` does.
    """
    asked = {"tokens": list(token_ids), "choice": choice}
    if (found := request.get("seed") if seed is None else seed) is not None:
        asked["seed"] = found
    elif request.get("temperature") == 0:
        asked["seed"] = 0  # of a greedy answer, which draws nothing
    resumed = {**request, "karat": {"resume": asked}}
    if "seed" in asked:
        resumed["seed"] = asked["seed"]
    for piece in stream(resumed, url=url, api_key=api_key, timeout_s=timeout_s):
        yield Piece(piece.text, piece.token_ids, piece.seed, choice, piece.finish_reason)


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    if parts.scheme not in kinds or parts.hostname is None:
        raise ClientError(f"url={url!r}: expected one such as {URL}")
    made: http.client.HTTPConnection = kinds[parts.scheme](parts.hostname, parts.port, timeout=timeout_s)
    return made


def _asked(
    connection: http.client.HTTPConnection, path: str, body: str, api_key: str | None
) -> http.client.HTTPResponse:
    headers = {"content-type": "application/json"}
    if api_key is not None:
        headers["authorization"] = f"Bearer {api_key}"
    try:
        connection.request("POST", path, body.encode(), headers)
        answer = connection.getresponse()
        if answer.status == 200 and "karat-seed" in answer.headers:
            return answer
        said = answer.read(1 << 16).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as fault:
        raise ClientError(
            f"{connection.host} port {connection.port}: {fault!r}; see whether the server runs"
        ) from fault
    raise ClientError(f"the server answers {answer.status}: {said[:500]}; expected an answer of karat serve")


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The events' data, up to the end of the stream."""
    try:
        while line := answer.readline(_MAX_LINE):
            if line.startswith(b"data: "):
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    return
                yield json.loads(data)
    except (OSError, ValueError, http.client.HTTPException) as fault:
        raise ClientError(f"the answer broke off: {fault!r}; resume it") from fault
    raise ClientError("the answer broke off: the server closed the connection; resume it")

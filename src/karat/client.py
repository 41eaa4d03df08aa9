"""Client of `karat serve`, of the standard library alone: answers as they come, whichever server dies meanwhile."""

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle
from typing import Any
from urllib.parse import urlsplit

from karat.errors import ClientError

URL = "http://127.0.0.1:8000"
PATIENCE_S = 30.0
_MAX_LINE = 1 << 26  # bytes of an event
_AGAIN = (408, 425, 429, 500, 502, 503, 504)  # what a router answers, too, until it knows that a server has died
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


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


class BrokenOffError(ClientError):
    """An answer that broke off, or did not begin. Another server may have the rest."""


def stream(
    request: Mapping[str, Any],
    *,
    url: str | Sequence[str] = URL,
    api_key: str | None = None,
    timeout_s: float = 600,
    patience_s: float = PATIENCE_S,
) -> Iterator[Piece]:
    """The answer to a request, as it comes. Where it breaks off it goes on at the very next token.

    request: the body for /v1/chat/completions if it has messages, else for /v1/completions. url: a server, a router in
    front of several, or several of these, which are asked in turns. timeout_s: the longest wait for anything to come.
    patience_s: how long a token may be awaited after an answer broke off (0: the error is raised at once). Raises
    ClientError for a server that refuses, where none can be reached at first, and when patience ends: the pieces so far
    are right, and `resume` gives the rest.
    """
    return _Answer(request, range(request.get("n") or 1), url, api_key, timeout_s, patience_s).pieces()


def resume(
    request: Mapping[str, Any],
    token_ids: Sequence[int],
    *,
    seed: int | None = None,
    choice: int = 0,
    url: str | Sequence[str] = URL,
    api_key: str | None = None,
    timeout_s: float = 600,
    patience_s: float = PATIENCE_S,
) -> Iterator[Piece]:
    """The rest of an answer after its first tokens, as `stream` gives it: what an undisturbed answer would have added.

    request: as it was sent. token_ids: the answer's so far, of choice number `choice`. seed: the answer's, unless the
    request has it. Any server of the same model may be asked. Raises ClientError as `stream` does.
    """
    if seed is None:
        seed = request.get("seed")
    if seed is None and request.get("temperature") == 0:
        seed = 0  # of a greedy answer, which draws nothing
    made = _Answer(request, [choice], url, api_key, timeout_s, patience_s)
    made.tokens[choice] += token_ids
    made.seed, made.is_resumed = seed, True
    return made.pieces()


class _Answer:
    """An answer so far: the tokens of its choices that have not ended."""

    def __init__(
        self,
        request: Mapping[str, Any],
        choices: Sequence[int],
        url: str | Sequence[str],
        api_key: str | None,
        timeout_s: float,
        patience_s: float,
    ) -> None:
        self.tokens: dict[int, list[int]] = {choice: [] for choice in choices}
        self.seed: int | None = None
        self.is_resumed = False  # or begun, so that what is asked for is the rest
        self._num_taken = 0  # pieces, those of choices that have ended too
        self._request = request
        self._urls = [url] if isinstance(url, str) else list(url)
        self._api_key, self._timeout_s, self._patience_s = api_key, timeout_s, patience_s

    def pieces(self) -> Iterator[Piece]:
        num_failed, since, pause_s = 0, 0.0, _FIRST_PAUSE_S
        for url in cycle(self._urls):
            num_before = self._num_taken
            try:
                yield from self._asked_for(url)
                return
            except BrokenOffError:
                if self._num_taken > num_before or not num_failed:
                    num_failed, since, pause_s = 0, time.monotonic(), _FIRST_PAUSE_S
                num_failed += 1
                may_begin = not self.is_resumed and num_failed < len(self._urls)
                if not may_begin and not (self.is_resumed and time.monotonic() - since < self._patience_s):
                    raise
            if num_failed > 1:  # at first another one is asked at once
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _asked_for(self, url: str) -> Iterator[Piece]:
        """What is missing, to its end."""
        if not self.is_resumed:
            yield from self._taken(self._request, url, None)
            return
        for choice in list(self.tokens):
            asked: dict[str, Any] = {"tokens": self.tokens[choice], "choice": choice}
            resumed: dict[str, Any] = {**self._request, "karat": {**self._request.get("karat", {}), "resume": asked}}
            if self.seed is not None:
                asked["seed"] = resumed["seed"] = self.seed
            yield from self._taken(resumed, url, choice)

    def _taken(self, request: Mapping[str, Any], url: str, choice: int | None) -> Iterator[Piece]:
        """The pieces of one stream, of all choices or of one, which are noted. Any may be the last."""
        for piece in _streamed(request, url, self._api_key, self._timeout_s):
            index = piece.index if choice is None else choice
            self.seed, self.is_resumed, self._num_taken = piece.seed, True, self._num_taken + 1
            self.tokens[index] += piece.token_ids
            if piece.finish_reason is not None:
                del self.tokens[index]
            yield Piece(piece.text, piece.token_ids, piece.seed, index, piece.finish_reason)


def _streamed(request: Mapping[str, Any], url: str, api_key: str | None, timeout_s: float) -> Iterator[Piece]:
    """The pieces that one server sends. BrokenOffError where the end is missing."""
    route = "/v1/chat/completions" if "messages" in request else "/v1/completions"
    body = json.dumps({**request, "stream": True, "return_token_ids": True})
    with closing(_connection(url, timeout_s)) as connection:
        answer = _asked(connection, urlsplit(url).path.rstrip("/") + route, body, api_key)
        seed = int(answer.headers["karat-seed"])
        for event in _events(answer):
            if "error" in event:
                said = event["error"].get("message")
                raise BrokenOffError(f"the server ended the answer: {said}; resume it, or ask again")
            for choice in event.get("choices", ()):
                text = choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
                ids, reason = tuple(choice.get("token_ids") or ()), choice["finish_reason"]
                if text or ids or reason is not None:
                    yield Piece(text, ids, seed, choice["index"], reason)


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
        raise BrokenOffError(
            f"{connection.host} port {connection.port}: {fault!r}; see whether the server runs"
        ) from fault
    kind = BrokenOffError if answer.status in _AGAIN else ClientError
    raise kind(f"the server answers {answer.status}: {said[:500]}; expected an answer of karat serve")


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
        raise BrokenOffError(f"the answer broke off: {fault!r}; resume it") from fault
    raise BrokenOffError("the answer broke off: the server closed the connection; resume it")

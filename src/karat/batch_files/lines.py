"""Lines: what a record of the input asks for. OpenAI's batch lines, a prompt or messages alone, or a cell of a table.

{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {…}}    sent as it is
{"messages": […], "max_tokens": 9}                                                 a chat; custom_id is optional
{"prompt": "…"}                                                                    a text that is continued
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from karat.server.asking.terms import MAX_DRAWN_SEED
from karat.server.openai.protocols import CHATS, TEXTS
from karat.server.protocols import PROTOCOLS

ROUTES = tuple(protocol.route for protocol in PROTOCOLS)
_KEYS = ("custom_id", "method", "url", "body")
_BEFORE = ("tools", "functions", "system", "instructions")  # fields that templates write before a conversation
_ASKED = ("messages", "prompt", "input")
_sorted = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A request: the body for a route. `digest` is of both, before a seed is added.

    `custom_id` names it in results, where it has none by its line. `key` is what its seed follows from and the journal
    knows it by: its own custom_id, or else its digest. Of equal requests without a custom_id `occurrence` counts.
    """

    number: int  # of its line, from 1
    given_id: str | None
    route: str
    body: Mapping[str, Any]
    digest: bytes
    occurrence: int = 1

    @property
    def custom_id(self) -> str:
        return f"line-{self.number}" if self.given_id is None else self.given_id

    @property
    def key(self) -> str:
        if self.given_id is not None:
            return self.given_id
        return f"{self.digest.hex()} {self.occurrence}"

    @property
    def prefix_key(self) -> bytes:
        """Requests that begin alike are neighbours in the order of their keys."""
        asked = [self.body.get(name) for name in (*_BEFORE, *_ASKED)]
        return _sorted([self.route, asked])

    def content(self, seed: int) -> bytes:
        """The body as JSON. A request without a seed gets one that follows from the batch's and its key."""
        if self.body.get("seed") not in (None, -1):
            return msgspec.json.encode(self.body)
        return msgspec.json.encode({**self.body, "seed": seed_of(seed, self.key)})


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that is no request. `custom_id` is None where it has none."""

    number: int
    custom_id: str | None
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class LineReading:
    """How records are read: `defaults` are fields of bodies that a line leaves out."""

    defaults: Mapping[str, Any]

    def line(self, number: int, record: Any) -> BatchRequest | Fault:
        """What a record asks for."""
        if not isinstance(record, Mapping):
            return Fault(
                number, None, "invalid_line", f"line {number}: expected a JSON object, with custom_id and body"
            )
        given = record.get("custom_id")
        if given is not None and not (isinstance(given, str | int) and not isinstance(given, bool)):
            return Fault(number, None, "invalid_line", f"line {number}: custom_id is {given!r:.80}; expected a text")
        given_id = None if given is None else str(given)
        custom_id = f"line-{number}" if given_id is None else given_id

        def fault(message: str) -> Fault:
            return Fault(number, custom_id, "invalid_line", f"line {number}, custom_id {custom_id!r:.80}: {message}")

        body: Any
        if "body" not in record and "url" not in record:
            route, body = _plain(record)
            if route is None:
                return fault(f"expected {', '.join(_KEYS)}, or prompt, or messages")
        else:
            route, body = record.get("url"), record.get("body")
            if unknown := sorted(record.keys() - {*_KEYS}):
                return fault(f"{unknown[0]!r:.80} is no key of a batch line; expected {', '.join(_KEYS)}")
            if (method := record.get("method", "POST")) != "POST":
                return fault(f"method is {method!r:.80}; expected POST")
            if route not in ROUTES:
                return fault(f"url is {route!r:.80}; expected one of {', '.join(ROUTES)}")
            if not isinstance(body, Mapping):
                return fault("body is no JSON object; expected the fields of a request")
        if body.get("stream"):
            return fault("stream is true; a batch has whole answers, so leave it out")
        body = {**self.defaults, **body}
        digest = hashlib.blake2b(_sorted([route, body]), digest_size=16).digest()
        return BatchRequest(number, given_id, route, body, digest)

    def lines(self, records: Iterator[tuple[int, Any]]) -> Iterator[BatchRequest | Fault]:
        for number, record in records:
            yield record if isinstance(record, Fault) else self.line(number, record)


def seed_of(seed: int, key: str) -> int:
    """The seed of a request in a batch of seed `seed`, whatever its place there."""
    text = f"{seed}:{key}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) % MAX_DRAWN_SEED


def _plain(record: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    body = {key: value for key, value in record.items() if key != "custom_id"}
    if "messages" in body:
        return CHATS.route, body
    return (TEXTS.route if "prompt" in body else None), body

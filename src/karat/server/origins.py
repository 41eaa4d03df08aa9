"""Origins: the pages of other origins that may ask, and what a browser has to be told so that they can (CORS).

https://fetch.spec.whatwg.org/#http-cors-protocol. Cookies are never allowed: a key comes in a header.
"""

import re
from collections.abc import Iterable

from starlette.types import Send

ANY = "*"
_MAX_AGE_S = 600  # that a browser remembers what a preflight was answered
_EXPOSED = b"karat-seed, karat-without-effect, x-request-id, request-id, retry-after"
_NAMES = re.compile(rb"[A-Za-z0-9_, -]{1,2000}")  # of headers
_ASKED_METHOD = b"access-control-request-method"
_ASKED_HEADERS = b"access-control-request-headers"
_ASKED_PRIVATE = b"access-control-request-private-network"

Headers = list[tuple[bytes, bytes]]


class Origins:
    """Those that `--allowed-origin` names; ANY stands for all."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = {origin.lower().rstrip("/") for origin in allowed}
        self._is_any = ANY in self._allowed

    def allows(self, origin: str) -> bool:
        return self._is_any or origin.lower() in self._allowed

    def told(self, headers: Headers) -> Headers:
        """What every answer to a request with these headers says, errors too; nothing to an origin not allowed."""
        given = [value for name, value in headers if name == b"origin"]
        if len(given) != 1 or not self.allows(given[0].decode("latin-1").strip()):
            return []
        allowed = b"*" if self._is_any else given[0].strip()
        vary = [] if self._is_any else [(b"vary", b"origin")]
        return [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", _EXPOSED), *vary]

    def is_preflight(self, method: str, headers: Headers) -> bool:
        """Whether a browser asks whether it may ask. It sends no key then, and no page sees the answer."""
        return method == "OPTIONS" and any(name == _ASKED_METHOD for name, _ in headers) and bool(self.told(headers))


async def answer_preflight(headers: Headers, send: Send) -> None:
    """204: what the origin wants to send, it may send."""
    given = dict(headers)
    answer: Headers = [
        (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
        (b"access-control-max-age", str(_MAX_AGE_S).encode()),
    ]
    if _NAMES.fullmatch(asked := given.get(_ASKED_HEADERS, b"")):
        answer.append((b"access-control-allow-headers", asked))
    if given.get(_ASKED_PRIVATE) == b"true":
        answer.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": answer})
    await send({"type": "http.response.body", "body": b""})

"""Gate: the checks of every request before it is read: Host, Origin, key, and whether the server is ending.

A page in a browser can send requests to 127.0.0.1, and a name can be made to resolve to it (DNS rebinding). So a Host
that is a name is refused unless it is allowed, and an Origin unless it is the server's own or allowed. CORS headers are
sent to allowed origins alone.

The names by which containers reach their host are taken, but no page of such a name: whoever answers DNS in a network
can have a browser take his page for one of that name. A Unix socket is reached by no browser, so any Host is taken.
"""

import hmac
import ipaddress
import logging
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from karat.server.errors import ApiError, of_any
from karat.server.origins import Origins, answer_preflight
from karat.server.page import files
from karat.server.paths import advice_on, usual_path
from karat.server.protocols import errors_at
from karat.server.request_log import checked_id, new_id, request_id, serving
from karat.server.responses import GoneError, JsonBytes
from karat.server.settings import ServerSettings, digest
from karat.server.state import ServerState

CONTAINER_HOSTS = ("host.docker.internal", "gateway.docker.internal", "host.containers.internal")
OPEN_ROUTES = ("/health", "/ready")  # answered without a key, and to the end
_STATUS_CODES = {404: "not_found", 405: "method_not_allowed"}
_log = logging.getLogger("karat.server")


class Gate:
    """An ASGI app around `inner`. It answers errors in the form of the route's protocol.

    It logs one line a request, never its content.
    """

    def __init__(self, inner: ASGIApp, settings: ServerSettings, state: ServerState) -> None:
        self._inner = inner
        self._settings = settings
        self._state = state
        self._keys = settings.key_digests
        self._hosts = {"localhost", settings.host.lower(), *(host.lower() for host in settings.allowed_hosts)}
        self._container_hosts = set(CONTAINER_HOSTS) - self._hosts
        self._origins = Origins(settings.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # there are no web sockets, and nothing waits for the lifespan
        scope["path"] = usual_path(scope["path"])
        given = [value for name, value in scope["headers"] if name == b"x-request-id"]
        try:
            named, unfit = checked_id(given[0].decode("latin-1")) if given else new_id(), None
        except ApiError as error:
            named, unfit = new_id(), error
        with serving(named) as facts:
            await self._logged(scope, receive, send, facts, unfit)

    async def _logged(
        self, scope: Scope, receive: Receive, send: Send, facts: dict[str, Any], unfit: ApiError | None
    ) -> None:
        """Answers, with the request's id in the header, and logs. `unfit` is the error of the id that came."""
        begun, status = perf_counter(), 0
        names = errors_at(scope["path"]).id_headers
        tags = [(name, facts["request_id"].encode()) for name in names] + self._origins.told(scope["headers"])

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *tags]
            await send(message)

        try:
            if unfit is not None:
                raise unfit
            await self._answered(scope, receive, noting)
        except GoneError:
            status = 499  # nginx's: the client closed the connection
        except HTTPException as error:
            code = _STATUS_CODES.get(error.status_code)
            known = ApiError(error.status_code, f"{error.detail}; {advice_on(scope['path'])}", code=code)
            await _refuse(known, scope, receive, noting, started=status != 0)
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request: a bug ends it alone
            await _refuse(of_any(error), scope, receive, noting, started=status != 0)
        finally:
            took_s = perf_counter() - begun
            path = ascii(scope["path"][:100])[1:-1]
            told = {"method": scope["method"], "path": path, "status": status, "seconds": round(took_s, 6)}
            late = ", then an error" if status == 200 and facts.get("end") == "error" else ""  # within the stream
            _log.info("%s %s %d%s %.3f s", scope["method"], path, status, late, took_s, extra={"facts": told | facts})

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _Headers(scope)
        headers.only("x-request-id")
        self._check_host(headers, is_unix=(scope.get("server") or ("", 0))[1] is None)
        if self._origins.is_preflight(scope["method"], scope["headers"]):
            await answer_preflight(scope["headers"], send)
            return
        is_open = scope["path"] in OPEN_ROUTES
        if self._keys and not is_open and not files.is_page(scope["path"]):
            scope["karat.tenant"] = self._tenant(headers)
        if is_open:
            await self._inner(scope, receive, send)
            return
        if self._state.draining:
            raise ApiError(
                503, "the server is ending; send the request to another, or later", code="draining", retry_after_s=10
            )
        with self._state.busy():
            await self._inner(scope, receive, send)

    def _check_host(self, headers: "_Headers", *, is_unix: bool) -> None:
        host = headers.only("host")
        name = None if host is None else _name_of(host)
        if host is not None and not is_unix and not self._is_known(name):
            raise ApiError(
                403,
                "the Host header names another machine; ask by address, or allow the name with --allowed-host",
                code="foreign_host",
            )
        origin = headers.only("origin")
        if origin is None or self._origins.allows(origin):
            return
        _, _, place = origin.partition("://")
        if host is None or place.lower() != host.lower() or name in self._container_hosts:
            raise ApiError(
                403,
                "the request comes from a page of another origin; allow it with --allowed-origin",
                code="foreign_origin",
            )

    def _is_known(self, name: str | None) -> bool:
        """Whether a host is an address (which cannot be rebound), an allowed name or a container's name for us."""
        if name is None:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts or name in self._container_hosts
        return True

    def _tenant(self, headers: "_Headers") -> str:
        """The tenant of a key, as a name that does not reveal the key.

        401 for an unknown key, and for two headers with different ones. All keys are compared.
        """
        bearer, plain = headers.only("authorization"), headers.only("x-api-key")
        found = set()
        if bearer is not None or plain is None:
            scheme, _, key = (bearer or "").partition(" ")
            known = self._known(key.strip())
            found.add(known if scheme.lower() == "bearer" else None)
        if plain is not None:
            found.add(self._known(plain))
        tenant = found.pop()
        if tenant is None or found:
            raise ApiError(
                401,
                "the API key is missing or wrong; send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                code="invalid_api_key",
            )
        return tenant.hex()

    def _known(self, key: str) -> bytes | None:
        """The digest of a key that is one of the server's; None for another."""
        given, found = digest(key), None
        for known in self._keys:
            if hmac.compare_digest(given, known):
                found = known
        return found


def _name_of(host: str) -> str | None:
    """The name or address in a Host header; None if it has none."""
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return None
    return None if "@" in host or "/" in host else name


class _Headers:
    """The headers of a request. `only` refuses a header that comes twice, as two readers may take different values."""

    def __init__(self, scope: Scope) -> None:
        self._all: list[tuple[bytes, bytes]] = scope["headers"]

    def only(self, name: str) -> str | None:
        values = [value for key, value in self._all if key == name.encode()]
        if len(values) > 1:
            raise ApiError(400, f"the header {name} comes {len(values)} times; expected one")
        return values[0].decode("latin-1").strip() if values else None


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send, *, started: bool) -> None:
    if started:
        return  # the stream has said it
    headers = dict(error.headers)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    await JsonBytes(errors_at(scope["path"]).body(error, request_id()), error.status, headers)(scope, receive, send)

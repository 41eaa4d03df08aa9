"""Serving: a server from start to end: sockets, signals and the engine."""

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from karat.engine.async_llm import AsyncLLM
from karat.errors import KaratError
from karat.server.app import make_app
from karat.server.http import make_server
from karat.server.keeper import Keeper
from karat.server.settings import ServerSettings
from karat.server.state import ServerState

_log = logging.getLogger("karat.server")
_BACKLOG = 1024


def bind(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of `host`. KaratError if one cannot be bound."""
    sockets: list[socket.socket] = []
    try:
        for family, kind, proto, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            listener = socket.socket(family, kind, proto)
            sockets.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if port == 0 and len(sockets) > 1:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            listener.bind(address)
            listener.listen(_BACKLOG)
    except OSError as fault:
        for listener in sockets:
            listener.close()
        raise KaratError(
            f"{host} port {port} cannot be listened on ({fault.strerror}); choose another by --host and --port"
        ) from fault
    return sockets


def bind_path(path: Path) -> socket.socket:
    """A Unix socket at `path`, for this user alone. One that is left over from a process that died is replaced.

    KaratError if there is another file, if somebody listens there, or if it cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and _is_left_over(path):
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o600)  # before it listens
        listener.listen(_BACKLOG)
    except OSError as fault:
        listener.close()
        reason = fault.strerror or str(fault)
        raise KaratError(f"--unix-socket {path} cannot be listened on ({reason}); choose another path") from fault
    return listener


def _is_left_over(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


class Serving:
    """One server. `announce` is called with its address once it answers, `opened` with the engine once it is loaded.
    num_lost_lines tells how many lines of the log nobody took so far.

    SIGTERM or SIGINT drains it: it is no longer ready, new requests get 503, and open ones go on for at most drain_s
    seconds. A second signal ends them at once.
    """

    def __init__(
        self,
        settings: ServerSettings,
        open_llm: Callable[[], Awaitable[AsyncLLM]],
        opened: Callable[[AsyncLLM, str], None],
        num_lost_lines: Callable[[], int] = int,
    ) -> None:
        self._settings = settings
        self._keeper = Keeper(open_llm, settings.queue_timeout_s)
        self._opened = opened
        self._num_lost_lines = num_lost_lines
        self._signals: list[int] = []

    async def run(self) -> int | None:
        """Serve until a signal, which is returned. Errors pass through."""
        settings = self._settings
        scheme = "http" if settings.tls_cert is None else "https"
        if settings.unix_socket is not None:
            sockets = [bind_path(settings.unix_socket)]
            address = f"{settings.unix_socket} ({scheme}): "
        else:
            sockets = bind(settings.host, settings.port)
            host, port = sockets[0].getsockname()[:2]
            address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        state, first, second = ServerState(self._num_lost_lines), asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def note(number: int) -> None:
            self._signals.append(number)
            (second if first.is_set() else first).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, note, number)
        server = make_server(make_app(self._keeper, settings, state), settings)
        http = asyncio.create_task(server.serve(sockets=sockets))
        keeping = asyncio.create_task(self._keeper.run(lambda llm: self._opened(llm, address)))
        stopping = asyncio.create_task(first.wait())
        try:
            await asyncio.wait({http, keeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
            state.draining = True
            if stopping.done():
                await self._drain(state, second)
        finally:
            state.draining = True
            await _ended(stopping)
            failure = keeping.exception() if keeping.done() and not keeping.cancelled() else None
            await _ended(keeping)
            await self._keeper.close()
            with suppress(TimeoutError):  # for what is under way to say why it ended
                await asyncio.wait_for(state.idle(), 1)
            server.should_exit = server.force_exit = True
            await asyncio.wait({http}, timeout=3)
            await _ended(http)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            if settings.unix_socket is not None:
                settings.unix_socket.unlink(missing_ok=True)
        if failure is not None:
            raise failure
        return self._signals[0] if self._signals else None

    @property
    def was_aborted(self) -> bool:
        """Whether a second signal came."""
        return len(self._signals) > 1

    async def _drain(self, state: ServerState, second: asyncio.Event) -> None:
        if state.num_busy:
            said = "ending: %d requests under way, %g s for them; a second signal ends it at once"
            _log.warning(said, state.num_busy, self._settings.drain_s)
        else:
            _log.warning("ending: no request is under way")
        idle, hurried = asyncio.create_task(state.idle()), asyncio.create_task(second.wait())
        await asyncio.wait({idle, hurried}, timeout=self._settings.drain_s, return_when=asyncio.FIRST_COMPLETED)
        await _ended(idle)
        await _ended(hurried)


async def _ended(task: "asyncio.Task[object]") -> None:
    task.cancel()
    with suppress(BaseException):
        await task

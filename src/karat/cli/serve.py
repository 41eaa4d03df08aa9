"""`karat serve`: an OpenAI-compatible server."""

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from karat.cli.exits import INTERRUPTED
from karat.cli.generation import NO_DEFAULTS
from karat.cli.options import LoadOptions, ServeOptions
from karat.cli.run_receipt import signer_from
from karat.cli.terminal import dim
from karat.errors import UsageError

if TYPE_CHECKING:
    from karat.engine.async_llm import AsyncLLM
    from karat.server.request_log import LogFormat
    from karat.server.settings import ServerSettings

EXAMPLES = """
Examples

  karat serve                                   on http://127.0.0.1:8000
  karat serve org/name --served-model-name name
  karat serve ./model.gguf --api-key-file keys.txt --port 9000
"""
_LOOPBACK = ("127.", "::1", "localhost")
_log = logging.getLogger("karat.server")


def serve(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Folder, GGUF file or name on the hub.", show_default=False),
    ] = None,
    model_option: Annotated[
        str | None, typer.Option("-m", "--model", metavar="MODEL", help="The same as an option.")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only errors on stderr.")] = False,
    *,
    loading: LoadOptions,
    serving: ServeOptions,
) -> None:
    """Serve a model by OpenAI's protocol: chat completions, completions, models; see docs/serving.md.

    Stops at SIGTERM (exit code 0) or Ctrl-C: requests under way are finished, for --drain-s seconds at the most. A
    second signal ends them at once. No prompt is ever logged.
    """
    if model is not None and model_option is not None:
        raise UsageError(f"two models, {model!r} and {model_option!r}; give one")
    name = model if model is not None else model_option
    settings = _settings(name, serving)
    from karat.server.request_log import ServerLog

    form = _log_format(serving.log_format)
    log = ServerLog(form, quiet=quiet)

    def remark(text: str) -> None:
        log.put(dim(text))

    warn, say = (remark, remark) if form == "text" else (_log.error, _log.info)
    if not settings.api_keys and not settings.host.startswith(_LOOPBACK):
        warn(f"whoever reaches {settings.host} may use this server; ask for a key with --api-key-file")
    if not settings.api_keys and "*" in settings.allowed_origins:
        warn("every page that a browser here opens may use this server; ask for a key with --api-key-file")
    options = loading.given() | serving.engine()
    try:
        code = asyncio.run(_serve(name, settings, options, None if quiet else say, log.num_lost))
    finally:
        log.close()
    if code:
        raise typer.Exit(code)


async def _serve(
    name: str | None,
    settings: "ServerSettings",
    options: dict[str, Any],
    say: Callable[[str], None] | None,
    num_lost_lines: Callable[[], int],
) -> int:
    from karat.engine.async_llm import AsyncLLM
    from karat.server.serving import Serving

    def opened(llm: "AsyncLLM", address: str) -> None:
        if say is not None:
            say(f"{name or 'the embedded model'}: {llm.defaults_notice or NO_DEFAULTS}")
            say(f"{address}/v1 serves {', '.join(settings.model_names)}; Ctrl-C ends it")

    async def open_llm() -> AsyncLLM:
        return await AsyncLLM.open(name, **options)

    running = Serving(settings, open_llm, opened, num_lost_lines)
    number = await running.run()
    if number is None or (number == signal.SIGTERM and not running.was_aborted):
        return 0
    return INTERRUPTED if number == signal.SIGINT else 128 + number


def _settings(name: str | None, given: ServeOptions) -> "ServerSettings":
    from karat.server.settings import ServerLimits, ServerSettings

    if (given.tls_cert is None) != (given.tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together; give both")
    if given.unix_socket is not None and (given.host is not None or given.port is not None):
        raise UsageError("--unix-socket with --host or --port: it is instead of them; give one or the other")
    for file in (given.tls_cert, given.tls_key):
        if file is not None and not file.is_file():
            raise UsageError(f"{file}: there is no such file; give the certificate and its key as PEM")
    own: dict[str, Any] = {
        "host": given.host,
        "port": given.port,
        "unix_socket": given.unix_socket,
        "default_max_tokens": given.default_max_tokens,
        "ping_s": given.ping_s,
        "drain_s": given.drain_s,
        "queue_timeout_s": given.queue_timeout_s,
        "signer": signer_from(given.receipt_key),
        "tls_cert": given.tls_cert,
        "tls_key": given.tls_key,
    }
    bounds: dict[str, Any] = {
        "body_bytes": given.max_body_bytes,
        "head_bytes": given.max_head_bytes,
        "body_s": given.body_timeout_s,
        "head_s": given.head_timeout_s,
        "connections": given.max_connections,
        "write_s": given.write_timeout_s,
    }
    if given.port is not None and not 0 <= given.port <= 65535:
        raise UsageError(f"--port {given.port}: expected a number from 0 to 65535")
    for option, value in (own | bounds).items():
        if isinstance(value, int | float) and option != "port" and not value > 0:
            raise UsageError(f"{option}={value}: expected a number above 0")
    return ServerSettings(
        model_names=tuple(given.served_model_name or [usual_name(name)]),
        api_keys=_keys(given),
        allowed_hosts=tuple(given.allowed_host or ()),
        allowed_origins=tuple(given.allowed_origin or ()),
        limits=ServerLimits(**{option: value for option, value in bounds.items() if value is not None}),
        **{option: value for option, value in own.items() if value is not None},
    )


def _log_format(given: str | None) -> "LogFormat":
    if given is None or given == "text":
        return "text"
    if given == "json":
        return "json"
    raise UsageError(f"--log-format {given}: expected text or json")


def usual_name(name: str | None) -> str:
    """The last part of a path, or the name on the hub."""
    if name is None:
        return "karat-embedded"
    path = Path(name).expanduser()
    if not path.exists():
        return name
    return path.stem if path.suffix == ".gguf" else path.resolve().name


def _keys(given: ServeOptions) -> tuple[str, ...]:
    from karat.server.keys import check_keys, keys_in

    keys = list(given.api_key or ())
    check_keys(keys)
    return (*keys, *(keys_in(given.api_key_file) if given.api_key_file is not None else ()))

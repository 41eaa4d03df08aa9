"""Settings of the server: the options of `karat serve`."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from karat.receipts.signature import Signer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of one client. Times are in seconds."""

    body_bytes: int = 16 * 1024**2
    body_s: float = 30
    head_bytes: int = 32 * 1024
    head_s: float = 10
    idle_s: float = 75  # of a connection between two requests
    write_s: float = 30  # that a reader may take none of what is written
    connections: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """`model_names`: at least one; the first is for requests without one. Without keys every client is accepted.

    `is_watched`: somebody may see an answer before its end.
    """

    model_names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    unix_socket: Path | None = None  # instead of host and port
    api_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    default_max_tokens: int = 4096
    ping_s: float = 10
    drain_s: float = 30
    queue_timeout_s: float | None = None  # for which requests wait while the model is loading, too
    signer: Signer | None = None  # of receipts
    is_watched: bool = True
    limits: ServerLimits = ServerLimits()

    @property
    def key_digests(self) -> tuple[bytes, ...]:
        return tuple(map(digest, self.api_keys))


def digest(key: str) -> bytes:
    """A digest of a key. All digests have one length, so that comparing reveals nothing of the key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

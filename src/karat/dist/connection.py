"""Messages between a rank and who started it: frames over a pair of sockets. What is in them is said by msgspec types."""

import socket
import struct

_LENGTH = struct.Struct("<Q")
_MOST = 1 << 32  # bytes of a message


class ConnectionEndedError(Exception):
    """The other side is gone."""


class Connection:
    """One end of a pair of sockets, which it owns."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes) -> None:
        """Send a message whole. Raises ConnectionEndedError."""
        try:
            self._socket.sendall(_LENGTH.pack(len(message)) + message)
        except (BrokenPipeError, ConnectionResetError) as fault:
            raise ConnectionEndedError from fault

    def receive(self) -> bytes:
        """The next message, waiting for it. Raises ConnectionEndedError."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        assert length < _MOST, f"a message of {length} bytes"
        return self._exactly(length)

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            try:
                part = self._socket.recv(min(count, 1 << 20))
            except ConnectionResetError as fault:
                raise ConnectionEndedError from fault
            if not part:
                raise ConnectionEndedError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

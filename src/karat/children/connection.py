"""Connection: messages between a process and its parent, as frames over a pair of sockets.

frame   | length: uint64, little-endian | message: `length` bytes (msgspec) |
"""

import socket
import struct

_LENGTH = struct.Struct("<Q")
_MOST = 1 << 32  # bytes of a message
_PIECE = 1 << 16
_MOST_PIECES = 64  # received in one `take`, so that the caller gets back to its other work


class ConnectionEndedError(Exception):
    """The other end of the connection is closed."""


class Connection:
    """One end of a pair of sockets, which it owns."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = bytearray()
        self._unsent = bytearray()

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
        self._fill(_LENGTH.size)
        (length,) = _LENGTH.unpack_from(self._received)
        assert length < _MOST, f"a message of {length} bytes"
        end = _LENGTH.size + length
        self._fill(end)
        message = bytes(memoryview(self._received)[_LENGTH.size : end])
        del self._received[:end]
        return message

    def take(self) -> list[bytes]:
        """The messages that have arrived whole, without waiting.

        Raises ConnectionEndedError when the other end is closed and all messages were taken.
        """
        messages: list[bytes] = []
        has_ended = False
        for _ in range(_MOST_PIECES):
            try:
                part = self._socket.recv(_PIECE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionResetError:
                part = b""
            if not part:
                has_ended = True
                break
            self._received += part
            if len(part) < _PIECE:
                break  # most likely all: what comes later makes the socket readable again
        start = 0
        while len(self._received) >= start + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received, start)
            assert length < _MOST, f"a message of {length} bytes"
            end = start + _LENGTH.size + length
            if len(self._received) < end:
                break
            messages.append(bytes(memoryview(self._received)[start + _LENGTH.size : end]))
            start = end
        del self._received[:start]
        if has_ended and not messages:
            raise ConnectionEndedError
        return messages

    def offer(self, message: bytes | None = None) -> bool:
        """Send `message` after the unsent rest of earlier ones, without waiting. Returns whether all was sent.

        Raises ConnectionEndedError. `send` must not be used after the first `offer`: its message would come in between.
        """
        if message is not None:
            self._unsent += _LENGTH.pack(len(message)) + message
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError) as fault:
                raise ConnectionEndedError from fault
            del self._unsent[:sent]
        return True

    @property
    def has_more(self) -> bool:
        """Whether bytes after the last message have arrived: then call `receive` before waiting for the socket."""
        return bool(self._received)

    def close(self) -> None:
        self._socket.close()

    def _fill(self, count: int) -> None:
        """Read until `count` bytes have arrived. Reads what comes with them: usually a whole message in one call."""
        while len(self._received) < count:
            try:
                part = self._socket.recv(max(_PIECE, min(count - len(self._received), 1 << 20)))
            except ConnectionResetError as fault:
                raise ConnectionEndedError from fault
            if not part:
                raise ConnectionEndedError
            self._received += part

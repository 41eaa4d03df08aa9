"""Messages over a pair of sockets: waiting for them, and taking and offering without waiting."""

import socket
import struct
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.children.connection import Connection, ConnectionEndedError


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection, and the other end as a plain socket."""
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    yield connection, theirs
    connection.close()
    theirs.close()


def framed(*messages: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(message)) + message for message in messages)


@given(messages=st.lists(st.binary(max_size=300), max_size=5), cuts=st.lists(st.integers(0, 1600), max_size=4))
def test_messages_come_whole_however_they_are_cut(messages: list[bytes], cuts: list[int]) -> None:
    ours, theirs = socket.socketpair()
    connection, sent = Connection(ours), framed(*messages)
    places = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    taken = []
    for start, end in pairwise(places):
        theirs.sendall(sent[start:end])
        taken += connection.take()
    theirs.close()
    assert taken == messages
    with pytest.raises(ConnectionEndedError):
        connection.take()
    connection.close()


def test_what_came_before_the_end_is_taken_first(ends: tuple[Connection, socket.socket]) -> None:
    connection, other = ends
    assert connection.take() == [] and not connection.has_more
    other.sendall(framed(b"last words") + framed(b"half a message")[:-3])
    other.close()
    assert connection.take() == [b"last words"]
    with pytest.raises(ConnectionEndedError):
        connection.take()


def test_what_does_not_go_at_once_goes_later_in_order(ends: tuple[Connection, socket.socket]) -> None:
    connection, other = ends
    large = bytes(range(256)) * (1 << 14)
    assert connection.offer(b"first")
    assert not connection.offer(large) and not connection.offer(b"last")
    reader = Connection(other.dup())
    taken = reader.take()
    while len(taken) < 3:
        connection.offer()
        taken += reader.take()
    assert taken == [b"first", large, b"last"] and connection.offer()
    reader.close()


def test_nobody_there_to_be_told(ends: tuple[Connection, socket.socket]) -> None:
    connection, other = ends
    other.close()
    for act in (lambda: connection.offer(b"x"), lambda: connection.send(b"x"), connection.receive):
        with pytest.raises(ConnectionEndedError):
            act()

"""What is written comes whole and in order, at once where the client reads, later where it does not, and never without
end."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.errors import SlowReaderError
from karat.server import pipe as module
from karat.server.pipe import Pipe
from karat.server.responses import Events


class Client:
    """`send` of ASGI. While `is_open` is not set, the client takes nothing."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.messages: list[Any] = []

    async def send(self, message: Any) -> None:
        await self.is_open.wait()
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_a_batch_is_sent_before_write_returns() -> None:
    async def write() -> None:
        client = Client()
        pipe = Pipe(client.send, {"x-a": "b"}, 30)
        assert not pipe.has_begun and client.messages == []
        pipe.write(b"one")
        pipe.write(b"two")
        assert [message["type"] for message in client.messages] == ["http.response.start", *["http.response.body"] * 2]
        assert (b"x-a", b"b") in client.messages[0]["headers"] and client.body == b"onetwo"
        await pipe.end(b"three")
        assert client.body == b"onetwothree"
        assert [message.get("more_body") for message in client.messages[1:]] == [True, True, False]

    run(write())


@given(st.lists(st.one_of(st.binary(max_size=9), st.sampled_from(["open", "shut", "wait"])), max_size=30))
def test_the_client_gets_all_in_order_whenever_it_reads(actions: list[bytes | str]) -> None:
    async def act() -> None:
        client = Client()
        pipe, written = Pipe(client.send, {}, 30), b""
        for action in actions:
            if isinstance(action, bytes):
                pipe.write(action)
                written += action
            elif action == "open":
                client.is_open.set()
            elif action == "shut":
                client.is_open.clear()
            else:
                for _ in range(5):
                    await asyncio.sleep(0)
            assert written.startswith(client.body)
        client.is_open.set()
        await pipe.end(b"!")
        assert client.body == written + b"!" and client.messages[-1]["more_body"] is False
        assert not pipe.broken.done()

    run(act())


def test_a_client_that_takes_nothing_is_given_up() -> None:
    async def write() -> None:
        for has_written in (True, False):
            client = Client()
            client.is_open.clear()
            pipe = Pipe(client.send, {}, 0.01)
            if has_written:
                pipe.write(b"one")
                await asyncio.wait_for(asyncio.shield(pipe.broken), 10)
            with pytest.raises(TimeoutError):
                await pipe.end(b"two")
            assert client.messages == []

    run(write())


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def write() -> None:
        client = Client()
        client.is_open.clear()
        pipe = Pipe(client.send, {}, 30)
        for _ in range(11):  # one of them is being sent
            pipe.write(b"x" * 10)
        with pytest.raises(SlowReaderError, match="110 bytes of the answer wait to be read, of at most 100"):
            pipe.write(b"x" * 10)
        pipe.close()

    monkeypatch.setattr(module, "MAX_KEPT", 100)
    run(write())


def test_closing_ends_what_is_being_sent() -> None:
    async def write() -> None:
        client = Client()
        client.is_open.clear()
        pipe = Pipe(client.send, {}, 30)
        pipe.write(b"one")
        await asyncio.sleep(0)
        pipe.close()
        client.is_open.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert client.messages == [] and not any("Pipe._drain" in repr(task) for task in asyncio.all_tasks())

    run(write())


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_bug_after_the_first_event_is_an_event(has_begun: bool) -> None:
    """Before it, it is the answer's status."""

    async def act() -> None:
        client = Client()

        async def make(write: Callable[[bytes], None]) -> bytes:
            if has_begun:
                write(b"data: 1\n\n")
            raise ZeroDivisionError("a secret")

        async def receive() -> Any:
            await asyncio.Event().wait()

        with nullcontext() if has_begun else pytest.raises(ZeroDivisionError):
            await Events(make, {}, ping_s=60, write_s=60)({"type": "http"}, receive, client.send)
        last = client.body.rpartition(b"data: ")[2]
        assert (b"ZeroDivisionError: this is a bug in Karat" in last) == has_begun and b"secret" not in last
        assert not has_begun or client.messages[-1]["more_body"] is False

    run(act())

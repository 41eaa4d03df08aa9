"""What a request's record says of whole answers and of every kind of broken one.

Covers: karat.bench.load.asking, karat.http_client.
"""

import asyncio
from typing import Any

import pytest

from karat.bench.load.asking import AskedRecord, Manner, converse
from karat.bench.load.prompts import PlannedConversation, Turn
from karat.errors import UsageError
from karat.http_client import Client
from tests.support.scripted_server import DONE, Answer, event, plain, serve, stream, text, url_of

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
ONE = PlannedConversation(None, (Turn("a b", 4),))


def ask(
    answer: Answer, conversation: PlannedConversation = ONE, *, timeout_s: float = 60, times: int = 1
) -> list[AskedRecord]:
    async def asked() -> list[AskedRecord]:
        async with await serve({TEXT: answer, CHAT: answer}) as server:
            client = Client(url_of(server), timeout_s=timeout_s)
            manner = Manner(chat=len(conversation.turns) > 1, fields={"model": "m"})
            try:
                found = [await converse(client, manner, conversation, 0.0) for _ in range(times)]
                return [record for records in found for record in records]
            finally:
                await client.close()

    return asyncio.run(asked())


def usage(prompt: int, output: int, **details: Any) -> bytes:
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": output, **details})


def test_a_whole_answer() -> None:
    cached = {"prompt_tokens_details": {"cached_tokens": 3}}
    (record,) = ask(stream(text("one"), text(""), text(" two three"), usage(7, 3, **cached), DONE))
    assert record.error is None and record.text == "one two three"
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (7, 3, 3) and record.has_usage
    assert len(record.events) == 2, "an event without text is no token that anybody sees"
    assert record.sent <= record.events[0] <= record.events[1] <= record.ended


def test_events_that_come_in_pieces_and_together() -> None:
    whole = text("one") + text(" two") + usage(1, 2) + DONE
    pieces = [whole[i : i + 7] for i in range(0, len(whole), 7)]
    for parts in ([whole], pieces, [whole.replace(b"\n", b"\r\n")]):
        (record,) = ask(stream(*parts))
        assert record.error is None and record.text == "one two" and len(record.events) == 2


def test_without_usage_events_are_counted() -> None:
    (record,) = ask(stream(text("one"), text(" two"), DONE))
    assert record.error is None and record.output_tokens == 2 and not record.has_usage and record.prompt_tokens is None


@pytest.mark.parametrize("name", ["content", "reasoning_content", "reasoning"])
def test_text_of_a_chat(name: str) -> None:
    (record,) = ask(
        stream(
            event(choices=[{"delta": {"role": "assistant", "content": ""}}]),
            event(choices=[{"delta": {name: "yes"}}]),
            DONE,
        )
    )
    assert record.text == "yes" and len(record.events) == 1


BROKEN: dict[str, tuple[Answer, str]] = {
    "status": (plain(503, {"error": {"message": "m", "code": "overloaded"}}), "HTTP 503 (overloaded)"),
    "type": (plain(400, {"error": {"message": "m", "code": None, "type": "bad"}}), "HTTP 400 (bad)"),
    "page": (plain(502, b"<html>", "text/html"), "HTTP 502"),
    "no stream": (plain(200, {"choices": []}), "the answer is no stream"),
    "no end": (stream(text("one")), "the stream ended without [DONE]"),
    "closed": (stream(text("one"), ends=False), "the connection was closed in the middle of the answer"),
    "error event": (stream(text("one"), event(error={"code": "engine_died"})), "error event (engine_died)"),
    "error text": (stream(event(error="no")), "error event"),
    "not JSON": (stream(b"data: {\n\n"), "an event is not JSON of OpenAI's form"),
    "other JSON": (stream(b'data: {"choices": 1}\n\n'), "an event is not JSON of OpenAI's form"),
    "empty": (stream(usage(1, 0), DONE), "the answer has no text"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_answers_are_errors_by_kind(name: str) -> None:
    answer, kind = BROKEN[name]
    (record,) = ask(answer)
    assert record.error == kind and record.ended >= record.sent


def test_an_answer_that_is_not_http() -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\r\n\r\n")

    assert ask(answer)[0].error == "the answer is not HTTP"


def test_an_answer_that_does_not_come() -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    assert ask(answer, timeout_s=0.05)[0].error == "no whole answer within 0.05 s"


def test_nobody_listens() -> None:
    async def asked() -> AskedRecord:
        server = await serve({})
        url = url_of(server)
        server.close()
        return (await converse(Client(url), Manner(chat=False, fields={}), ONE, 0.0))[0]

    assert asyncio.run(asked()).error == "the connection was refused"


def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    """The server ends each connection after its answer without saying so; every request is answered all the same."""
    whole = stream(text("one"), DONE)

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await whole(body, writer)
        writer.close()

    records = ask(answer, times=3)
    assert [record.error for record in records] == [None] * 3


def test_turns_are_asked_with_all_that_came_before() -> None:
    seen: list[Any] = []
    whole = stream(event(choices=[{"delta": {"content": "so"}}]), DONE)

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        seen.append(body)
        await whole(body, writer)

    records = ask(answer, PlannedConversation("sys", (Turn("q1", 4), Turn("q2", 5))))
    assert [record.turn for record in records] == [0, 1] and records[1].due == records[0].ended
    first = [{"role": "system", "content": "sys"}, {"role": "user", "content": "q1"}]
    assert seen[0] == {"model": "m", "max_tokens": 4, "messages": first}
    more = [{"role": "assistant", "content": "so"}, {"role": "user", "content": "q2"}]
    assert seen[1]["messages"] == [*first, *more] and seen[1]["max_tokens"] == 5


def test_a_conversation_ends_with_its_first_failure() -> None:
    records = ask(plain(500, {}), PlannedConversation(None, (Turn("q1", 4), Turn("q2", 5))))
    assert [record.error for record in records] == ["HTTP 500"]


@pytest.mark.parametrize(
    ("prefix", "prompt", "sent"), [((1, 2), (3,), [1, 2, 3]), ("a", "b", "a b"), (None, (3,), [3])]
)
def test_a_prefix_comes_first(prefix: Any, prompt: Any, sent: Any) -> None:
    import json

    body = json.loads(Manner(chat=False, fields={}).body(PlannedConversation(prefix, (Turn(prompt, 1),)), []))
    assert body == {"prompt": sent, "max_tokens": 1}


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://a", "http://", "http://a:99999999", "http://a/?b=1"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(UsageError):
        Client(url)

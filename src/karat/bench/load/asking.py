"""One conversation with a server: its requests, the times of their events, and how each ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import msgspec

from karat.bench.load.prompts import PlannedConversation
from karat.http_client import Client, FailedError, HttpResponse

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def shown(self) -> str:
        if self.delta is None:
            return self.text or ""
        return self.delta.content or self.delta.reasoning_content or self.delta.reasoning or ""


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _ErrorBody(msgspec.Struct):
    error: Any = None


_EVENT = msgspec.json.Decoder(_Event)
_ERROR_BODY = msgspec.json.Decoder(_ErrorBody)


@dataclass(frozen=True, slots=True)
class Manner:
    """How every request asks: by a chat or by a prompt, and with which other fields."""

    chat: bool
    fields: Mapping[str, Any]

    @property
    def path(self) -> str:
        return CHAT if self.chat else TEXT

    def body(self, conversation: PlannedConversation, answers: Sequence[str]) -> bytes:
        """Asks turn number len(answers), with all that came before."""
        turn = conversation.turns[len(answers)]
        prefix, fields = conversation.prefix, {**self.fields, "max_tokens": turn.max_tokens}
        if self.chat:
            messages = [] if prefix is None else [{"role": "system", "content": prefix}]
            for asked, answer in zip(conversation.turns, answers, strict=False):
                messages += [{"role": "user", "content": asked.prompt}, {"role": "assistant", "content": answer}]
            return msgspec.json.encode({**fields, "messages": [*messages, {"role": "user", "content": turn.prompt}]})
        assert not answers, "only a chat has several turns"
        if isinstance(turn.prompt, str):
            prompt: Any = turn.prompt if prefix is None else f"{prefix} {turn.prompt}"
        else:
            prompt = [*(prefix or ()), *turn.prompt]
        return msgspec.json.encode({**fields, "prompt": prompt})


@dataclass(slots=True)
class AskedRecord:
    """One request. Times are perf_counter's seconds; `due` is when it was to be sent, and latencies count from there.

    events: when text came. Tokens are those of the server's usage; without one, output_tokens is the number of events,
    and the others are None. error: the kind of failure, None where the whole answer came.
    """

    due: float
    turn: int = 0
    sent: float = 0
    ended: float = 0
    events: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    has_usage: bool = False
    error: str | None = None
    text: str = ""


async def converse(client: Client, manner: Manner, conversation: PlannedConversation, due: float) -> list[AskedRecord]:
    """The records of the turns, each asked as soon as the one before has ended; a failed one is the last."""
    records: list[AskedRecord] = []
    for turn in range(len(conversation.turns)):
        record = AskedRecord(due if turn == 0 else records[-1].ended, turn)
        records.append(record)
        await _ask(client, manner.path, manner.body(conversation, [one.text for one in records[:-1]]), record)
        if record.error is not None:
            break
    return records


async def _ask(client: Client, path: str, body: bytes, record: AskedRecord) -> None:
    pieces: list[str] = []
    is_done = False

    def take(data: bytes, when: float) -> None:
        nonlocal is_done
        if data == b"[DONE]":
            is_done = True
            return
        try:
            event = _EVENT.decode(data)
        except msgspec.DecodeError:
            raise FailedError("an event is not JSON of OpenAI's form") from None
        if event.error is not None:
            raise FailedError(f"error event{_named(event.error)}")
        if usage := event.usage:
            record.has_usage = usage.completion_tokens is not None
            record.prompt_tokens, record.output_tokens = usage.prompt_tokens, usage.completion_tokens or 0
            details = usage.prompt_tokens_details
            record.cached_tokens = None if details is None else details.cached_tokens
        if shown := "".join(choice.shown for choice in event.choices):
            record.events.append(when)
            pieces.append(shown)

    record.sent = perf_counter()
    try:
        response = await client.post(path, body, take)
        record.ended = response.ended
        if response.status != 200:
            raise FailedError(f"HTTP {response.status}{_code_of(response)}")
        if not is_done:
            raise FailedError("the answer is no stream" if response.body else "the stream ended without [DONE]")
        if not record.events:
            raise FailedError("the answer has no text")
    except FailedError as failure:
        record.error = str(failure)
        record.ended = record.ended or perf_counter()
    record.text = "".join(pieces)
    if not record.has_usage:
        record.output_tokens = len(record.events)


def _code_of(response: HttpResponse) -> str:
    try:
        return _named(_ERROR_BODY.decode(response.body).error)
    except msgspec.DecodeError:
        return ""


def _named(error: Any) -> str:
    """The code or the type of an error, as far as it has one."""
    found = error.get("code") or error.get("type") if isinstance(error, dict) else None
    return f" ({found})" if isinstance(found, str | int) else ""

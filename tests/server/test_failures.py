"""A fault of one request that is found in a step: its own status, or its own last event, in every protocol."""

import asyncio
import json
from typing import Any

import pytest

from karat import LLM, AsyncLLM, SamplingParams
from karat.errors import BugError, CapacityError, NumericsError, OutOfMemoryError, RequestError
from karat.outputs import CompletionOutput
from karat.server.anthropic.events import error_event as anthropic_event
from karat.server.errors import failure_of, of_karat
from karat.server.responses import Events
from karat.server.sse import error_event as openai_event
from tests.server.conftest import Running

ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20},
}


@pytest.mark.parametrize("route", ROUTES)
def test_a_dead_end_of_a_form_is_the_requests_fault(server: Running, route: str) -> None:
    """The form wants "ab", and no token with a "b" is allowed: that shows after the "a"."""
    (a,) = server.ask("/tokenize", {"prompt": "a", "add_special_tokens": False}).json["tokens"]
    body = ROUTES[route] | {"structured_outputs": {"regex": "ab"}, "allowed_token_ids": [a]}
    said = "structured_outputs: no token that may be chosen fits"
    answer = server.ask(route, body)
    assert answer.status == 400, answer.content
    error = answer.json["error"]
    assert error["message"].startswith(said) and error["type"] == "invalid_request_error"
    assert route == "/v1/messages" or error["param"] == "structured_outputs"
    streamed = server.ask(route, body | {"stream": True})
    assert streamed.status == 200
    *_, last = streamed.content.decode().strip().split("\n\n")
    name, _, data = last.rpartition("data: ")
    event = json.loads(data)
    if route in ("/v1/responses", "/v1/messages"):
        assert name == "event: error\n" and event["type"] == "error"
    assert said in str(event.get("message") or event["error"]["message"])
    assert (
        server.ask(route, ROUTES[route] | {"max_tokens": 2} if route != "/v1/responses" else ROUTES[route]).status
        == 200
    )


def test_lengths_are_refused_alike_by_every_door(server: Running) -> None:
    """LLM, AsyncLLM and HTTP have the same words for what cannot be served, before anything is computed."""
    with LLM() as llm:
        context, ends = llm.max_model_len, sorted(llm.end_token_ids)
        cases: list[dict[str, Any]] = [
            {"max_tokens": context},
            {"max_tokens": 8, "min_tokens": 8, "allowed_token_ids": ends},
            {"max_tokens": 8, "min_tokens": 8, "allowed_token_ids": [7], "stop_token_ids": [7]},
        ]
        told = []
        for case in cases:
            with pytest.raises(RequestError) as refused:
                llm.generate([[1, 2, 3]], SamplingParams(**case))
            told.append(str(refused.value))
        with pytest.raises(CapacityError) as refused:
            llm.generate([[1] * context])
        told.append(str(refused.value))

    async def asked() -> list[str]:
        async with await AsyncLLM.open() as engine:
            prompts = [[1, 2, 3]] * len(cases) + [[1] * context]
            params = [SamplingParams(**case) for case in cases] + [None]
            each = [engine.generate(prompt, given) for prompt, given in zip(prompts, params, strict=True)]
            return list(map(str, await asyncio.gather(*each, return_exceptions=True)))

    assert asyncio.run(asked()) == told
    for stream in (False, True):
        bodies = [{"prompt": [1, 2, 3], **case} for case in cases] + [{"prompt": [1] * context}]
        answers = [server.ask("/v1/completions", {**body, "stream": stream}) for body in bodies]
        assert [answer.status for answer in answers] == [400] * len(bodies)
        assert [answer.json["error"]["message"] for answer in answers] == told


@pytest.mark.parametrize("error_event", [openai_event, anthropic_event])
@pytest.mark.parametrize("fault", [ZeroDivisionError("secret"), MemoryError(), RecursionError(), ValueError("secret")])
def test_a_stream_ends_with_an_event_whatever_raises(fault: Exception, error_event: Any) -> None:
    """Not only errors of Karat, after the first event; before it, the outermost frame answers."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    def make(*, first: bool) -> Any:
        async def made(write: Any) -> bytes:
            if first:
                write(b"data: 1\n\n")
            raise fault

        return made

    def stream(*, first: bool) -> Any:
        events = Events(make(first=first), {}, ping_s=60, write_s=60, error_event=error_event)
        return events({"type": "http"}, receive, send)

    asyncio.run(stream(first=True))
    *_, last = [message for message in sent if message["type"] == "http.response.body"]
    data = json.loads(last["body"].decode().rpartition("data: ")[2])
    said = "memory ran out" if isinstance(fault, MemoryError) else f"{type(fault).__name__}: this is a bug in Karat"
    assert last["more_body"] is False and said in data["error"]["message"]
    assert b"secret" not in last["body"]
    sent.clear()
    with pytest.raises(type(fault)):
        asyncio.run(stream(first=False))
    assert sent == []


def failed(kind: str | None, text: str, param: str | None = None) -> CompletionOutput:
    return CompletionOutput(1, "", (), "error", error=f"choice 1: {text}", error_type=kind, error_param=param)


def test_each_kind_of_failure_has_its_status() -> None:
    dead_end = failure_of(
        failed("RequestError", "structured_outputs: a dead end", "structured_outputs"), "response_format"
    )
    assert (dead_end.status, dead_end.param) == (400, "response_format")
    assert dead_end.message == "response_format: a dead end"
    penalty = failure_of(failed("RequestError", "repetition_penalty=2 makes a score overflow", "repetition_penalty"))
    assert (penalty.status, penalty.param) == (400, "repetition_penalty")
    assert (of_karat(CapacityError("too long")).status, of_karat(RequestError("no")).status) == (400, 400)
    memory = failure_of(failed("OutOfMemoryError", "memory ran out"))
    assert (memory.status, memory.code) == (503, "out_of_memory") and memory.retry_after_s
    assert of_karat(OutOfMemoryError("memory ran out")).status == 503
    for numbers in (
        failure_of(failed("NumericsError", "NaN")),
        failure_of(failed(None, "NaN")),
        of_karat(NumericsError("NaN")),
    ):
        assert (numbers.status, numbers.code, numbers.message) == (500, "numerics", "NaN")
    assert of_karat(NumericsError("NaN")).code == "numerics"
    bug = failure_of(failed("BugError", "KeyError: 'secret'"))
    assert bug.status == 500 and "KeyError: this is a bug in Karat" in bug.message and "secret" not in bug.message
    assert of_karat(BugError("KeyError: 'secret'")).message == bug.message

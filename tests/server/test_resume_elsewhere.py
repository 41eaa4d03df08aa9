"""A stream whose replica is killed (kill -9) goes on at another at the very next token: the text is an undisturbed
one's."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from examples.resume_elsewhere import main
from karat.client import stream
from karat.errors import ClientError
from tests.server.conftest import Running, serving

SAMPLED = {"temperature": 1, "top_p": 0.9, "presence_penalty": 0.5, "repetition_penalty": 1.1}
REQUESTS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], **SAMPLED},  # it draws a seed
    {"prompt": "Once upon a time", "temperature": 0, "stop": ["z"], "min_tokens": 400},
]


@pytest.fixture
def replicas() -> Iterator[list[Running]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving("--threads", "1")) for _ in range(2)]


def undisturbed(replica: Running, request: dict[str, Any]) -> str:
    route = "/v1/chat/completions" if "messages" in request else "/v1/completions"
    (choice,) = replica.ask(route, request).json["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.mark.drawn(1)
@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_a_killed_stream_goes_on_elsewhere(number: int, replicas: list[Running]) -> None:
    request = {**REQUESTS[number], "max_tokens": 900, "ignore_eos": True}
    first, second = replicas
    urls = [replica.url for replica in replicas]
    text, num_tokens, seed = "", 0, None
    for count, piece in enumerate(stream(request, url=urls)):
        text, num_tokens, seed = text + piece.text, num_tokens + len(piece.token_ids), piece.seed
        if count == 5:
            assert first.gauge("karat_sequences_running") and num_tokens < 900, "it is killed in the middle"
            first.process.kill()
    assert num_tokens == 900 and len(text) > 600
    assert text == undisturbed(second, {**request, "seed": seed})
    second.process.kill()
    second.process.wait(30)
    with pytest.raises(ClientError, match="see whether the server runs"):
        list(stream(request, url=urls))


@pytest.mark.slow
def test_choices_go_on_each_by_itself(replicas: list[Running]) -> None:
    """Three at once, whose streams were one before the server was killed."""
    request = {"prompt": "Once upon a time", "n": 3, "temperature": 1, "max_tokens": 300, "ignore_eos": True, "seed": 4}
    first, second = replicas
    texts = ["", "", ""]
    for count, piece in enumerate(stream(request, url=[first.url, second.url])):
        texts[piece.index] += piece.text
        if count == 20:
            first.process.kill()
    assert texts == [choice["text"] for choice in second.ask("/v1/completions", request).json["choices"]]


@pytest.mark.slow
def test_the_example(replicas: list[Running], capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["", "Tell me a story.", "http://127.0.0.1:1", replicas[0].url])
    main()
    assert len(capsys.readouterr().out) > 20

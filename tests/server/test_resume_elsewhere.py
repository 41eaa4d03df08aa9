"""A stream whose replica is killed (kill -9) goes on at another at the very next token: the text is an undisturbed
one's."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from examples.resume_elsewhere import answer
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
def test_a_killed_stream_goes_on_elsewhere(number: int, replicas: list[Running], capsys: Any) -> None:
    request = {**REQUESTS[number], "max_tokens": 900, "ignore_eos": True}
    first, second = replicas
    urls = [replica.url for replica in replicas]
    going, text, seed = answer(request, urls), "", None
    for count, piece in enumerate(going):
        text += piece
        seed = going.gi_frame.f_locals["seed"]  # type: ignore[attr-defined]
        if count == 5:
            first.process.kill()
    (num_before, *_) = map(int, re.findall(r"going on after (\d+) tokens", capsys.readouterr().err))
    assert 5 <= num_before < 900, "it was killed in the middle"
    assert text == undisturbed(second, {**request, "seed": seed}) and len(text) > 600
    second.process.kill()
    second.process.wait(30)
    with pytest.raises(ClientError, match="see whether the server runs"):
        list(answer(request, urls))

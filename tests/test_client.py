"""karat.client: answers as they come, and the rest of one that broke off."""

import json
import socket
import threading
import time
from typing import Any

import pytest

from karat.client import Piece, resume, stream
from karat.errors import ClientError
from tests.server.conftest import Running, serving

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 20}
REQUESTS = [
    CHAT | {"seed": 5, "temperature": 1.2},
    CHAT | {"n": 2, "seed": 5, "temperature": 1.2, "presence_penalty": 0.5, "stop": ["the"]},
    CHAT | {"temperature": 0},
    {"prompt": "Once upon a time", "max_tokens": 15, "temperature": 1.1},
    {"prompt": "Once", "max_tokens": 40, "structured_outputs": {"regex": "( [a-z]{2,8}){6}"}, "seed": 1},
]


@pytest.fixture(scope="module")
def running() -> Any:
    with serving() as server:
        yield server


def joined(pieces: list[Piece], index: int) -> tuple[str, tuple[int, ...], str | None]:
    own = [piece for piece in pieces if piece.index == index]
    ids = tuple(token_id for piece in own for token_id in piece.token_ids)
    return "".join(piece.text for piece in own), ids, own[-1].finish_reason if own else None


@pytest.mark.slow
@pytest.mark.parametrize("request_", REQUESTS)
def test_an_answer_that_broke_off_goes_on(running: Running, request_: dict[str, Any]) -> None:
    whole = list(stream(request_, url=running.url))
    for index in range(request_.get("n", 1)):
        text, ids, reason = joined(whole, index)
        assert reason in ("stop", "length") and ids
        for num in {0, 1, len(ids) // 2, len(ids)}:
            before, kept = "", list[int]()
            for piece in stream(request_ | {"seed": whole[0].seed}, url=running.url):
                if piece.index == index and len(kept) < num:
                    before, kept = before + piece.text, [*kept, *piece.token_ids]
                if len(kept) >= num:
                    break  # the connection is closed here, in the middle of the answer
            rest = list(resume(request_, kept, seed=whole[0].seed, choice=index, url=running.url))
            more, new, end = joined(rest, index)
            assert (before + more, (*kept, *new), end) == (text, ids, reason)


def test_a_server_that_is_not_there_is_said(running: Running) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ClientError, match="see whether the server runs"):
            list(stream(CHAT, url=f"http://127.0.0.1:{bound.getsockname()[1]}"))
    with pytest.raises(ClientError, match="expected one such as"):
        list(stream(CHAT, url="ftp://nowhere"))
    with pytest.raises(ClientError, match=r"answers 400: .*unknown_field"):
        list(stream(CHAT | {"nonsense": 1}, url=running.url))
    with pytest.raises(ClientError, match=r"answers 400: .*karat\.resume\.seed"):
        list(resume(CHAT, [1], url=running.url))


EVENT = b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\n'


@pytest.mark.parametrize("more", [b"", b'data: {"cho', b'data: {"error": {"message": "x"}}\n\n'])
def test_an_answer_that_breaks_off_is_an_error(more: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        head = b"HTTP/1.1 200 OK\r\nkarat-seed: 7\r\nconnection: close\r\n\r\n"
        thread = threading.Thread(target=_answer, args=(listener, head + EVENT + more))
        thread.start()
        pieces = stream({"prompt": "a"}, url=f"http://127.0.0.1:{listener.getsockname()[1]}", patience_s=0)
        assert next(pieces) == Piece("a", (), 7)
        with pytest.raises(ClientError, match="resume it"):
            next(pieces)
        thread.join()


@pytest.mark.parametrize("num_choices", [1, 2])
def test_patience_begins_anew_with_every_token(num_choices: int) -> None:
    """Servers that break off after a token each, longer than patience in all. A choice that ends has fewer to count."""
    head = b"HTTP/1.1 200 OK\r\nkarat-seed: 7\r\nconnection: close\r\n\r\n"
    answers: list[list[tuple[int, int, str | None]]] = [[(index, 1, None) for index in range(num_choices)]]
    answers += [[(0, 2, "stop")], [(0, 3, None)]] if num_choices == 2 else [[(0, 2, None)]] * 2
    answers += [[(0, 4, None)], [(0, 5, "stop")]]
    sent = [head + b"".join(_event(*each) for each in answer) for answer in answers]
    sent[-1] += b"data: [DONE]\n\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_all, args=(listener, sent), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        pieces = list(stream({"prompt": "a", "n": num_choices}, url=url, patience_s=0.15))
        thread.join()
    assert [piece.token_ids for piece in pieces][-2:] == [(4,), (5,)]


def _event(index: int, token_id: int, reason: str | None) -> bytes:
    choice = {"index": index, "text": "a", "token_ids": [token_id], "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def _answer_all(listener: socket.socket, contents: list[bytes]) -> None:
    for content in contents:
        _answer(listener, content, after_s=0.2)


def _answer(listener: socket.socket, content: bytes, after_s: float = 0) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(1 << 16)
        time.sleep(after_s)
        connection.sendall(content)

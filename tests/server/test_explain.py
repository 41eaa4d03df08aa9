"""`explain: true` in all four protocols, whole and streamed: the same entries, one for each token."""

import json
from typing import Any

import pytest

from tests.server.conftest import Answer, Running

STORY = [{"role": "user", "content": "Tell me a story."}]
COMMON: dict[str, Any] = {"seed": 7, "temperature": 1.1, "top_k": 40, "top_p": 0.9, "explain": True}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": STORY, "max_tokens": 9},
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": 9},
    "/v1/responses": {"input": "Tell me a story.", "max_output_tokens": 9},
    "/v1/messages": {"messages": STORY, "max_tokens": 9},
}
HAS_CHOICES = ("/v1/chat/completions", "/v1/completions")


def data(answer: Answer) -> list[Any]:
    """The data of all events of any protocol."""
    lines = [line for line in answer.content.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def entries_of(bodies: list[Any], route: str) -> list[Any]:
    """The entries of the only choice, in order. Where text was cut the last event of all has what is left."""
    holders = [choice for body in bodies for choice in body["choices"]] if route in HAS_CHOICES else bodies
    holders = [holder.get("response", holder) for holder in holders]
    return [entry for holder in holders for entry in (holder.get("karat") or {}).get("explain", [])]


@pytest.mark.parametrize("route", ASKED)
def test_whole_and_streamed_alike(server: Running, route: str) -> None:
    body = ASKED[route] | COMMON
    whole = server.ask(route, body)
    assert whole.status == 200, whole.content
    entries = entries_of([whole.json], route)
    assert len(entries) == 9
    assert entries == entries_of(data(server.ask(route, body | {"stream": True})), route)
    assert [entry["position"] for entry in entries] == list(range(entries[0]["position"], entries[0]["position"] + 9))
    for entry in entries:
        assert entry["kept"]["top_k"] == 40 and entry["kept"]["grammar"] is None
        assert 0 <= entry["draw"] < 1 and 0 < entry["drawn"] <= 1 and entry["temperature"] == 1.1
        own = next(each for each in entry["alternatives"] if each["token"] == entry["token"])
        assert own["drawn"] == entry["drawn"] and own["rank"] == entry["rank"] and own["cut_by"] is None
    without = server.ask(route, body | {"explain": False})
    assert b"explain" not in without.content and b"alternatives" not in without.content


def test_the_same_entries_in_every_protocol(server: Running) -> None:
    """Of one conversation; every entry is there, though a stop text is cut off and text is held back for it."""
    chats = {route: body | COMMON for route, body in ASKED.items() if route != "/v1/completions"}
    (told,) = server.ask("/v1/chat/completions", chats["/v1/chat/completions"]).json["choices"]
    stop = told["message"]["content"][8:12]
    found = []
    for route, body in chats.items():
        ends = {"stop_sequences": [stop]} if route == "/v1/messages" else {"stop": stop}
        found.append(entries_of([server.ask(route, body | ends).json], route))
        found.append(entries_of(data(server.ask(route, body | ends | {"stream": True})), route))
    assert all(entries == found[0] for entries in found)
    texts = "".join(entry["text"] for entry in found[0])
    assert stop in texts and told["message"]["content"].startswith(texts[: texts.index(stop)])


def test_each_choice_has_its_own(server: Running) -> None:
    body = ASKED["/v1/completions"] | COMMON | {"n": 2, "prompt": ["Once", "A dog"], "echo": True}
    whole = server.ask("/v1/completions", body).json["choices"]
    assert len({json.dumps(choice["karat"]) for choice in whole}) == 4
    streamed: dict[int, list[Any]] = {}
    for event in data(server.ask("/v1/completions", body | {"stream": True})):
        for choice in event["choices"]:
            streamed.setdefault(choice["index"], []).extend((choice.get("karat") or {}).get("explain", []))
    assert {choice["index"]: choice["karat"]["explain"] for choice in whole} == streamed


@pytest.mark.parametrize("route", ASKED)
def test_every_sampler_is_taken_and_says_what_it_left(server: Running, route: str) -> None:
    """By llama.cpp's spellings too, whole and streamed; the engine draws as `SamplingParams` says."""
    samplers = {
        "top_n_sigma": 3.0,
        "typ_p": 0.95,
        "xtc_probability": 0.6,
        "xtc_threshold": 0.05,
        "repeat_penalty": 1.2,
        "repeat_last_n": 16,
        "dry_multiplier": 0.8,
        "dry_allowed_length": 0,
        "dry_sequence_breakers": ["\n"],
        "no_repeat_ngram_size": 4,
        "bad_words": ["Once"],
        "bad_words_ids": [[5, 6]],
    }
    body = ASKED[route] | COMMON | samplers
    answer = server.ask(route, body)
    assert answer.status == 200, answer.content
    entries = entries_of([answer.json], route)
    assert entries == entries_of(data(server.ask(route, body | {"stream": True})), route)
    names = ("top_n_sigma", "top_k", "typical_p", "top_p", "xtc")
    for entry in entries:
        left = [entry["kept"][name] for name in names]
        assert left == sorted(left, reverse=True) and left[-1] >= 1 and entry["kept"]["min_p"] is None
        acted = entry["xtc_draw"] < 0.6
        assert acted or entry["kept"]["xtc"] == entry["kept"]["top_p"]
    assert any(other["dry"] < 0 and other["dry"] >= other["penalty"] for e in entries for other in e["alternatives"])
    neutral = {"top_n_sigma": -1, "typical_p": 1, "xtc_probability": 0, "dry_multiplier": 0, "no_repeat_ngram_size": 0}
    neutral |= {"bad_words": [], "bad_words_ids": None, "repeat_last_n": None, "mirostat": 0, "tfs_z": 1.0}
    if route not in HAS_CHOICES:
        del neutral["mirostat"], neutral["tfs_z"]
    plain = entries_of([server.ask(route, ASKED[route] | COMMON).json], route)
    assert entries_of([server.ask(route, ASKED[route] | COMMON | neutral).json], route) == plain
    assert server.ask(route, body | {"typ_p": 0}).status == 400

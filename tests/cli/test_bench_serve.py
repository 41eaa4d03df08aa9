"""`karat bench serve` as its users run it: on the embedded model, on a URL, beside another server, on bad ones.

Covers: karat.bench.load.session, karat.cli.bench_model, karat.cli.bench_serve, karat.cli.bench_serve_options,
karat.cli.bench_serve_session, karat.cli.bench_serve_table, karat.cli.load_progress.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from karat.cli.bench_serve_table import as_table
from karat.cli.load_progress import rates
from tests.cli.conftest import Karat
from tests.support.scripted_server import DONE, Answer, beside, event, plain, stream, text

pytest.importorskip("uvicorn", reason="the server's packages are not in this environment")

SMALL = ("--requests", "6", "--concurrency", "3", "--tokens", "5", "-q")


@pytest.fixture
def steady() -> Iterator[tuple[str, list[Any]]]:
    """The URL of a server that answers all, and the bodies that it got."""
    bodies: list[Any] = []
    whole = stream(
        text("one"), text(" two"), event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 2}), DONE
    )

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        bodies.append(body)
        await whole(body, writer)

    models = plain(200, {"data": [{"id": "any"}]})
    with beside({"/v1/completions": answer, "/v1/chat/completions": answer, "/v1/models": models}) as url:
        yield url, bodies


@pytest.mark.slow
def test_the_embedded_model_cold_and_warm(karat: Karat, tmp_path: Path) -> None:
    """A server of Karat's own; prompts are new to it at first, and in its cache the second time."""
    words = ("--prompt-tokens", "48", "--warm", "--goodput", "e2e:60000", "--sweep", "1", "--json")
    done = karat("bench", "serve", *SMALL, *words, "--plot", str(tmp_path / "p.svg"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kind"] == "serve" and found["schema"] == 1 and found["load"]["seed"] >= 0
    assert found["activations"] == "float32" and found["numeric_contract"] < 5, "the embedded model has no blocks"
    assert [point["concurrency"] for point in found["points"]] == [3, None] and found["points"][1]["rate"] > 0
    cold, warm = (found["points"][0][kind]["karat"] for kind in ("cold", "warm"))
    for figures in (cold, warm):
        assert figures["completed"] == figures["requests"] == 6 and figures["errors"] == {}
        assert figures["prompt_tokens"] == 6 * 48 and figures["output_tokens"] == 30 and not figures["without_usage"]
        assert 0 < figures["ttft_s"]["p50"] <= figures["e2e_s"]["p50"] and figures["goodput"]["share"] == 1
    assert cold["cached_share"] == 0 and warm["cached_share"] == 32 / 48, "two blocks of 16 before the last tokens"
    ElementTree.parse(tmp_path / "p.svg")
    for figures in (cold, warm):
        figures |= {name: dict.fromkeys(figures[name], 1234.5) for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s")}
    shown = as_table(found)
    assert "1234500 / 1234500" in shown and "…" not in shown, "no figure is cut"


@pytest.mark.slow
def test_turns_of_a_chat_find_what_came_before_in_the_cache(karat: Karat) -> None:
    words = ("--chat", "--turns", "3", "--prefix-tokens", "40", "--json", "--prompt-tokens", "uniform:10:20")
    found = json.loads(karat("bench", "serve", *SMALL, *words).stdout)
    figures = found["points"][0]["cold"]["karat"]
    assert figures["completed"] == 18 and figures["cached_share"] > 0.5
    assert figures["requests_per_s"] == pytest.approx(3 * figures["conversations_per_s"])


def test_a_url_and_a_peer_get_the_same_requests(karat: Karat, steady: tuple[str, list[Any]]) -> None:
    url, bodies = steady
    words = ("--url", url, "--peer", "other", url, "--repeat", "2", "--seed", "5", "--body", '{"top_p": 0.5}')
    done = karat("bench", "serve", *SMALL, *words)
    assert done.returncode == 0, done.stderr
    assert "server over other: the median of the turns" in done.stdout and "this client: at most" in done.stdout
    prompts = [body["prompt"] for body in bodies]
    assert len(prompts) == 2 + 2 * 2 * 6 and len(set(prompts)) == 2 + 2 * 6, "each turn's prompts are new, and twice"
    assert {(b["model"], b["max_tokens"], b["top_p"], b["ignore_eos"], b["stream"]) for b in bodies} == {
        ("any", 5, 0.5, True, True)
    }
    again = bodies[:]
    bodies.clear()
    karat("bench", "serve", *SMALL, *words)
    assert sorted(map(str, again)) == sorted(map(str, bodies)), "the seed repeats it"
    bodies.clear()
    karat("bench", "serve", *SMALL, *words[:5], "--stop-at-end")
    assert not {body["prompt"] for body in bodies} & set(prompts), "without a seed prompts are new"
    assert all("ignore_eos" not in body for body in bodies)


BAD: dict[str, tuple[Answer, str]] = {
    "overloaded": (plain(503, {"error": {"message": "m", "code": "overloaded"}}), "HTTP 503 (overloaded)"),
    "cut": (stream(text("one"), ends=False), "the connection was closed in the middle of the answer"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_are_told_by_kind(karat: Karat, name: str) -> None:
    answer, kind = BAD[name]
    with beside({"/v1/completions": answer, "/v1/models": plain(200, {"data": [{"id": "any"}]})}) as url:
        done = karat("bench", "serve", "--url", url, *SMALL, "--goodput", "ttft:5000")
        assert done.returncode == 0, done.stderr
        assert f"failed: 6 × {kind} (server, 3 at a time, cold)" in done.stdout
        found = json.loads(karat("bench", "serve", "--url", url, *SMALL, "--json").stdout)
    figures = found["points"][0]["cold"]["server"]
    assert figures["errors"] == {kind: 6} and figures["completed"] == 0 and figures["ttft_s"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("m.gguf --url http://x", "both a model to serve and --url"),
        ("--url http://x --template-arg a=1", "give --template-arg to that server"),
        ("--peer a http://x --override rope_theta=1", "reads the model's files alone"),
        ("--url x", "no server's URL"),
        ("--concurrency 0", "--concurrency 0"),
        ("--rate 0", "--rate 0"),
        ("--tokens 0", "--tokens 0"),
        ("--turns 2", "needs --chat"),
        ("--goodput x:1", "--goodput x:1"),
        ("--weights q4_0", "--weights says how --shape"),
        ("--body []", "--body"),
        ('--body {"stream":false}', "set by the load itself"),
        ("--peer vllm ./vllm", "only llama-server can be started here"),
        ("--peer llama-server /no/such", "no such program"),
        ("--dataset /no/such.json", "No such file"),
        ("--plot x.png", "only SVG"),
    ],
)
def test_what_cannot_be_is_refused(karat_here: Karat, words: str, said: str) -> None:
    done = karat_here("bench", "serve", "-q", *words.split())
    assert done.returncode in (1, 2) and said in done.stderr, done.stderr


def test_the_bar_says_an_end_only_when_it_can_be_known() -> None:
    assert rates(1, 10, 50, 2.0) == "0.50 req/s 25 tok/s"
    assert rates(4, 10, 200, 2.0) == "2.00 req/s 100 tok/s, 3 s left"
    assert rates(5, 100, 200, 2.0) == "2.50 req/s 100 tok/s" and rates(10, 10, 9, 1.0) == "10.00 req/s 9 tok/s"

"""app: an application of Serve answers as `karat serve`, and goes on where a replica dies.

Covers: karat.engine.remote.source, karat.ray.calls, karat.ray.fleet, karat.ray.ingress, karat.ray.messages,
karat.ray.replica.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from karat.engine.llm import LLM
from tests.support.ray_application import (
    Application,
    Busiest,
    KillsAt,
    Streamed,
    application,
    asked_in_all_protocols,
    deploy,
    replicas,
    work_s,
)
from tests.support.seed import SEED

pytest.importorskip("ray.serve", reason="Ray cannot be had here")
GAP_S = 30.0  # ten times the goal
GIVEN = {"min_replicas": 2, "cores": 1, "max_model_len": 1024, "drain_s": 1}


@pytest.fixture(scope="module")
def app(cluster: str) -> Iterator[Application]:
    with application(**GIVEN) as made:
        made.await_replicas(2)
        yield made


def test_answers_are_those_of_a_process_here(app: Application) -> None:
    """And the surface is that of the server."""
    llm = LLM(threads=1)
    params = replace(llm.default_params, temperature=1, max_tokens=20, seed=5)
    (expected,) = llm.generate(["Once upon a time"], params, use_tqdm=False)
    body = {"prompt": "Once upon a time", "temperature": 1, "max_tokens": 20, "seed": 5, "karat": {"receipt": True}}
    answer = app.ask("/v1/completions", body)
    assert answer["choices"][0]["text"] == expected.outputs[0].text
    assert answer["system_fingerprint"] == llm.fingerprint().short
    receipt = answer["karat"]["receipt"]
    assert app.ask("/v1/receipts/verify", {"receipt": receipt})["verdict"] == "identical"
    assert llm.verify(_receipt(receipt)).kind == "identical"
    with app.open("/ready") as answer:
        assert answer.status == 200 and len(answer.headers.get_all("x-request-id")) == 1
    assert app.ask("/v1/models")["data"][0]["id"] == "karat-embedded"
    assert app.ask("/tokenize", {"prompt": "Once"})["count"] >= 1
    with app.open("/metrics") as answer:
        assert b"karat_sequences_running" in answer.read()
    with app.open("/") as answer:
        assert b"<html" in answer.read()


def test_a_killed_replica_is_not_noticed(app: Application) -> None:
    """Streams of all protocols at once; the replica that works most gets SIGKILL at some token."""
    draws = random.Random(f"{SEED}-killed")
    asked = asked_in_all_protocols(draws, 400)
    undisturbed = app.streams(asked)
    kills = KillsAt(draws.randrange(5, 60))
    disturbed = app.streams(asked, kills)
    assert kills.killed is not None and kills.killed not in replicas(), "a replica was killed"
    for (route, _), one, other in zip(asked, disturbed, undisturbed, strict=True):
        assert one.said == other.said, route
        assert len(one.ids) <= 1 and one.gap_s < GAP_S, (route, one.ids, one.gap_s)
    app.await_replicas(2)


@pytest.mark.long
def test_thirty_streams_whose_replicas_are_killed(app: Application) -> None:
    draws, gaps = random.Random(f"{SEED}-thirty"), list[float]()
    while len(gaps) < 30:
        asked = asked_in_all_protocols(draws, 400)[draws.randrange(4) :][:2]
        undisturbed = app.streams(asked)
        kills = KillsAt(draws.randrange(1, 200))
        for one, other in zip(app.streams(asked, kills), undisturbed, strict=True):
            assert one.said == other.said
            gaps.append(one.gap_s)
        assert kills.killed is not None
        app.await_replicas(2)
    print(f"longest gaps of 30 streams: {', '.join(f'{gap:.2f} s' for gap in sorted(gaps)[-5:])}")
    assert max(gaps) < GAP_S


@pytest.mark.long
def test_a_replica_that_has_to_go_while_it_answers(app: Application) -> None:
    """It has a second for that, and then others have the rest.

    It fails: another deployment takes the ingress, too, whose streams break off. docs/scaling.md says so.
    """
    draws = random.Random(f"{SEED}-goes")
    asked = asked_in_all_protocols(draws, 900) * 2
    undisturbed = app.streams(asked)
    going = threading.Thread(target=deploy, kwargs={**GIVEN, "min_replicas": 1})
    going.start()
    try:
        disturbed = [app.streams(asked) for _ in range(3)]
        going.join()
    finally:
        deploy(**GIVEN)
    for found in disturbed:
        assert [each.said for each in found] == [each.said for each in undisturbed]
    app.await_replicas(2)


@pytest.mark.slow
def test_a_replica_that_hangs_is_left(app: Application) -> None:
    """Nobody says that a stopped process is dead: the ingress hears nothing of it, and goes on elsewhere."""
    draws = random.Random(f"{SEED}-hangs")
    route, body = asked_in_all_protocols(draws, 400)[draws.randrange(4)]
    undisturbed = app.stream(route, body)
    stops = KillsAt(draws.randrange(5, 60), signal.SIGSTOP)
    try:
        disturbed = app.stream(route, body, stops)
    finally:
        if stops.killed is not None:
            os.kill(stops.killed, signal.SIGKILL)
    assert stops.killed is not None and disturbed.said == undisturbed.said and disturbed.gap_s < GAP_S
    app.await_replicas(2)


def test_a_client_that_leaves_ends_the_work(app: Application) -> None:
    busiest = Busiest()

    def leave(streamed: Streamed) -> None:
        streamed.closed = len(streamed.events) == 5

    app.stream("/v1/completions", {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "n": 8}, leave)
    replica, end = busiest(), time.monotonic() + 60
    while time.monotonic() < end:
        before = work_s(replica)
        time.sleep(1)
        if work_s(replica) - before < 0.1:
            return
    raise AssertionError("the engine still works")


def _receipt(receipt: dict[str, object]) -> object:
    import msgspec

    from karat.receipts.receipt import read_receipt

    return read_receipt(msgspec.json.encode(receipt))

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
from itertools import pairwise
from typing import Any

import pytest

from karat.engine.llm import LLM
from tests.support.ray_application import (
    Application,
    Busiest,
    KillsAt,
    Streamed,
    Waits,
    application,
    asked_in_all_protocols,
    deploy,
    ingresses,
    processor_s,
    replicas,
    work_s,
)
from tests.support.ray_nodes import lost_after, processes, start_node
from tests.support.seed import SEED

pytest.importorskip("ray.serve", reason="Ray cannot be had here")
GAP_S = 3.0  # that a stream may stand still, beside what its processes wait for a core
SAFE_S = 60.0  # and in all: less than Ray's own check of a replica that hangs needs here (PATIENT)
PATIENT = {"health_check_timeout_s": 120}
GIVEN = {"min_replicas": 2, "cores": 1, "max_model_len": 1024, "drain_s": 300, "slack_tokens": 0}
HASTY = {"graceful_shutdown_timeout_s": 1, **PATIENT}  # a replica that has to go has a second for its answers


@pytest.fixture(scope="module")
def app(cluster: str) -> Iterator[Application]:
    with application(HASTY, **GIVEN) as made:
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
    with Waits() as waits:
        disturbed = app.streams(asked, kills)
    assert kills.killed is not None and kills.killed not in replicas(), "a replica was killed"
    require_unnoticed(disturbed, undisturbed, waits)
    app.await_replicas(2)


@pytest.mark.long
def test_thirty_streams_whose_replicas_are_killed(app: Application, nodes: Any) -> None:
    """Each has its replica killed: the streams come one after the other, so the one replica that works is its own. The
    ingress says how many tokens each of them had then.
    """
    draws, gaps = random.Random(f"{SEED}-thirty"), list[float]()
    for number in range(32):
        route, body = asked_in_all_protocols(draws, 400)[number % 4]
        undisturbed, before = app.stream(route, body), len(lost_after(nodes))
        kills = KillsAt(draws.randrange(6, 200))
        with Waits() as waits:
            disturbed = app.stream(route, body, kills)
        cuts = lost_after(nodes)[before:]
        assert cuts and all(0 < cut < 400 * body.get("n", 1) for cut in cuts), "it was killed in the middle"
        gaps.append(require_unnoticed([disturbed], [undisturbed], waits))
        app.await_replicas(2)
    print(f"longest gaps of 32 streams: {', '.join(f'{gap:.2f} s' for gap in sorted(gaps)[-5:])}")


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["number", "arguments"])
def test_replicas_that_have_to_go_while_they_answer(app: Application, changed: str) -> None:
    """They have a second for that, and then others have the rest. Where only their number changes the ingress stays;
    where the arguments change, another comes beside it, and it goes when its answers have ended.
    """
    draws = random.Random(f"{SEED}-{changed}")
    asked = asked_in_all_protocols(draws, 700)
    undisturbed = app.streams(asked)
    before, engines = ingresses(), replicas()
    replica = {**HASTY, "num_replicas": 1} if changed == "number" else HASTY
    arguments = GIVEN if changed == "number" else {**GIVEN, "max_num_seqs": 8}
    deploying, disturbed = threading.Thread(target=deploy, args=(replica,), kwargs=arguments), list[Streamed]()
    deploying.start()
    try:
        with Waits() as waits:
            while deploying.is_alive() or not disturbed:
                disturbed += app.streams(asked)
        app.await_replicas(1 if changed == "number" else 2)
        assert (before == ingresses()) == (changed == "number")
        assert set(engines) - set(replicas())
    finally:
        deploying.join()
        deploy(HASTY, **GIVEN)
    require_unnoticed(disturbed, undisturbed * (len(disturbed) // len(asked)), waits)
    app.await_replicas(2)


@pytest.mark.slow
def test_a_node_that_is_removed(app: Application, nodes: Any) -> None:
    """A third one, with the last replica: the ingress is on one of the two that stay."""
    asked = asked_in_all_protocols(random.Random(f"{SEED}-node"), 700) * 2
    undisturbed = app.streams(asked)
    before, node, lock = set(replicas()), start_node(nodes, 1), threading.Lock()
    removing = threading.Thread(target=nodes.remove_node, args=(node, False))
    try:
        deploy({**HASTY, "num_replicas": 3}, **GIVEN)
        (third,) = set(app.await_replicas(3)) - before
        idle_s = work_s(third)

        def remove(streamed: Streamed) -> None:
            with lock:
                if removing.ident is None and len(streamed.events) > 5 and work_s(third) > idle_s + 0.05:
                    removing.start()

        with Waits() as waits:
            disturbed = app.streams(asked, remove)
    finally:
        if was_removed := removing.ident is not None:
            removing.join()
        else:
            nodes.remove_node(node)
        deploy(HASTY, **GIVEN)
    assert was_removed, "the third replica has had nothing to do"
    print(f"longest gap: {require_unnoticed(disturbed, undisturbed, waits):.2f} s")
    app.await_replicas(2)


@pytest.mark.long
def test_replicas_of_another_model_take_no_part(app: Application) -> None:
    """Answers that were begun go on with the model that began them, and no answer is of two."""
    asked = [
        (route, {**body, "seed": number})
        for number in range(2)
        for route, body in asked_in_all_protocols(random.Random(f"{SEED}-model"), 500)
    ]
    undisturbed = app.streams(asked)
    other = {**GIVEN, "quantize": "q8_0"}
    deploy(**GIVEN)  # its answers may come to their ends
    deploying, found = threading.Thread(target=deploy, kwargs=other), list[Streamed]()
    deploying.start()
    try:
        while deploying.is_alive():
            found += app.streams(asked)
        app.await_replicas(2)
        last = app.streams(asked)
    finally:
        deploying.join()
        deploy(HASTY, **GIVEN)
    assert all(one.said != other.said for one, other in zip(last, undisturbed, strict=True))
    for number, one in enumerate(found):
        assert one.said in {each[number % len(asked)].said for each in (undisturbed, last)}
    app.await_replicas(2)


@pytest.mark.long
def test_replicas_follow_the_tokens_that_wait(app: Application) -> None:
    """One more while prompts wait, and one less when they do not, under streams that must not notice."""
    asked = asked_in_all_protocols(random.Random(f"{SEED}-follow"), 700)
    undisturbed = app.streams(asked)
    waits = {"queued_tokens": 1000, "max_num_seqs": 4, "upscale_delay_s": 1, "downscale_delay_s": 5}
    begun, ends = time.monotonic(), threading.Event()

    def ask_much(number: int) -> None:
        while not ends.is_set():
            prompt = f"{number} {time.monotonic()} " + "Once there was a fox. " * 100
            app.ask("/v1/completions", {"prompt": prompt, "max_tokens": 50, "ignore_eos": True})

    clients = [threading.Thread(target=ask_much, args=(number,)) for number in range(32)]
    try:
        deploy(HASTY, **{**GIVEN, "min_replicas": 1, "max_replicas": 2, **waits})
        app.await_replicas(1)
        begun = time.monotonic()
        for client in clients:
            client.start()
        app.await_replicas(2)
        print(f"a second replica runs {time.monotonic() - begun:.0f} s after 32 clients came")
        ends.set()
        for client in clients:
            client.join()
        begun, disturbed = time.monotonic(), list[Streamed]()
        with Waits() as waits:
            while len(replicas()) == 2:
                assert time.monotonic() < begun + 300, "nobody goes"
                disturbed += app.streams(asked)
        print(f"it has gone {time.monotonic() - begun:.0f} s after they went, under {len(disturbed)} streams")
    finally:
        ends.set()
        deploy(HASTY, **GIVEN)
    gap_s = require_unnoticed(disturbed, undisturbed * (len(disturbed) // len(asked)), waits)
    print(f"their longest gap: {gap_s:.2f} s")
    app.await_replicas(2)


@pytest.mark.long
def test_what_a_token_costs(app: Application) -> None:
    """Of processor time, beside that of the engines. The bound says that nothing is done twice."""
    body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "temperature": 1}
    asked = [("/v1/completions", {**body, "seed": number}) for number in range(16)]
    kinds = {"ingress": ingresses(), "proxy": processes("ray::ProxyActor"), "replicas": replicas()}
    before = {kind: sum(map(processor_s, pids)) for kind, pids in kinds.items()}
    begun, found = time.monotonic(), app.streams(asked)
    elapsed, num_tokens = time.monotonic() - begun, 400 * len(asked)
    num_events = sum(len(each.events) for each in found)
    print(f"{num_tokens / elapsed:.0f} tokens a second, {num_tokens / num_events:.1f} in an event")
    for kind, pids in kinds.items():
        spent_s = sum(map(processor_s, pids)) - before[kind]
        print(f"{kind}: {1e6 * spent_s / num_tokens:.0f} µs a token, {1e6 * spent_s / num_events:.0f} an event")
        assert spent_s / num_events < 0.05


@pytest.mark.slow
def test_a_replica_that_hangs_is_left(app: Application) -> None:
    """Nobody says that a stopped process is dead: the ingress hears nothing of it, and goes on elsewhere."""
    draws = random.Random(f"{SEED}-hangs")
    route, body = asked_in_all_protocols(draws, 400)[draws.randrange(4)]
    undisturbed = app.stream(route, body)
    stops = KillsAt(draws.randrange(5, 60), signal.SIGSTOP)
    try:
        with Waits() as waits:
            disturbed = app.stream(route, body, stops)
    finally:
        if stops.killed is not None:
            os.kill(stops.killed, signal.SIGKILL)
    assert stops.killed is not None
    require_unnoticed([disturbed], [undisturbed], waits)
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


def require_unnoticed(disturbed: list[Streamed], undisturbed: list[Streamed], waits: Waits) -> float:
    """Streams that say what the others do, and never stood still for long: their longest gap (Streamed.gap_s)."""
    for one, other in zip(disturbed, undisturbed, strict=True):
        assert one.said == other.said, one.events[0]
        gap_s = max(end - begin for begin, end in pairwise(one.times))
        assert one.gap_s(waits) < GAP_S and gap_s < SAFE_S, (one.gap_s(waits), gap_s, one.events[0])
    return max(one.gap_s(waits) for one in disturbed)


def _receipt(receipt: dict[str, object]) -> object:
    import msgspec

    from karat.receipts.receipt import read_receipt

    return read_receipt(msgspec.json.encode(receipt))

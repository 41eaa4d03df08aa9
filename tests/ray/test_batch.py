"""A batch by a pool of engines on a cluster: it has the answers of an engine here, also where engines are killed.

Covers: karat.ray.batch, karat.ray.pool.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.serving import free_port
from tests.cli.conftest import COMMAND, Karat, environment
from tests.cli.test_batch import write_requests
from tests.support.ray_nodes import processes
from tests.support.seed import SEED

pytest.importorskip("ray.data", reason="Ray cannot be had here")

ACTORS = "ray::MapWorker"


@pytest.fixture(params=["node", pytest.param("client", marks=pytest.mark.long)])
def address(cluster: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Of the cluster, for one of its nodes, or for a client of a server there."""
    if request.param == "node":
        yield cluster
        return
    port = free_port()
    words = ["--host", "127.0.0.1", "--port", str(port), "--mode", "legacy", "--address", cluster]
    serving = subprocess.Popen([sys.executable, "-m", "ray.util.client.server", *words], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end and socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.2)
        yield f"ray://127.0.0.1:{port}"
    finally:
        serving.kill()
        serving.wait(30)


def test_a_batch_whose_engines_are_killed(address: str, tmp_path: Path, karat: Karat) -> None:
    """SIGKILL, twice where there is time; a second run finds all answers in the journal."""
    draws = random.Random(f"{SEED}-batch")
    source, here, there = write_requests(tmp_path / "in.jsonl", 280), tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    assert karat("batch", str(source), "-o", str(here), "--no-times", "-q").returncode == 0
    words = ["batch", str(source), "-o", str(there), "--no-times", "--ray", address]
    running = subprocess.Popen([*COMMAND, *words], env=environment(), stderr=subprocess.PIPE)
    journal = tmp_path / "there.jsonl.journal"
    num_killed, seen = 0, 0
    while running.poll() is None:
        time.sleep(0.03)
        size = journal.stat().st_size if journal.exists() else 0
        if num_killed < 2 and size > seen + 30_000 and (found := processes(ACTORS)):
            os.kill(draws.choice(found), signal.SIGKILL)
            num_killed, seen = num_killed + 1, size
    assert running.returncode == 0, running.communicate()
    assert num_killed, "nothing was killed"
    assert there.read_bytes() == here.read_bytes()
    again = karat(*words)
    assert again.returncode == 0 and "280 of them answered before" in again.stderr, again.stderr
    assert there.read_bytes() == here.read_bytes()


@pytest.mark.long
def test_what_leads_the_engines_is_killed(cluster: str, tmp_path: Path, karat: Karat) -> None:
    """That ends the run, and the next one goes on."""
    source, here, there = write_requests(tmp_path / "in.jsonl", 280), tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    assert karat("batch", str(source), "-o", str(here), "--no-times", "-q").returncode == 0
    words = ["batch", str(source), "-o", str(there), "--no-times", "--ray", cluster]
    running = subprocess.Popen([*COMMAND, *words], env=environment(), stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "there.jsonl.journal"
    while running.poll() is None:
        time.sleep(0.03)
        if journal.exists() and journal.stat().st_size > 30_000 and (found := processes("ray::Round")):
            os.kill(found[0], signal.SIGKILL)
    told = running.communicate()[1]
    assert running.returncode == 1 and "what was answered is kept" in told and "Traceback" not in told, told
    again = karat(*words)
    assert again.returncode == 0 and "of them answered before" in again.stderr, again.stderr
    assert there.read_bytes() == here.read_bytes()


def test_what_cannot_be_loaded_is_karat_s_own_error(cluster: str, tmp_path: Path, karat: Karat) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"prompt": "Once"}) + "\n")
    words = ["batch", str(source), "-o", str(tmp_path / "out.jsonl"), "--ray", cluster]
    done = karat(*words, "-m", str(tmp_path / "none.gguf"))
    assert done.returncode == 4 and "does not exist; expected a GGUF file" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_a_cluster_wants_its_token(cluster: str, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"prompt": "Once"}) + "\n")
    words = [*COMMAND, "batch", str(source), "-o", str(tmp_path / "out.jsonl"), "--ray", cluster]
    other = environment(RAY_AUTH_TOKEN="another")
    done = subprocess.run(words, env=other, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1 and f"no cluster of Ray at {cluster!r}" in done.stderr, done.stderr
    assert "oken" in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_no_cluster(tmp_path: Path, karat: Karat) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"prompt": "Once"}) + "\n")
    done = karat("batch", str(source), "-o", str(tmp_path / "out.jsonl"), "--ray", "127.0.0.1:1")
    assert done.returncode == 1 and "no cluster of Ray at '127.0.0.1:1'" in done.stderr, done.stderr


def test_a_batch_without_a_cluster(tmp_path: Path, karat_here: Karat) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"prompt": "Once"}) + "\n")
    words = ["batch", str(source), "-o", str(tmp_path / "out.jsonl")]
    assert "--cores-each needs --ray" in karat_here(*words, "--cores-each", "2").stderr
    assert "both --url and --ray" in karat_here(*words, "--url", "http://a", "--ray", "auto").stderr

"""`karat batch`, as its users run it: by the engine here and by servers, killed anywhere, on a full disk.

Covers: karat.cli.batch.
"""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import COMMAND, Karat, environment
from tests.cli.test_full_disk import room_for

ROUTES = {
    "/v1/chat/completions": lambda text, most: {"messages": [{"role": "user", "content": text}], "max_tokens": most},
    "/v1/completions": lambda text, most: {"prompt": text, "max_tokens": most},
    "/v1/responses": lambda text, most: {"input": text, "max_output_tokens": most},
    "/v1/messages": lambda text, most: {"messages": [{"role": "user", "content": text}], "max_tokens": most},
}


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_requests(path: Path, number: int, max_tokens: int = 8) -> Path:
    """Requests of all protocols in turns."""
    records = []
    for i in range(number):
        route = list(ROUTES)[i % len(ROUTES)]
        text = f"Tell me of {random.choice(['a fox', 'a lantern', 'the sea'])} number {i}"
        body = ROUTES[route](text, max_tokens)
        records.append({"custom_id": f"r{i}", "method": "POST", "url": route, "body": body})
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_every_protocol(tmp_path: Path, karat: Karat) -> None:
    """An answer is the one that `karat run` gives with its seed; its receipt verifies."""
    source, out = write_requests(tmp_path / "in.jsonl", 8), tmp_path / "out.jsonl"
    done = karat("batch", str(source), "-o", str(out), "--receipts", "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert "8 requests" in done.stderr and "8 answers" in done.stderr
    found = lines_of(out)
    assert [line["custom_id"] for line in found] == [f"r{i}" for i in range(8)]
    assert {line["response"]["status_code"] for line in found} == {200}
    bodies = [line["response"]["body"] for line in found]
    assert len({body["karat"]["seed"] for body in bodies}) == 8
    assert {body["karat"]["system_fingerprint"][:3] for body in bodies} == {"fp_"}
    asked = json.loads(source.read_text().splitlines()[1])["body"]
    again = karat("run", "-q", "-p", asked["prompt"], "--max-tokens", "8", "--seed", str(bodies[1]["karat"]["seed"]))
    assert again.stdout.strip() == bodies[1]["choices"][0]["text"].strip()
    (tmp_path / "receipt.json").write_text(json.dumps(bodies[2]["karat"]["receipt"]))
    assert karat("verify", "-q", str(tmp_path / "receipt.json")).stdout.startswith("identical")
    assert not (tmp_path / "out.errors.jsonl").exists()


@pytest.mark.parametrize("num_kills", [3, pytest.param(50, marks=pytest.mark.long)])
def test_killed_anywhere_it_goes_on(num_kills: int, tmp_path: Path) -> None:
    """SIGKILL at random moments, then to the end: the output has the bytes of an undisturbed run."""
    source = write_requests(tmp_path / "in.jsonl", 40 * num_kills)

    def started(out: Path) -> "subprocess.Popen[bytes]":
        words = [*COMMAND, "batch", str(source), "-o", str(out), "--no-times", "-q"]
        return subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE)

    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    begun, running, journal = time.monotonic(), started(whole), tmp_path / "whole.jsonl.journal"
    while running.poll() is None and not (journal.exists() and journal.stat().st_size > 40_000):
        time.sleep(0.02)
    start_s = time.monotonic() - begun  # until there are answers
    assert running.wait(600) == 0
    work_s = time.monotonic() - begun - start_s
    for _ in range(num_kills):
        running = started(cut)
        at_work = random.random() < 0.75
        time.sleep(start_s + 2 * work_s / num_kills * random.random() if at_work else start_s * random.random())
        running.send_signal(signal.SIGKILL)
        assert running.wait(60) in (-signal.SIGKILL, 0)
    running = started(cut)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 0, said
    assert cut.read_bytes() == whole.read_bytes()
    left = {path.name for path in tmp_path.glob("*cut*")}
    left -= {"cut.jsonl.journal-journal"}  # SQLite's, of a write that was killed before it began; the next takes it
    assert left == {"cut.jsonl", "cut.jsonl.journal"}


def test_what_failed_has_its_file_and_its_exit_code(tmp_path: Path, karat_here: Karat) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "Once", "max_tokens": 2}\nno JSON\n{"prompt": "x", "temperature": -1}\n')
    done = karat_here("batch", str(source), "-o", str(out))
    assert done.returncode == 14, done.stderr
    assert "2 failed" in done.stderr and str(tmp_path / "out.errors.jsonl") in done.stderr
    assert [line["custom_id"] for line in lines_of(out)] == ["line-1"]
    fault, refused = lines_of(tmp_path / "out.errors.jsonl")
    assert fault["error"]["code"] == "invalid_json"
    assert refused["response"]["status_code"] == 400
    assert refused["response"]["body"]["error"]["param"] == "temperature"
    source.write_text('{"prompt": "Once", "max_tokens": 2}\n')
    again = karat_here("batch", str(source), "-o", str(out))
    assert again.returncode == 0 and "1 requests, 1 of them answered before" in again.stderr
    assert not (tmp_path / "out.errors.jsonl").exists()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table(kind: str, tmp_path: Path, karat_here: Karat) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    source, out = tmp_path / f"in.{kind}", tmp_path / "out.jsonl"
    table = pyarrow.table({"name": ["fox", "sea"], "text": ["Once, upon", "A day"]})
    module = pytest.importorskip(f"pyarrow.{kind}")
    (module.write_csv if kind == "csv" else module.write_table)(table, source)
    words = ["--column", "text", "--id-column", "name", "--body", '{"max_tokens": 3}']
    done = karat_here("batch", str(source), "-o", str(out), *words)
    assert done.returncode == 0, done.stderr
    assert [line["custom_id"] for line in lines_of(out)] == ["fox", "sea"]
    assert {line["response"]["body"]["usage"]["completion_tokens"] for line in lines_of(out)} == {3}


def test_two_servers(tmp_path: Path, karat: Karat) -> None:
    """They are filled evenly, and the answers are those of the engine here."""
    source, here, there = write_requests(tmp_path / "in.jsonl", 24), tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    servers = [
        subprocess.Popen([*COMMAND, "serve", "--port", "0"], env=environment(), stderr=subprocess.PIPE) for _ in "ab"
    ]
    try:
        urls = []
        for server in servers:
            assert server.stderr is not None
            while b"/v1 serves" not in (line := server.stderr.readline()):
                assert line, "the server ended"
            urls += ["--url", line.split(b"/v1 serves")[0].decode().split()[-1]]
        done = karat("batch", str(source), "-o", str(there), *urls, "--concurrency", "4", "--no-times")
        assert done.returncode == 0, done.stderr
        counts = []
        for server in servers:
            server.terminate()
            assert server.stderr is not None
            counts.append(server.stderr.read().count(b"POST /v1"))
    finally:
        for server in servers:
            server.kill()
            server.wait()
    assert sum(counts) == 24 and min(counts) >= 6
    assert karat("batch", str(source), "-o", str(here), "--no-times", "-q").returncode == 0
    assert here.read_bytes() == there.read_bytes()


def test_a_disk_that_is_full(tmp_path: Path, karat: Karat) -> None:
    # Answers of half a second are written together: they are few and the room is for 50, so that some are written.
    source, out = write_requests(tmp_path / "in.jsonl", 100, max_tokens=32), tmp_path / "out.jsonl"
    with room_for(90_000):
        done = karat("batch", str(source), "-o", str(out))
    assert done.returncode == 1 and "free some space" in done.stderr and not out.exists()
    done = karat("batch", str(source), "-o", str(out))
    assert done.returncode == 0 and "of them answered before" in done.stderr
    assert len(lines_of(out)) == 100


def test_ctrl_c_keeps_what_was_answered(tmp_path: Path, karat: Karat) -> None:
    source, out = write_requests(tmp_path / "in.jsonl", 400), tmp_path / "out.jsonl"
    words = [*COMMAND, "batch", str(source), "-o", str(out)]
    running = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, start_new_session=True)
    journal = tmp_path / "out.jsonl.journal"
    while not journal.exists() or journal.stat().st_size < 50_000:
        time.sleep(0.05)
        assert running.poll() is None
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130 and b"Traceback" not in said, said
    again = karat("batch", str(source), "-o", str(out))
    assert again.returncode == 0 and "of them answered before" in again.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--url", "http://127.0.0.1:1", "-m", "x"], "both --url and a model to load here"),
        (["--concurrency", "3"], "--concurrency needs --url"),
        (["--column", "text"], "--column, --id-column and --chat are for .csv and .parquet files"),
        (["--body", "[1]"], "expected a JSON object"),
        (["--served-model-name", "other"], "requests name the model 'mine'; here is other"),
    ],
)
def test_what_cannot_be_meant(words: list[str], expected: str, tmp_path: Path, karat_here: Karat) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "Once", "model": "mine"}\n')
    done = karat_here("batch", str(source), "-o", str(out), *words)
    assert done.returncode == 2 and expected in done.stderr, done.stderr
    assert not out.exists()


def test_an_output_of_somebody_else_stays(tmp_path: Path, karat_here: Karat) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "Once"}\n')
    out.write_text("mine")
    done = karat_here("batch", str(source), "-o", str(out))
    assert done.returncode == 1 and "--overwrite replaces it" in done.stderr
    assert out.read_text() == "mine" and sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]

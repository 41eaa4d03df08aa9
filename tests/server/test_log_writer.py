"""A log that nobody reads, and a full disk: no request waits, and the lines that are lost are counted."""

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from karat.server import log_writer
from karat.server.log_writer import MAX_WAITING_BYTES, LogWriter
from tests.server.conftest import SOURCE, Running

LOST = re.compile(r"(\d+) lost")


@contextmanager
def piped() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            with suppress(OSError):
                os.close(end)


def lines_of(descriptor: int) -> list[str]:
    with os.fdopen(descriptor) as file:
        return file.read().splitlines()


def test_lines_come_in_order_and_lost_ones_are_told_where_they_were() -> None:
    line = "x" * 999
    with piped() as (reading, writing):
        writer = LogWriter(writing, lambda num: f"{num} lost")
        for number in range(3000):  # three times what may wait; nobody reads
            writer.put(f"{number:04}{line}")
        assert writer.num_lost >= 3000 - (MAX_WAITING_BYTES + 2 * 65536) // 1000
        got: list[str] = []
        reader = threading.Thread(target=lambda: got.extend(lines_of(reading)))
        reader.start()
        num_puts, num_lost = 3000, -1
        while writer.num_lost != num_lost:  # until one is taken after the reader has come
            num_lost, num_puts = writer.num_lost, num_puts + 1
            writer.put("later")
        assert writer.close()
        reader.join(60)
    told = [int(found[1]) for found in map(LOST.fullmatch, got) if found]
    kept = [text for text in got if not LOST.fullmatch(text)]
    numbers = [int(text[:4]) for text in kept if text.endswith("x")]
    assert numbers == sorted(numbers) and kept[-1] == "later"
    assert sum(told) == writer.num_lost == num_puts - len(kept)


def test_a_writer_whose_reader_never_comes_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "CLOSE_S", 0.01)
    with piped() as (reading, writing):
        writer = LogWriter(writing, lambda num: f"{num} lost")
        for _ in range(200):
            writer.put("x" * 1000)
        assert not writer.close()
        writer.put("after the end")
        assert writer.num_lost == 1
        os.set_blocking(reading, False)
        while writer._thread.is_alive():
            with suppress(BlockingIOError):
                os.read(reading, 1 << 16)


linux = pytest.mark.skipif(sys.platform != "linux", reason="/dev/full and sizes of pipes are Linux's")


@linux
@pytest.mark.parametrize("kind", ["full disk", "no reader"])
def test_what_cannot_be_written_is_lost_and_counted(kind: str) -> None:
    with piped() as (reading, writing):
        if kind == "full disk":
            full = os.open("/dev/full", os.O_WRONLY)
        else:
            os.close(reading)
            full = writing
        writer = LogWriter(full, lambda num: f"{num} lost")
        for _ in range(50):
            writer.put("a line, é \udc80")
        assert writer.close() and writer.num_lost == 50


@pytest.mark.slow
@linux
@pytest.mark.parametrize("place", ["an unread pipe", "/dev/full"])
def test_a_server_whose_log_nobody_takes_answers_and_ends(place: str) -> None:
    """It stopped after 840 requests; with /dev/full it ended while it began."""
    with socket.socket() as found, piped() as (_, writing):
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
        found.close()
        if place == "/dev/full":
            os.dup2(os.open(place, os.O_WRONLY), writing)
        else:
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1"}
        arguments = [sys.executable, "-m", "karat", "serve", "--port", str(port)]
        process = subprocess.Popen(arguments, stderr=writing, stdout=subprocess.DEVNULL, env=environment)
        running = Running(process, port)  # type: ignore[arg-type]

        def is_ready() -> bool:
            assert process.poll() is None
            try:
                return running.ask("/ready", timeout=10).status == 200
            except OSError:
                return False

        try:
            running.until(is_ready, 120)
            for _ in range(200):
                assert running.ask("/health", timeout=60).status == 200
            if place == "/dev/full":
                running.until(lambda: running.gauge("karat_log_lines_lost") >= 200)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait(30)

"""Servers that are started here: stopped outside their turn, ended at the end, and their last words if they fail.

Covers: karat.bench.load.program, karat.bench.load.servers.
"""

import sys
import time
from pathlib import Path

import pytest

from karat.bench.load.servers import MeasuredServer, free_port, karat_command, llama_server_command
from karat.errors import ExecutorError, UsageError
from tests.support.scripted_server import beside, plain

SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"data": [{"id": "one"}, {"id": "two"}]}'
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers()
        self.wfile.write(body)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(sys.platform != "linux", reason="the state of a process is read from /proc")
def test_a_server_sleeps_outside_of_its_turn_and_ends() -> None:
    port = free_port()
    server = MeasuredServer(
        "s", f"http://127.0.0.1:{port}", headers={}, command=[sys.executable, "-c", SERVER, str(port)]
    )
    try:
        assert server.wait(None) == "one" and server.wait("two") == "two"
        process = server._process
        assert process is not None
        end = time.monotonic() + 60
        while state_of(process.pid) != "T":
            assert time.monotonic() < end
        with server.awake():
            assert state_of(process.pid) in "SR"
        with pytest.raises(UsageError, match="serves no model 'three', but one, two"):
            server.wait("three")
    finally:
        server.close()
    assert process.poll() is not None


def test_a_server_that_ends_says_why() -> None:
    words = "import sys; sys.exit('the weights are missing')"
    server = MeasuredServer("s", "http://127.0.0.1:9", headers={}, command=[sys.executable, "-c", words])
    with pytest.raises(ExecutorError, match=r"s ended with code 1.*the weights are missing"):
        server.wait(None)
    server.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (plain(404, {}), "HTTP 404"),
        (plain(200, {"data": []}), "serves no model"),
        (plain(200, b"x"), "not of OpenAI's form"),
    ],
)
def test_a_url_that_is_no_such_server(answer: object, said: str) -> None:
    with beside({"/v1/models": answer}) as url, pytest.raises(ExecutorError, match=said):  # type: ignore[dict-item]
        MeasuredServer("server", url, headers={}).wait(None)
    with pytest.raises(ExecutorError, match="refused"):
        MeasuredServer("server", url, headers={}).wait(None)


def test_command_lines() -> None:
    words = karat_command("m.gguf", 5, num_seqs=4, threads=2, options=["--activations", "int8"])
    assert "serve m.gguf --port 5 --quiet --activations int8 --threads 2" in " ".join(words)
    assert "serve m.gguf --port 5 --quiet --threads 2 --max-num-seqs 4" in " ".join(
        karat_command("m.gguf", 5, num_seqs=4, threads=2)
    )
    with pytest.raises(UsageError, match="no such program"):
        llama_server_command("/no/such", __file__, 5, num_seqs=4, threads=2, seq_tokens=256)
    with pytest.raises(UsageError, match="GGUF files only"):
        llama_server_command(sys.executable, "/no/such", 5, num_seqs=4, threads=2, seq_tokens=256)
    words = llama_server_command(sys.executable, __file__, 5, num_seqs=4, threads=2, seq_tokens=256)
    assert words[1:] == f"-m {__file__} --host 127.0.0.1 --port 5 -np 4 -c 1024 -t 2 -tb 2".split()

"""What frameworks send passes to a server and is kept; each ask names one that there is."""

import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from tools.anonymiser import Anonymiser
from tools.client_asks import ASKS
from tools.record_clients import Passed, Passing, entries


class Echo(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(201)
        self.send_header("content-length", str(len(content)))
        self.send_header("x-own", self.headers["authorization"])
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def test_a_request_passes_as_it_is_and_is_kept() -> None:
    target = HTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=target.serve_forever, daemon=True).start()
    passing = Passing(f"http://127.0.0.1:{target.server_address[1]}")
    try:
        body = json.dumps({"model": "m"}).encode()
        asked = urllib.request.Request(f"{passing.url}/v1/messages?beta=true", body, {"authorization": "Bearer a"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert (answer.status, answer.headers["x-own"], answer.read()) == (201, "Bearer a", body)
        assert passing.passed == [Passed("/v1/messages", {"model": "m"}, 201, body.decode())]
    finally:
        for server in (passing, target):
            server.shutdown()
            server.server_close()


def test_of_each_set_of_fields_one_request_is_kept() -> None:
    bodies: list[Any] = [{"model": "a"}, {"model": "b"}, {"model": "a", "stream": True}]
    made = entries("x", "client 1, chat", [Passed("/v1/r", body, 200, "") for body in bodies])
    assert list(made) == ["x", "x-1"] and made["x-1"]["body"] == {"model": "PLACEHOLDER", "stream": True}
    assert made["x"]["from"] == "recorded: client 1, chat" and made["x"]["route"] == "/v1/r"


def test_calls_and_schemas_stay_what_they_are() -> None:
    call = {"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    schema = {"$defs": {"City": {"type": "object"}}, "properties": {"id": {"$ref": "#/$defs/City"}}}
    assert Anonymiser().of([{"tool_calls": [call]}, {"tool_call_id": "call-1"}, {"schema": schema}]) == [
        {"tool_calls": [{"id": "p0", "type": "function", "function": {"name": "p1", "arguments": "{}"}}]},
        {"tool_call_id": "p0"},
        {"schema": {"$defs": {"p2": {"type": "object"}}, "properties": {"p3": {"$ref": "#/$defs/p2"}}}},
    ]


def test_every_ask_has_a_name_of_its_own() -> None:
    names = [f"{client}:{what}" for client, (_, _, kinds) in ASKS.items() for what in kinds.split()]
    assert len(names) == len(set(names)) >= 40

"""Records what frameworks send to a server that answers them, into tests/server/requests.

Use: karat serve MODEL --served-model-name NAME, and beside it
     PYTHON -m tools.record_clients URL NAME [CLIENT:WHAT ...]
     PYTHON -m tools.record_clients URL NAME --node FOLDER [PROVIDER:WHAT ...]

PYTHON is that of an environment with a client of tools/client_asks.py; nothing else is needed there. FOLDER has
Vercel's AI SDK: npm install ai @ai-sdk/openai @ai-sdk/anthropic @ai-sdk/openai-compatible zod. Each ask is a process of
its own, whose requests pass through here to the server. What is refused is named. Of a request stay the names of
fields, their types and their structure (tools/anonymiser.py); of the requests of an ask those that differ in their
fields.
"""

import argparse
import http.client
import json
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tools.anonymiser import Anonymiser
from tools.client_asks import ASKS
from tools.record_requests import FOLDER

PROVIDERS = {
    "openai": "text tools stream object",
    "chat": "tools object",
    "anthropic": "tools stream object",
    "compatible": "tools stream object",
}
_ITS_OWN = ("host", "connection", "content-length", "transfer-encoding", "accept-encoding")  # of each connection


@dataclass(frozen=True, slots=True)
class Passed:
    """A request that passed, and how it was answered."""

    route: str
    body: Any
    status: int
    answer: str


class Passing(ThreadingHTTPServer):
    """Sends every request on to a server, and keeps it."""

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = urlsplit(url).netloc
        self.passed: list[Passed] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Passing

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        asking = http.client.HTTPConnection(self.server.target, timeout=600)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _ITS_OWN}
        asking.request(self.command, self.path, body or None, headers)
        answer = asking.getresponse()
        content = answer.read()
        if body:
            route = self.path.partition("?")[0]
            self.server.passed.append(Passed(route, json.loads(body), answer.status, content.decode()))
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _ITS_OWN:
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        asking.close()

    do_GET = do_POST  # noqa: N815 - the library's name

    def log_message(self, *_: object) -> None:
        pass


def entries(name: str, origin: str, passed: list[Passed]) -> dict[str, dict[str, Any]]:
    """Name of a file to what it holds: of each set of fields the first request."""
    found: dict[tuple[str, ...], Passed] = {}
    for request in passed:
        found.setdefault((request.route, *sorted(request.body)), request)
    return {
        f"{name}-{number}" if number else name: {
            "from": f"recorded: {origin}",
            "route": request.route,
            "body": Anonymiser().of(request.body),
        }
        for number, request in enumerate(found.values())
    }


def _asks(node: Path | None) -> dict[str, tuple[str, list[str]]]:
    """What can be asked here: origin and command, without the address."""
    if node is not None:
        program = shutil.copy(Path(__file__).parent / "client_asks.mjs", node)
        package = json.loads((node / "node_modules/ai/package.json").read_text(encoding="utf-8"))
        return {
            f"{provider}:{what}": (f"ai {package['version']}, {provider}, {what}", ["node", str(program)])
            for provider, kinds in PROVIDERS.items()
            for what in kinds.split()
        }
    found = {}
    for client, (package, _, kinds) in ASKS.items():
        try:
            known = version(package)
        except PackageNotFoundError:
            continue
        for what in kinds.split():
            found[f"{client}:{what}"] = (f"{client} {known}, {what}", [sys.executable, "-m", "tools.client_asks"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.record_clients")
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--node", type=Path)
    given = parser.parse_intermixed_args()
    passing, asks = Passing(given.url), _asks(given.node)
    for name in given.names or asks:
        origin, command = asks[name]
        passing.passed.clear()
        done = subprocess.run([*command, name, passing.url, given.model], capture_output=True, text=True, check=False)
        file = ("ai-sdk-" if given.node else "") + name.replace(":", "-")
        for made, entry in entries(file, origin, passing.passed).items():
            text = json.dumps(entry, indent=1, ensure_ascii=False) + "\n"
            (FOLDER / f"{made}.json").write_text(text, encoding="utf-8")
        print(f"{name}: {', '.join(f'{p.route} {p.status}' for p in passing.passed)}, exit code {done.returncode}")
        for refused in (p for p in passing.passed if p.status >= 300):
            print(f"    {refused.answer[:300]}")
        if done.returncode:
            print(f"    {done.stderr.strip().splitlines()[-1][:300]}")


if __name__ == "__main__":
    main()

"""A hub on loopback: the requests that huggingface_hub makes to list and fetch a model, and the ways they fail."""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_right"


@dataclass
class Model:
    """One model: its revisions (name -> files), and who may read it."""

    revisions: dict[str, Mapping[str, bytes]]
    gated: bool = False
    private: bool = False

    def commit(self, revision: str) -> str | None:
        """The commit that a branch or a commit names."""
        commits = {name: _digest(*files, *files.values()) for name, files in self.revisions.items()}
        return commits.get(revision, revision if revision in commits.values() else None)

    def files(self, commit: str) -> Mapping[str, bytes]:
        return next(files for name, files in self.revisions.items() if self.commit(name) == commit)


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha1()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()


@dataclass
class FakeHub:
    """What the hub has, how it fails, and what it was asked; changed by the tests between requests.

    `cut` maps a file's name to the lengths after which its next answers break off.
    """

    models: dict[str, Model] = field(default_factory=dict)
    status: int | None = None
    page_for: str | None = None  # requests that begin so are answered with a web page, as a proxy or a login does
    cut: dict[str, list[int]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    on_request: Callable[[str], None] | None = None
    endpoint: str = ""

    def fetched(self) -> list[str]:
        """The files whose content was asked for, with the first byte if it was not 0."""
        matches = (re.fullmatch(r"GET /[^/]+/[^/]+/resolve/\w+/(.+)", request) for request in self.requests)
        return sorted(match[1] for match in matches if match)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        start = int(re.sub(r"bytes=(\d+)-.*", r"\1", self.headers.get("Range", "0")))
        self.hub.requests.append(f"{self.command} {path}" + (f" from {start}" if start else ""))
        if self.hub.on_request:
            self.hub.on_request(f"{self.command} {path}")
        if self.hub.page_for is not None and f"{self.command} {path}".startswith(self.hub.page_for):
            return self.send(200, b"<!doctype html><title>Log in</title>", {"Content-Type": "text/html"})
        if self.hub.status:
            return self.fail(self.hub.status)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/(.+?))?/?", path):
            name, what, revision = match.groups()
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/(resolve)/([^/]+)/(.+)", path):
            name, what, revision = match[1], match[2], match[3]
        else:
            return self.fail(404)
        model = self.hub.models.get(name)
        right_token = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if self.headers.get("Authorization") and not right_token:
            return self.fail(401, message="Invalid credentials in Authorization header")
        if model is None or (model.private and not right_token):
            return self.fail(401, "RepoNotFound")
        commit = model.commit(revision or "main")
        if commit is None:
            return self.fail(404, "RevisionNotFound")
        files = model.files(commit)
        if what == "tree":
            tree = [
                {"type": "file", "path": path, "size": len(content), "oid": _digest(content)}
                for path, content in files.items()
            ]
            return self.send(200, json.dumps(tree).encode())
        if what != "resolve":
            info = {"id": name, "sha": commit, "siblings": [{"rfilename": path} for path in files]}
            return self.send(200, json.dumps(info).encode())
        if model.gated and not right_token:
            return self.fail(403, "GatedRepo")
        if match[4] not in files:
            return self.fail(404, "EntryNotFound")
        content = files[match[4]]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_digest(content)}"', "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        lengths = self.hub.cut.get(match[4])
        length = lengths.pop(0) if lengths and self.command == "GET" else None
        return self.send(206 if start else 200, content[start:], headers, length)

    def fail(self, status: int, code: str = "", message: str = "") -> None:
        self.send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message})

    def send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            if value:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """A hub that answers at its `endpoint` until the context ends."""
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

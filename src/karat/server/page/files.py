"""Page: the files of the page at /, read once, with the headers that keep them apart from everything foreign."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from karat.server.errors import ApiError
from karat.server.page import docs
from karat.server.pipe import encoded

ROOT = "/"
PREFIX = "/page/"  # of the files that the page loads
DOCS = "/docs"
_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing from elsewhere, no inline script or style, no HTML from strings: what a model writes cannot become code.
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",
    "cache-control": "no-cache",  # kept, but asked for with its etag each time: a newer Karat has a newer page at once
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    type: str
    etag: str


def is_page(path: str) -> bool:
    """Whether a path is one of a page. They need no key: nothing in them is secret, and / asks for the key itself."""
    return path in (ROOT, DOCS) or path.startswith(PREFIX)


class Page:
    """The routes of all files of the page, and of /docs."""

    def __init__(self) -> None:
        paths = sorted(path for path in _FOLDER.iterdir() if path.suffix in _TYPES)
        self._files = {path.name: _read(path) for path in paths}

    async def answer(self, request: Request) -> ASGIApp:
        """index.html, or the file `name`; 304 if the browser has it, 404 if there is none."""
        name = request.path_params.get("name", "index.html")
        if name not in self._files:
            raise ApiError(404, f"the page has no file {name[:80]!r}", code="not_found")
        file = self._files[name]
        return _sent(request, file)

    async def docs(self, request: Request) -> ASGIApp:
        return _sent(request, _docs())


@cache
def _docs() -> _File:
    return _file(docs.html().encode(), _TYPES[".html"])


def _sent(request: Request, file: _File) -> ASGIApp:
    return _Sent(file, unchanged=request.headers.get("if-none-match") == file.etag)


class _Sent:
    """One file as an answer; its head alone if the browser has it."""

    def __init__(self, file: _File, *, unchanged: bool) -> None:
        self._file = file
        self._unchanged = unchanged

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"etag": self._file.etag, **_HEADERS}
        if not self._unchanged:
            headers |= {"content-type": self._file.type, "content-length": str(len(self._file.content))}
        status = 304 if self._unchanged else 200
        await send({"type": "http.response.start", "status": status, "headers": encoded(headers)})
        has_body = not self._unchanged and scope["method"] != "HEAD"
        await send({"type": "http.response.body", "body": self._file.content if has_body else b""})


def _read(path: Path) -> _File:
    return _file(path.read_bytes(), _TYPES[path.suffix])


def _file(content: bytes, type_: str) -> _File:
    return _File(content, type_, f'"{hashlib.sha256(content).hexdigest()[:32]}"')

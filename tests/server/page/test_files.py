"""The page's files: what is sent with them, what they may not contain, and their size together."""

import re

import pytest

from karat.server.page import files
from karat.server.page.files import _FOLDER as FOLDER
from tests.server.conftest import Running, serving

FILES = sorted(path for path in FOLDER.iterdir() if path.is_file())
SOURCES = [path for path in FILES if path.suffix in (".js", ".html", ".css")]


def test_the_page_and_its_files_come_with_their_policy(server: Running) -> None:
    for path, kind in {"/": "text/html", "/page/main.js": "text/javascript", "/page/base.css": "text/css"}.items():
        answer = server.ask(path)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
        policy = answer.headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "require-trusted-types-for 'script'"} <= set(policy)
        assert not re.search(r"unsafe|\*|https?:", " ".join(policy))


def test_a_file_that_the_browser_has_is_not_sent_again(server: Running) -> None:
    first = server.ask("/page/main.js")
    again = server.ask("/page/main.js", if_none_match=first.headers["etag"])
    assert (again.status, again.content) == (304, b"")
    assert server.ask("/page/main.js", if_none_match='"another"').content == first.content


def test_head_has_no_body_and_other_methods_are_refused(server: Running) -> None:
    head = server.ask("/", method="HEAD")
    assert head.status == 200 and head.content == b"" and int(head.headers["content-length"]) > 0
    assert server.ask("/", {}, method="POST").status == 405


@pytest.mark.parametrize("name", ["none.js", "..%2ffiles.py", "%2e%2e/files.py", "__init__.py", ""])
def test_nothing_else_is_to_be_had(server: Running, name: str) -> None:
    assert server.ask(files.PREFIX + name).status == 404


def test_the_page_needs_no_key_and_all_else_does() -> None:
    with serving("--api-key", "right") as running:
        assert running.ask("/").status == 200
        assert running.ask("/page/main.js").status == 200
        assert running.ask("/pages").status == 401
        assert running.ask("/v1/models").status == 401
        assert running.ask("/page/main.js", host="rebound.example").status == 403


def test_all_files_together_are_small() -> None:
    assert sum(path.stat().st_size for path in FILES) < 200_000


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_file_makes_html_or_asks_elsewhere(path: object) -> None:
    text = path.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    made = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|\beval\(|new Function|setHTML"
    assert not re.search(made, text)
    assert not re.search(r"""(?:src|href|import|from|fetch|url)\s*[=(]?\s*["'(](?:https?:)?//""", text)
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=", text) or path.suffix != ".html"  # type: ignore[attr-defined]


def test_every_file_is_loaded_by_another() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in SOURCES}
    used = {name for text in texts.values() for name in re.findall(r"(?:\./|/page/)([\w.]+)", text)}
    assert used == {path.name for path in FILES} - {"index.html", "docs.css"}  # /docs loads that (test_docs.py)

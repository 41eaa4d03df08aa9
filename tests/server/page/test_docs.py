"""The page at /docs has every route and every field of the OpenAPI document, and nothing of it becomes markup.

Covers: karat.server.page.docs.
"""

import re
from html.parser import HTMLParser

import pytest

from karat.server.fields import Field, fields_of
from karat.server.openapi import document
from karat.server.page import docs, files
from tests.server.conftest import Running


class Words(HTMLParser):
    """Text by the section it is in, all tags, and where links lead."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sections: dict[str, str] = {"": ""}
        self.tags: set[str] = set()
        self.links: list[str] = []
        self._at = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        if tag == "section":
            self._at = given["id"] or ""
            self.sections[self._at] = ""
        self.links += [given[name] or "" for name in ("href", "src") if name in given]

    def handle_data(self, data: str) -> None:
        self.sections[self._at] += f"{data}\n"


def test_every_route_field_and_answer_is_there_and_every_link_leads_somewhere() -> None:
    made, page = document(), Words(docs.html())
    for path, item in made["paths"].items():
        words = page.sections[docs._id(path)]
        assert path in words
        if "post" in item:
            for field in fields_of(path).values():
                assert field.name in words.split("\n") and field.text in words, (path, field.name)
    for name, schema in made["components"]["schemas"].items():
        words = page.sections[f"schema-{name}"]
        assert schema.get("properties", {}).keys() <= set(words.split("\n"))
    here = {link[1:] for link in page.links if link.startswith("#")}
    assert here <= page.sections.keys() and len(here) > 20
    assert {link for link in page.links if not link.startswith("#")} == {
        "/openapi.json",
        "/page/base.css",
        "/page/docs.css",
    }
    assert "script" not in page.tags and not re.search(r"\son\w+=|style=", docs.html())


def test_texts_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Field("<script>", ("/v1/chat/completions",), "honoured", "<img src=x onerror=alert(1)> & more", str)
    before = fields_of
    monkeypatch.setattr("karat.server.page.docs.fields_of", lambda path: {**before(path), bad.name: bad})
    page = docs.html()
    assert "<script" not in page and "<img" not in page
    assert "<img src=x onerror=alert(1)> & more" in Words(page).sections["v1-chat-completions"]


def test_it_is_served_with_the_policy_of_the_page(server: Running) -> None:
    answer = server.ask(files.DOCS)
    assert answer.status == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.content.decode() == docs.html()

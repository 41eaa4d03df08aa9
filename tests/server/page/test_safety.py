"""What models write stays text, and a server's key is asked for, refused and kept as it should be."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.server.conftest import Running, serving
from tests.server.page.conftest import Page

HOSTILE = [
    "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "[a link](javascript:alert(3)) and <a href='javascript:alert(4)'>another</a>",
    "![a picture](https://example.org/x.png) <svg onload=alert(5)></svg>",
]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("text", HOSTILE)
def test_an_answer_of_markup_is_text(page: Page, text: str) -> None:
    asked = []
    page.tab.on("request", lambda request: asked.append(request.url))
    page.settings(form="choice", max_completion_tokens="200", **{"form-text": text})
    page.ask("Say it.")
    answer = page.tab.locator(".message.assistant > .text")
    assert answer.locator("script, img, svg, a[href^='javascript']").count() == 0
    if "](" not in text:
        assert answer.text_content() == text
    assert not [url for url in asked if "example.org" in url]


def test_a_question_of_markup_is_text(page: Page) -> None:
    page.ask(HOSTILE[0])
    assert page.texts("user") == [HOSTILE[0]]
    assert page.tab.title().startswith("<script>")


def test_markdown_becomes_nodes(page: Page) -> None:
    shown = page.tab.evaluate(
        """async () => {
            const { renderInto } = await import("/page/markdown.js");
            const made = (text) => { const at = document.createElement("div"); renderInto(at, text); return at; };
            const tags = (text) => [...made(text).querySelectorAll("*")].map((e) => e.tagName.toLowerCase()).join(" ");
            const grown = made("one\\n\\ntwo"), first = grown.firstChild;
            renderInto(grown, "one\\n\\ntwo three\\n\\nfour");
            return {
                list: tags("1. a\\n2. **b**\\n   - c"),
                code: made("```py\\nx = 1 < 2\\n```").querySelector("code").textContent,
                table: tags("|a|b|\\n|-|-|\\n|1|2|"),
                link: made("see https://example.org/a_b.").querySelector("a").href,
                word: tags("snake_case_name"),
                kept: first === grown.firstChild,
                num: grown.children.length,
            };
        }"""
    )
    assert shown == {
        "list": "ol li li p strong ul li",
        "code": "x = 1 < 2",
        "table": "div table thead tr th th tbody tr td td",
        "link": "https://example.org/a_b",
        "word": "p",
        "kept": True,
        "num": 3,
    }


LONG = [
    "*a " * 30000,
    "`" * 60000,
    "[" * 60000,
    "> " * 20000 + "x",
    "- " * 20000,
    "**_" * 20000,
    "a|b\n" * 20000,
    "*a **b " * 9000,
    "- x\n" * 20000,
    "#" * 60000,
    "|-" * 30000 + "\n" + "|-" * 30000,
    "`a ``b " * 9000,
    " " * 60000,
]


def test_hostile_markdown_takes_no_time(page: Page) -> None:
    took_ms = page.tab.evaluate(
        """async (texts) => {
            const { renderInto } = await import("/page/markdown.js");
            return texts.map((text) => {
                const begun = performance.now();
                renderInto(document.createElement("div"), text);
                return performance.now() - begun;
            });
        }""",
        LONG,
    )
    assert max(took_ms) < 5000, [(text[:8], ms) for text, ms in zip(LONG, took_ms, strict=True)]


@pytest.mark.slow
def test_a_wrong_key_then_the_right_one(opened: Callable[..., Any]) -> None:
    with serving("--api-key", "right") as running, opened(running) as page:
        tab = page.tab
        assert "wants a key" in tab.get_by_role("dialog").inner_text()
        tab.keyboard.type("wrong")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("dialog .bad")
        assert "refused" in tab.get_by_role("dialog").inner_text()
        tab.keyboard.type("right")
        tab.keyboard.press("Enter")
        tab.wait_for_selector(".welcome h1")
        page.settings(max_completion_tokens="8")
        page.ask("Tell me a story.")
        assert page.texts("assistant")[0]
        assert tab.evaluate("JSON.stringify(localStorage)").count("right") == 0
        tab.reload()  # the tab has the key
        tab.wait_for_selector(".conversations li")
        assert tab.get_by_role("dialog").count() == 0
        with tab.context.expect_page() as other:
            tab.evaluate(f"open('{running.url}', '_blank', 'noopener')")
        other.value.wait_for_selector("dialog")  # another has not


def test_a_server_that_is_gone_is_said(opened: Callable[..., Any]) -> None:
    with serving() as running, opened(running) as page:
        page.tab.wait_for_selector(".welcome")
        running.process.kill()
        running.process.wait(30)
        page.ask("Tell me a story.")
        assert "cannot be reached" in page.tab.locator(".failure").inner_text()


def test_the_fixture_sees_violations(opened: Callable[..., Any], server: Running) -> None:
    with pytest.raises(AssertionError, match="img-src"), opened(server) as page:
        page.tab.evaluate(
            "() => { const made = document.createElement('img'); made.src = 'https://example.org/x.png';"
            " document.body.append(made); return new Promise((done) => setTimeout(done, 200)); }"
        )

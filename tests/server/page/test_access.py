"""For everybody: axe-core finds nothing serious, a phone scrolls down only, and long conversations stay quick."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Running
from tests.server.page.conftest import Page

PHONE = {"viewport": {"width": 375, "height": 740}, "has_touch": True, "is_mobile": True}
NUM = 2000
MARKDOWN = "# A\n\n|a|b|\n|-|-|\n|1|2|\n\n```py\nx = 1\n```\n\n- *a* `b`"
WIDE = "```\n" + "wide " * 14 + "\n```\n|a|b|c|\n|-|-|-|\n" + "|" + "cell" * 14 + "|x|y|"


def serious(page: Page) -> list[str]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="requirements/browser.txt")
    found = axe.Axe().run(page.tab).response["violations"]
    return [
        f"{violation['id']}: {node['html'][:160]}"
        for violation in found
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def wider(page: Page) -> list[str]:
    """What reaches beyond the right edge, unless it scrolls in a box of its own."""
    found: list[str] = page.tab.evaluate(
        """() => {
            const all = [document.documentElement, document.querySelector("#scroll")];
            const wide = all.filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.id || e.tagName);
            return document.documentElement.scrollWidth > innerWidth ? [...wide, "page"] : wide;
        }"""
    )
    return found


@pytest.mark.drawn(1)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened: Callable[..., Any], server: Running, theme: str) -> None:
    with opened(server, color_scheme=theme, reduced_motion="reduce") as page:
        page.tab.wait_for_selector(".welcome")
        assert serious(page) == []
        page.settings(max_completion_tokens="24", n="2", system="Be kind.")
        page.ask("Tell me a story.")
        page.settings(n="1", form="regex", max_completion_tokens="200", **{"form-text": re.escape(MARKDOWN)})
        page.ask("Say it.")
        assert serious(page) == []
        for key in ("w", "p", ",", "l", "?"):
            page.key(key)
            assert serious(page) == []
            page.tab.keyboard.press("Escape")


@pytest.mark.slow
def test_a_phone_scrolls_in_one_direction(opened: Callable[..., Any], server: Running) -> None:
    with opened(server, **PHONE) as page:
        page.tab.wait_for_selector(".welcome")
        assert wider(page) == []
        page.settings(max_completion_tokens="24", n="3")
        page.ask("Tell me a story with " + "averyveryverylongwordwithoutanyend" * 6)
        page.settings(n="1", form="regex", max_completion_tokens="400", **{"form-text": re.escape(WIDE)})
        page.ask("Say it.")
        assert wider(page) == []
        for name in ("Conversations", "Live", "Settings"):
            page.tab.get_by_role("button", name=name, exact=True).click()
            assert wider(page) == []
            assert serious(page) == []
            page.tab.keyboard.press("Escape")


def test_the_live_region_says_an_answer_once(page: Page) -> None:
    page.tab.evaluate(
        """() => {
            const place = document.getElementById("said");
            const told = new MutationObserver(() => window.said.push(place.textContent));
            window.said = [];
            told.observe(place, { childList: true, characterData: true, subtree: true });
        }"""
    )
    page.ask("Tell me a story.")
    said = page.tab.evaluate("window.said")
    assert said[0] == "The answer begins." and said[-1].startswith("The answer is there: ")
    assert len(said) == 2


@pytest.mark.slow
def test_two_thousand_messages_stay_quick(page: Page, tmp_path: Path) -> None:
    text = "Message {} of **many**.\n\n- a list\n- `code`\n\n```py\nprint(1)\n```"
    nodes = [
        {
            "id": f"m{i}",
            "parent": f"m{i - 1}" if i else None,
            "role": ("user", "assistant")[i % 2],
            "content": text.format(i),
        }
        for i in range(NUM)
    ]
    settings = {"sampling": {"max_completion_tokens": 8}}
    many = {"title": "Many", "nodes": nodes, "active": {}, "settings": settings}
    file = tmp_path / "many.json"
    file.write_text(json.dumps({"format": "karat-conversations", "version": 1, "conversations": [many]}))
    page.tab.locator("input[type=file]").set_input_files(file)
    page.until(f"document.querySelector('#thread').textContent.includes('Message {NUM - 1}')")
    page.tab.reload()
    page.tab.wait_for_selector(".conversations .open")
    took_ms = page.tab.evaluate(
        f"""async () => {{
            const begun = performance.now(), thread = document.querySelector("#thread");
            document.querySelector(".conversations .open").click();
            while (!thread.textContent.includes("Message {NUM - 1}")) await new Promise(requestAnimationFrame);
            return performance.now() - begun;
        }}"""
    )
    assert took_ms < 5000
    typing_ms = page.tab.evaluate(
        """async () => {
            const field = document.querySelector("#message"); let longest = 0;
            for (let i = 0; i < 20; i += 1) {
                const begun = performance.now();
                field.value += "a"; field.dispatchEvent(new Event("input", { bubbles: true }));
                document.querySelector("#scroll").scrollTop -= 400;
                await new Promise(requestAnimationFrame);
                longest = Math.max(longest, performance.now() - begun);
            }
            return longest;
        }"""
    )
    assert typing_ms < 1000
    assert page.tab.locator(".message").count() < 600  # earlier ones come as they are scrolled to
    page.key("s")
    page.tab.keyboard.type("Message 3 of")
    page.tab.wait_for_selector(".snippet mark")
    page.tab.locator(".conversations .open").last.click()
    page.until("document.querySelector('#thread').textContent.includes('Message 3 of')")

"""Why this token: colours, candidates and their fate, and what of the prompt was in the cache."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.conftest import Running
from tests.server.page.conftest import Page


@pytest.mark.slow
def test_each_token_says_why_by_keyboard(page: Page) -> None:
    page.settings(temperature="0.9", top_k="5", top_p="0.9")
    with page.tab.expect_response("**/v1/chat/completions") as answered:
        page.ask("Tell me a story.")
    entries = explained(answered.value.text())
    assert len(entries) == 24
    page.key("w")
    tokens = page.tab.locator(".token[role=button]")
    assert [text.removeprefix("↵") for text in tokens.all_text_contents()] == [entry["text"] for entry in entries]
    for _ in range(3):
        page.tab.keyboard.press("ArrowRight")
    entry = entries[3]
    panel = page.tab.get_by_role("tabpanel", name="Why")
    said = panel.inner_text()
    assert f"token {entry['token']} · position {entry['position']}" in said
    assert f"rank {entry['rank']}" in said and f"{entry['draw']:.4f}" in said
    assert re.search(r"Top k\s+5 tokens left", said)
    cut = [other for other in entry["alternatives"] if other["cut_by"]]
    assert panel.locator(".alternative.cut").count() == len(cut) > 0
    assert panel.locator(".alternative").count() == len(entry["alternatives"])
    colours = tokens.evaluate_all("all => all.map((e) => Number(e.lastChild.className[1]))")
    steps = (0.5, 0.2, 0.05, 0.01, 0)
    assert colours == [next(i for i, p in enumerate(steps) if entry["probability"] >= p) for entry in entries]
    tokens.nth(5).hover()
    assert f"rank {entries[5]['rank']}" in page.tab.locator(".card").inner_text()
    page.key("w")
    assert page.tab.locator(".token[role=button]").count() == 0


def test_each_sampler_says_what_it_took_out(page: Page) -> None:
    """A request of the page, with samplers that its settings do not have put into it on its way."""
    more = {"xtc_probability": 1, "xtc_threshold": 0.02, "typical_p": 0.9, "dry_multiplier": 2, "dry_allowed_length": 0}

    def amend(route: Any) -> None:
        route.continue_(post_data=json.dumps(route.request.post_data_json | more))

    page.tab.route("**/v1/chat/completions", amend)
    with page.tab.expect_response("**/v1/chat/completions") as answered:
        page.ask("Tell me a story.")
    entries = explained(answered.value.text())
    place, entry = next(
        (i, e) for i, e in enumerate(entries) if any(other["cut_by"] == "xtc" for other in e["alternatives"])
    )
    page.key("w")
    page.tab.locator(".token[role=button]").nth(place).click()
    said = page.tab.get_by_role("tabpanel", name="Why").inner_text()
    assert re.search(rf"XTC\s+{entry['kept']['xtc']} token", said) and "cut by XTC" in said
    assert re.search(rf"Typical p\s+{entry['kept']['typical_p']} token", said)


def test_a_token_with_the_focus_has_its_card_where_the_panel_is_closed(page: Page) -> None:
    page.ask("Tell me a story.")
    page.key("w")
    card = page.tab.locator(".card")
    page.tab.keyboard.press("ArrowRight")
    assert not card.is_visible()
    page.tab.keyboard.press("Escape")
    page.tab.keyboard.press("ArrowRight")
    assert card.is_visible() and "rank" in card.inner_text()
    page.tab.keyboard.press("Enter")
    assert page.tab.get_by_role("tabpanel", name="Why").is_visible() and not card.is_visible()


def test_greedy_answers_say_that_nothing_was_drawn(page: Page) -> None:
    page.settings(temperature="0")
    page.ask("Tell me a story.")
    page.key("w")
    said = page.tab.get_by_role("tabpanel", name="Why").inner_text()
    assert "nothing was drawn" in said
    assert "false" not in said  # where no setting left anything out, there is no list of them
    assert "drawn with" not in said


@pytest.mark.slow
def test_the_prompt_is_shown_with_what_was_in_the_cache(page: Page) -> None:
    page.ask("Tell me a story of the lantern and the fox.")
    page.ask("Go on.")
    link = page.tab.locator(".facts .link").last
    cached, total = map(int, re.findall(r"\d+", link.inner_text()))
    assert 0 < cached < total
    link.click()
    page.tab.get_by_role("button", name="Show it as the model saw it").click()
    found, computed = (page.tab.locator(f".whole-prompt .{kind}").text_content() for kind in ("cached", "computed"))
    assert "the lantern and the fox" in found and "Go on." in computed
    assert "<|im_start|>" in found


def test_a_long_prompt_tells_how_far_it_is(opened: Callable[..., Any], server: Running) -> None:
    watch = """
    window.told = [];
    new MutationObserver(() => {
      const found = document.querySelector(".reading");
      if (found) window.told.push([found.textContent, found.querySelector("progress")?.value ?? null]);
    }).observe(document, { childList: true, subtree: true });
    """
    for name in ("fox", "cat", "dog", "hen", "owl"):  # a browser that is busy may show only the beginning
        with opened(server) as page:
            page.tab.wait_for_selector(".welcome")
            page.settings(max_completion_tokens="4")
            page.tab.evaluate(watch)
            page.ask(f"The {name} had a lantern. " * 110)
            told = page.tab.evaluate("window.told")
            counts = [re.fullmatch(r"Reading the prompt: ([\d,]+) of ([\d,]+) tokens", text) for text, _ in told]
            done = [(int(c[1].replace(",", "")), int(c[2].replace(",", ""))) for c in counts if c]
            total = page.tab.evaluate("Number(document.querySelector('.gauge').getAttribute('aria-valuenow'))") - 4
            assert {of for _, of in done} <= {total} and total > 600
            assert [n for n, _ in done] == sorted(n for n, _ in done)
            shares = [value for text, value in told if text.startswith("Reading")]
            assert shares == [pytest.approx(n / total) for n, _ in done]
        if any(0 < n < total for n, _ in done):
            return
    pytest.fail(f"nothing between beginning and end was shown in five prompts: {done}")


@pytest.mark.slow
def test_details_are_there_after_a_reload(page: Page) -> None:
    page.ask("Tell me a story.")
    page.until("indexedDB.databases().then((all) => all.length === 1)")
    page.tab.reload()
    page.tab.locator(".conversations .open").first.click()
    page.tab.wait_for_selector(".message.assistant")
    page.key("w")
    page.tab.wait_for_selector(".token[role=button]")
    assert page.tab.locator(".token[role=button]").count() == 24


def explained(stream: str) -> list[dict[str, Any]]:
    events = [json.loads(line[6:]) for line in stream.split("\n") if line.startswith("data: {")]
    return [
        entry for event in events for choice in event["choices"] for entry in choice.get("karat", {}).get("explain", [])
    ]

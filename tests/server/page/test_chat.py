"""Conversations as people have them: by keyboard, with branches, several answers, forms, and what the browser keeps."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Running
from tests.server.page.conftest import Page


def test_a_whole_conversation_by_keyboard(page: Page) -> None:
    tab, press = page.tab, page.tab.keyboard.press
    page.key("/")
    tab.keyboard.type("Tell me a story.")
    press("Enter")
    page.finished()
    assert tab.evaluate("document.activeElement.id") == "message"
    tab.keyboard.type("And")
    press("Shift+Enter")
    tab.keyboard.type("then?")
    press("Enter")
    page.finished()
    users, answers = page.texts("user"), page.texts("assistant")
    assert users == ["Tell me a story.", "And then?"]
    assert len(answers) == 2 and all(answers)
    assert re.search(r"24 tokens", tab.locator(".facts").last.inner_text())
    page.key("?")
    assert "Another answer" in tab.get_by_role("dialog").inner_text()
    press("Escape")
    page.key("r")
    page.finished()
    assert tab.locator(".count").last.inner_text().endswith("2 / 2")
    page.key("[")
    assert page.texts("assistant") == answers
    page.key("e")
    tab.keyboard.press("Control+A")
    tab.keyboard.type("And before?")
    press("Enter")
    page.finished()
    assert page.texts("user") == ["Tell me a story.", "And before?"]
    page.key("[")
    assert page.texts("user") == users
    page.key("n")
    assert page.texts() == []
    assert tab.evaluate("document.activeElement.id") == "message"


@pytest.mark.slow
def test_escape_leaves_the_text_box_so_that_every_key_is_reached_without_a_mouse(page: Page) -> None:
    tab, press = page.tab, page.tab.keyboard.press
    focused = "document.activeElement.id"
    tab.wait_for_selector(".welcome")
    press("/")
    tab.keyboard.type("Tell me a story.")
    press("Enter")
    page.finished()
    assert tab.evaluate(focused) == "message"
    tab.keyboard.type("w")
    assert tab.locator("#message").input_value() == "w", "keys of one sign are text there"
    press("Escape")
    assert tab.evaluate(focused) != "message" and tab.locator("#message").input_value() == "w"
    press("w")
    tab.wait_for_selector(".token:focus")
    for key, name in (("p", "Proof"), ("l", "Live")):
        press(key)
        assert tab.get_by_role("tab", name=name).get_attribute("aria-selected") == "true"
        press("Escape")
    press("?")
    assert "leave the text box" in tab.get_by_role("dialog").inner_text()
    press("Escape")
    press("/")
    assert tab.evaluate(focused) == "message" and tab.locator("#message").input_value() == "w"
    press("Escape")
    press("Escape")
    assert tab.evaluate(focused) == "message", "once more, and the box is back"


def test_an_answer_is_stopped_by_escape_and_what_came_stays(page: Page) -> None:
    page.settings(
        max_completion_tokens="900", form="regex", **{"form-text": "[a-z ]{2000,}"}
    )  # it does not end by itself
    page.tab.get_by_role("textbox", name="Message", exact=True).fill("Tell me a long story.")
    page.tab.keyboard.press("Enter")
    page.until("document.querySelector('.message.assistant .text')?.textContent.length > 20")
    page.tab.keyboard.press("Escape")
    page.finished()
    assert "stopped" in page.tab.locator(".facts").last.inner_text()
    assert len(page.texts("assistant")[0]) > 20


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer_and_the_reload_keeps_both(page: Page) -> None:
    page.settings(seed="5", temperature="1")
    page.ask("Tell me a story.")
    page.key("r")
    page.finished()
    (again,) = page.texts("assistant")
    page.key("[")
    assert page.texts("assistant") == [again]
    page.saved()
    page.tab.reload()
    page.tab.locator(".conversations .open").first.click()
    page.tab.wait_for_selector(".message.assistant")
    assert page.texts() == ["Tell me a story.", again]
    assert page.tab.locator(".count").inner_text().endswith("1 / 2")


# The tokens that feet of messages say while answers grow.
COUNTED = """() => {
    window.counted = [];
    const look = () => {
        for (const foot of document.querySelectorAll("[aria-busy=true] .facts")) {
            const number = /^\\d+(?= tokens)/.exec(foot.textContent);
            if (number) window.counted.push(Number(number[0]));
        }
    };
    new MutationObserver(look).observe(document.body, {childList: true, subtree: true, characterData: true});
}"""


@pytest.mark.slow
def test_answers_side_by_side_and_one_of_them_goes_on(page: Page) -> None:
    page.settings(n="3", temperature="1.2", max_completion_tokens="200")  # a busy browser does not show them all
    page.tab.evaluate(COUNTED)
    page.ask("Tell me a story.")
    counted = page.tab.evaluate("window.counted")
    assert counted and max(counted) <= 200, "each says its own tokens"
    answers = page.texts("assistant")
    assert len(answers) == 3 and len(set(answers)) > 1
    page.key("w")
    page.tab.wait_for_selector(".token[role=button]")
    why = page.tab.locator(".message:has(.token) .chosen-mark")
    assert why.count() == 1, "the tokens are those of the answer that goes on"
    page.key("w")
    page.tab.get_by_role("button", name="Go on with this one").last.click()
    page.settings(n="1")
    with page.tab.expect_request("**/v1/chat/completions") as asked:
        page.ask("Go on.")
    sent = asked.value.post_data_json["messages"]
    assert "".join(sent[1]["content"].split()) == "".join(answers[2].split()), "paragraphs are shown without line ends"


def test_system_message_and_sampling_are_sent_and_the_models_defaults_shown(page: Page, server: Running) -> None:
    defaults = server.ask("/v1/models").json["data"][0]["karat"]["sampling_defaults"]
    page.key(",")
    assert float(page.tab.locator("#temperature").get_attribute("placeholder")) == defaults["temperature"]
    page.settings()
    page.settings(system="Speak like a fox.", top_k="7", stop="the end")
    with page.tab.expect_request("**/v1/chat/completions") as asked:
        page.ask("Hello.")
    sent = asked.value.post_data_json
    assert sent["messages"][0] == {"role": "system", "content": "Speak like a fox."}
    assert (sent["top_k"], sent["stop"], "temperature" in sent) == (7, ["the end"], False)


def test_an_answer_of_a_schema_and_a_wrong_schema(page: Page) -> None:
    schema = {
        "type": "object",
        "properties": {"old": {"type": "boolean"}},
        "required": ["old"],
        "additionalProperties": False,
    }
    page.settings(temperature="0", form="json_schema", **{"form-text": json.dumps(schema)})
    page.ask("Is the fox old?")
    assert json.loads(page.texts("assistant")[0]).keys() == {"old"}
    page.settings(**{"form-text": '{"type": '})
    page.tab.get_by_role("textbox", name="Message", exact=True).fill("And now?")
    page.tab.keyboard.press("Enter")
    assert "JSON schema is no JSON" in page.tab.locator(".notice").last.inner_text()


def test_a_request_that_is_refused_says_why_and_can_be_tried_again(page: Page) -> None:
    page.settings(max_completion_tokens="100000")
    page.ask("Tell me a story.")
    assert "ask for at most" in page.tab.locator(".failure").inner_text()
    page.settings(max_completion_tokens="8")
    page.tab.get_by_role("button", name="Try again").click()
    page.finished()
    assert page.texts("assistant")[0]


@pytest.mark.slow
def test_search_finds_a_message_and_shows_it(page: Page) -> None:
    page.ask("Somebody asked me yesterday: do you know the word quagmire?")
    page.key("n")
    page.ask("Tell me a story.")
    page.key("s")
    page.tab.keyboard.type("QUAGMIRE")
    page.tab.wait_for_selector(".snippet mark")
    edges = page.tab.locator(".snippet").last.evaluate(
        "all => [all.querySelector('mark'), all].map((e) => e.getBoundingClientRect().right)"
    )
    assert edges[0] <= edges[1], "what was searched for is cut off"
    page.tab.locator(".conversations .open").last.click()
    page.until("document.querySelector('.message.user').textContent.includes('quagmire')")


def test_search_has_the_focus_where_the_list_slides_in(opened: Callable[..., Any], server: Running) -> None:
    with opened(server, viewport={"width": 600, "height": 740}) as page:
        page.tab.wait_for_selector(".welcome")
        page.key("s")
        page.tab.keyboard.type("story")  # r is "another answer", outside of a field
        assert page.tab.locator("#search").input_value() == "story"
        page.tab.keyboard.press("Escape")
        assert not page.tab.locator("body.with-side").count()


@pytest.mark.slow
def test_export_and_import_give_the_same_conversation(page: Page, tmp_path: Path) -> None:
    page.ask("Tell me a story.")
    page.ask("Go on.")
    shown = page.texts()
    kept = {}
    for entry in ("As JSON", "As Markdown"):
        page.tab.get_by_role("button", name="Export this conversation").click()
        with page.tab.expect_download() as download:
            page.tab.get_by_role("menuitem", name=entry).click()
        kept[entry] = tmp_path / download.value.suggested_filename
        download.value.save_as(kept[entry])
    markdown = kept["As Markdown"].read_text(encoding="utf-8")
    assert all(heading in markdown for heading in ("# Tell me a story.", "## You", "## Answer"))
    page.key("n")
    page.tab.locator("input[type=file]").set_input_files(kept["As JSON"])
    page.tab.wait_for_selector(".message.assistant")
    assert page.texts() == shown
    page.until("document.querySelectorAll('.conversations li').length === 2")
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"format": "another"}')
    page.tab.locator("input[type=file]").set_input_files(wrong)
    assert "was not imported" in page.tab.locator(".notice").last.inner_text()


@pytest.mark.slow
def test_a_browser_that_keeps_nothing_is_said_and_loses_nothing_while_open(
    opened: Callable[..., Any], server: Running
) -> None:
    with opened(server, "/health") as page:  # of the same origin: from here on its storage is full
        page.tab.context.add_init_script(
            "IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError'); };"
        )
        page.tab.goto(server.url)
        page.tab.wait_for_selector(".welcome")
        page.settings(max_completion_tokens="8")
        page.ask("Tell me a story.")
        assert "no room left" in page.tab.locator(".notice").last.inner_text()
        shown = page.texts()
        page.key("n")
        page.tab.locator(".conversations .open").first.click()
        page.tab.wait_for_selector(".message.assistant")
        assert page.texts() == shown

"""Tools and reasoning on a scripted model: what it wants to know, what it is told, and what it thinks."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.conftest import Running
from tests.server.page.conftest import Page
from tests.support.scripted import script

TOOLS = [{"name": "clock", "description": "The time", "parameters": {"type": "object", "properties": {}}}]
CALL = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


@pytest.mark.slow
def test_a_tool_is_called_and_answered(opened: Callable[..., Any], scripted: Running) -> None:
    with opened(scripted) as page:
        page.tab.wait_for_selector(".welcome")
        page.settings(tools=json.dumps(TOOLS))
        page.ask(script(f"<think>\nWhat time is it?\n</think>\n\nLet me see.\n{CALL}"))
        assert page.tab.locator(".reasoning summary").inner_text() == "Reasoning"
        assert not page.tab.get_by_text("What time is it?").is_visible()
        page.tab.locator(".reasoning summary").click()
        assert page.tab.get_by_text("What time is it?").is_visible()
        assert page.texts("assistant") == ["Let me see."]
        assert "Calls clock" in page.tab.locator(".calls").inner_text()
        page.tab.get_by_role("textbox", name="Result").fill("noon")
        with page.tab.expect_request("**/v1/chat/completions") as asked:
            page.tab.get_by_role("button", name="Give the results").click()
            page.finished()
        user, assistant, tool = asked.value.post_data_json["messages"]
        assert user["role"] == "user" and asked.value.post_data_json["tools"][0]["function"]["name"] == "clock"
        assert assistant["tool_calls"][0]["function"] == {"name": "clock", "arguments": "{}"}
        assert assistant["reasoning_content"].strip() == "What time is it?"
        assert tool == {"role": "tool", "content": "noon", "tool_call_id": assistant["tool_calls"][0]["id"]}
        assert page.texts("tool") == ["noon"]
        assert page.tab.locator(".message.assistant").count() == 2


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_custom_tool_has_a_text(opened: Callable[..., Any], scripted: Running, wrapped: bool) -> None:
    """As chats write it, and as /v1/responses does."""
    about = {"name": "shell", "description": "A command"}
    tool = {"type": "custom", **({"custom": about} if wrapped else about)}
    with opened(scripted) as page:
        page.tab.wait_for_selector(".welcome")
        page.settings(tools=json.dumps([tool]))
        page.ask(script('<tool_call>\n{"name": "shell", "arguments": {"input": "ls \\"a\\""}}\n</tool_call>'))
        assert page.tab.locator(".calls pre").inner_text() == 'ls "a"'
        page.tab.get_by_role("textbox", name="Result").fill("none")
        with page.tab.expect_request("**/v1/chat/completions") as asked:
            page.tab.get_by_role("button", name="Give the results").click()
            page.finished()
        _, assistant, result = asked.value.post_data_json["messages"]
        assert asked.value.post_data_json["tools"] == [{"type": "custom", "custom": about}]
        (made,) = assistant["tool_calls"]
        assert (made["type"], made["custom"]) == ("custom", {"name": "shell", "input": 'ls "a"'})
        assert result == {"role": "tool", "content": "none", "tool_call_id": made["id"]}


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("text", "said"), [("[", "is no JSON"), ('{"name": "a"}', "no JSON list"), ("[null]", "no object")]
)
def test_a_list_of_tools_that_is_none(page: Page, text: str, said: str) -> None:
    page.settings(tools=text)
    assert said in page.tab.locator("#tools-said").text_content()
    assert page.tab.locator("#tools").get_attribute("aria-invalid") == "true"
    page.settings(tools=json.dumps(TOOLS))
    assert page.tab.locator("#tools").get_attribute("aria-invalid") == "false"


# Tokens of the scripted model are characters, and after a token that is not of its script it comes to an end.
THOUGHT, SAID = "\nWhat time is it?\n", "\n\nLet me see.\n"
ANSWER = f"<think>{THOUGHT}</think>{SAID}{CALL}\n{CALL}"
PLACES = {
    "in the opening tag": 3,
    "in a thought": len("<think>") + 6,
    "in the text": ANSWER.index("Let me") + 5,
    "in a call": ANSWER.index("arguments"),
    "after a call": ANSWER.index(CALL) + len(CALL),
    "in the second call": ANSWER.rindex("arguments"),
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("where", PLACES)
def test_a_branch_in_an_answer_that_reasons_and_calls(
    opened: Callable[..., Any], scripted: Running, where: str
) -> None:
    with opened(scripted) as page:
        page.tab.wait_for_selector(".welcome")
        page.settings(tools=json.dumps(TOOLS))
        page.ask(script(ANSWER))
        page.key("w")
        place = PLACES[where]
        page.tab.locator(".token[role=button]").nth(place).click()
        page.tab.get_by_role("tabpanel", name="Why").locator("button.alternative").filter(has_text="}").first.click()
        page.finished()
        kept = f"{ANSWER[:place]}}}"
        thought, said, num_calls = "", kept, kept.count("</tool_call>")
        if kept.startswith("<think>"):
            thought, _, said = kept.removeprefix("<think>").partition("</think>")
        if num_calls:
            before, _, after = said.partition("<tool_call>")
            said = before + after.rpartition("</tool_call>")[2]
        message = page.tab.locator(".message.assistant").last
        assert ["".join(text.split()) for text in page.texts("assistant")] == ["".join(said.split())]
        reasoning = message.locator(".reasoning .text")
        assert reasoning.all_text_contents() == ([thought.strip()] if thought else [])
        assert message.locator(".call").count() == num_calls
        assert f"branched after {place} tokens" in message.locator(".facts").inner_text()
        cached, total = map(int, re.findall(r"(\d+) of (\d+) prompt", message.inner_text())[0])
        assert 0 < cached <= total


def test_an_answer_of_a_script_is_text(opened: Callable[..., Any], scripted: Running) -> None:
    text = "<script>alert(1)</script>\n\n<img src=x onerror=alert(2)>"
    with opened(scripted) as page:
        page.tab.wait_for_selector(".welcome")
        page.ask(script(text))
        answer = page.tab.locator(".message.assistant > .text")
        assert answer.locator("script, img").count() == 0
        assert answer.inner_text() == text

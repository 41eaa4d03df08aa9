"""Branches from a token, receipts that are replayed, and answers that are compared."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import SOURCE, Running, serving
from tests.server.page.conftest import Page
from tests.server.page.test_why import explained


@pytest.mark.slow
def test_an_alternative_is_taken_by_keyboard_and_the_answer_goes_on_from_it(page: Page, server: Running) -> None:
    page.settings(seed="7", temperature="1")
    with page.tab.expect_response("**/v1/chat/completions") as answered:
        page.ask("Tell me a story of a fox.")
    entries, asked = explained(answered.value.text()), answered.value.request.post_data_json
    (before,) = page.texts("assistant")
    page.key("w")
    for _ in range(5):
        page.tab.keyboard.press("ArrowRight")
    page.tab.keyboard.press("Enter")
    other = next(a for a in entries[5]["alternatives"] if a["token"] != entries[5]["token"])
    with page.tab.expect_response("**/v1/chat/completions") as resumed:
        page.tab.keyboard.press("Enter")
        page.finished()
    tokens = [entry["token"] for entry in entries[:5]] + [other["token"]]
    body = resumed.value.request.post_data_json
    assert body["karat"] == {"resume": {"tokens": tokens, "seed": 7, "choice": 0}}
    rest = [entry["token"] for entry in explained(resumed.value.text())]
    assert len(tokens) + len(rest) == 24
    (branched,) = page.texts("assistant")
    text = server.ask("/detokenize", {"tokens": tokens + rest}).json["prompt"]
    assert re.sub(r"\s", "", branched) == re.sub(r"\s", "", text)
    assert branched != before
    assert "branched after 5 tokens" in page.tab.locator(".facts").last.inner_text()
    # What the page shows is what any client gets.
    whole = server.ask(
        "/v1/chat/completions", asked | {"stream": False, "karat": body["karat"], "stream_options": None}
    )
    assert whole.json["choices"][0]["token_ids"] == rest
    page.key("[")
    assert page.texts("assistant") == [before]


def test_a_receipt_is_replayed_and_a_forged_one_is_not_identical(page: Page) -> None:
    page.ask("Tell me a story.")
    page.key("p")
    panel = page.tab.get_by_role("tabpanel", name="Proof")
    page.tab.get_by_role("button", name="Replay", exact=True).click()
    page.tab.wait_for_selector(".verdict .good")
    assert re.search(r"identical, 24 tokens, [\d.]+ s", panel.inner_text())

    def forge(route: Any) -> None:
        body = route.request.post_data_json
        body["receipt"]["output"]["token_ids"][3] += 1
        route.continue_(post_data=body)

    page.tab.route("**/v1/receipts/verify", forge)
    page.tab.get_by_role("button", name="Replay", exact=True).click()
    page.tab.wait_for_selector(".verdict.bad, .verdict .bad")
    assert "identical" not in panel.locator(".verdict").first.inner_text()


def test_a_saved_receipt_passes_karat_verify(page: Page, tmp_path: Path) -> None:
    page.settings(seed="5", temperature="1.2")
    page.ask("Tell me a story.")
    page.key("p")
    with page.tab.expect_download() as saved:
        page.tab.get_by_role("button", name="Save the receipt").click()
    path = tmp_path / saved.value.suggested_filename
    saved.value.save_as(path)
    assert path.name == "receipt.json"
    receipt = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(receipt, indent=2), encoding="utf-8")  # as an editor would keep it
    done = verified(path)
    assert done.returncode == 0 and re.fullmatch(r"identical, 24 tokens, [\d.]+ s\n", done.stdout), done.stderr
    path.write_text(json.dumps(receipt | {"seed": "6"}), encoding="utf-8")
    assert verified(path).returncode == 1


def verified(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "karat", "verify", str(path), "-q", "--threads", "1"]
    return subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_another_seed_is_compared_to_the_first_different_token(page: Page) -> None:
    page.settings(seed="1", temperature="1.5")
    page.ask("Tell me a story.")
    page.key("p")
    page.tab.locator("#compare-seed").fill("2")
    page.tab.get_by_role("button", name="Compare", exact=True).click()
    page.tab.wait_for_selector(".verdict .two")
    panel = page.tab.get_by_role("tabpanel", name="Proof")
    assert panel.locator(".two dt").all_text_contents()[0].endswith("seed 1")
    margins = [re.search(r"margin [+−][\d.]+", text) for text in panel.locator(".two dd").all_text_contents()]
    assert len(margins) == 2 and all(margins)
    page.tab.locator("#compare-seed").fill("1")
    page.tab.get_by_role("button", name="Compare", exact=True).click()
    page.tab.wait_for_selector(".verdict .good")
    assert "identical, 24 tokens" in panel.inner_text()


@pytest.mark.slow
def test_other_activations_are_compared_to_the_first_different_token(opened: Callable[..., Any]) -> None:
    with serving("--threads", "1", "--quantize", "q4_0", "--activations", "int16") as running, opened(running) as page:
        page.tab.wait_for_selector(".welcome")
        page.settings(max_completion_tokens="60", seed="3", temperature="1.2")
        page.ask("Tell me a story.")
        page.key("p")
        choice = page.tab.get_by_role("combobox", name="Activations")
        assert choice.locator("option").all_text_contents() == ["int24", "int8"]
        panel = page.tab.get_by_role("tabpanel", name="Proof")
        for activations in ("int24", "int8"):
            choice.select_option(activations)
            with page.tab.expect_response("**/v1/receipts/compare") as answered:
                page.tab.get_by_role("button", name="Compare activations").click()
            page.tab.wait_for_selector(".verdict .good, .verdict .two")
            found = answered.value.json()
            said = panel.locator(".verdict").last.inner_text()
            if (parting := found["parting"]) is None:
                assert f"the same {found['tokens']} tokens with {activations}" in said
                continue
            assert f"They part at token {parting['index'] + 1}:" in said
            names = panel.locator(".two dt").all_text_contents()
            assert [name.split()[-1] for name in names] == ["int16", activations]
            by = [float(text.split()[1].replace("−", "-")) for text in panel.locator(".two dd").all_text_contents()]
            assert by == [round(parting[name], 3) for name in ("margin", "other_margin")]
        assert parting is not None, "int8 differs; if it does not any more, take another seed"


def test_without_weights_in_blocks_there_are_no_activations_to_compare(page: Page) -> None:
    page.ask("Tell me a story.")
    page.key("p")
    page.tab.get_by_role("button", name="Replay", exact=True).wait_for()
    assert page.tab.get_by_role("button", name="Compare activations").count() == 0


def test_a_server_without_these_features_hides_them(opened: Callable[..., Any], server: Running) -> None:
    def older(route: Any) -> None:
        answer = route.fetch()
        document = answer.json()
        of_chat = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
        for name in ("explain", "karat", "tools"):
            del of_chat["schema"]["properties"][name]
        route.fulfill(response=answer, json=document)

    with opened(server, "/health") as page:
        page.tab.route("**/openapi.json", older)
        page.tab.goto(server.url)
        page.tab.wait_for_selector(".welcome")
        page.settings(max_completion_tokens="8")
        with page.tab.expect_request("**/v1/chat/completions") as asked:
            page.ask("Tell me a story.")
        assert not {"explain", "karat", "tools"} & asked.value.post_data_json.keys()
        assert page.texts("assistant")[0]
        assert page.tab.get_by_role("button", name="Why this token").count() == 0
        assert page.tab.get_by_role("button", name="Proof").count() == 0

"""Live: charts from /metrics while the panel is open, at most once a second."""

from itertools import pairwise

import pytest

from tests.server.page.conftest import Page

# When the page asked, by its own clock: what this process sees may be late.
ASKED = "performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/metrics')).map((e) => e.startTime)"


@pytest.mark.slow
def test_metrics_are_asked_for_once_a_second_while_open(page: Page) -> None:
    assert page.tab.evaluate(ASKED) == []
    page.key("l")
    panel = page.tab.get_by_role("tabpanel", name="Live")
    page.ask("Tell me a story.")
    page.until(f"{ASKED}.length >= 4")
    assert all(later - sooner >= 1000 for sooner, later in pairwise(page.tab.evaluate(ASKED)))
    assert "Requests" in panel.inner_text()
    lines = panel.locator("path.line").evaluate_all("all => all.map((e) => e.getAttribute('d'))")
    assert len(lines) == 6 and all(line.startswith("M") for line in lines)
    page.ask("Go on.")
    num = len(page.tab.evaluate(ASKED))
    page.until(f"{ASKED}.length >= {num + 4}")
    found = panel.locator("path.line").last.get_attribute("d").split("L")[-2:]
    heights = [float(point.split()[1]) for point in found]
    assert heights[0] == heights[1] < 40, "in a second without a prompt the last share stays"
    page.tab.keyboard.press("Escape")
    page.tab.wait_for_timeout(100)
    num = len(page.tab.evaluate(ASKED))
    page.tab.wait_for_timeout(1500)
    assert len(page.tab.evaluate(ASKED)) == num

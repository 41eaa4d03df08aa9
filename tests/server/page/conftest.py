"""Chromium with the page of a server of the embedded model. Where there is no Chromium, all of this is skipped."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.server.conftest import Running, serving

try:
    from playwright import sync_api
except ImportError:
    sync_api = None

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# As root, and on networks that end here: Chromium looks for its own servers otherwise.
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
TIMEOUT_MS = 60_000  # a machine may be busy
_WATCH = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.sample}`);
});
"""


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """One for all tests of the page. One thread: on a busy machine two would wait for each other, and people too."""
    with serving("--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")  # not for the session: Playwright's event loop is in the way of tests with their own
def chromium() -> Iterator[Any]:
    """A browser for the tests of a module."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if sync_api is None:
        pytest.skip("playwright is not installed (requirements/browser.txt)")
    if path is None:
        pytest.skip("there is no Chromium: install the system's package chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


class Page:
    """The page in a tab. What the tests do is what people do: keys, clicks, text."""

    def __init__(self, tab: Any) -> None:
        self.tab = tab

    def ask(self, text: str) -> None:
        """Write a message, send it, and wait for the end of the answer."""
        self.tab.get_by_role("textbox", name="Message", exact=True).fill(text)
        self.tab.keyboard.press("Enter")
        self.finished()

    def finished(self) -> None:
        self.tab.wait_for_selector(".message.assistant:last-child, .group:last-child")
        self.tab.wait_for_selector(".send:not(.busy)")

    def until(self, expression: str) -> None:
        """Until JavaScript finds it true. Playwright's own waiting is code from a string, which the page forbids."""
        end = time.monotonic() + TIMEOUT_MS / 1000
        while not self.tab.evaluate(expression):
            assert time.monotonic() < end, expression
            self.tab.wait_for_timeout(20)

    def settings(self, **values: str) -> None:
        """Fill fields of the settings, by id."""
        self.key(",")
        for name, value in values.items():
            field = self.tab.locator(f"#{name}")
            if field.evaluate("field => field.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
                field.blur()
        self.tab.keyboard.press("Escape")

    def key(self, key: str) -> None:
        """A shortcut: outside of text fields."""
        self.tab.evaluate("document.activeElement.blur()")
        self.tab.keyboard.press(key)

    def saved(self) -> None:
        """Until the browser has what was saved so far: a read waits for the writes before it."""
        self.tab.evaluate(
            """() => new Promise((done, failed) => {
                const opening = indexedDB.open("karat");
                opening.onerror = () => failed(opening.error);
                opening.onsuccess = () => {
                    const reading = opening.result.transaction(["conversations", "nodes", "details"]);
                    reading.oncomplete = () => { opening.result.close(); done(); };
                    reading.objectStore("conversations").count();
                };
            })"""
        )

    def texts(self, role: str = "") -> list[str]:
        found = self.tab.locator(f".message{role and '.' + role} > .text").all_text_contents()
        return [re.sub(r"\s+", " ", text).strip() for text in found]


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens the page of a server. At the end nothing may have offended against the policy, and no script failed."""

    @contextmanager
    def open_page(running: Running, path: str = "/", **options: Any) -> Iterator[Page]:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(TIMEOUT_MS)
        context.add_init_script(_WATCH)
        tab, troubles = context.new_page(), []
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on("dialog", lambda dialog: (troubles.append(f"a dialog: {dialog.message}"), dialog.accept()))
        tab.goto(running.url + path)
        try:
            yield Page(tab)
            assert tab.evaluate("window.violations") == []
            assert troubles == []
        finally:
            context.close()

    return open_page


@pytest.fixture
def page(opened: Callable[..., Any], server: Running) -> Iterator[Page]:
    """The page, ready for a message. Answers are short."""
    with opened(server) as made:
        made.tab.wait_for_selector(".welcome")
        made.settings(max_completion_tokens="24")
        yield made

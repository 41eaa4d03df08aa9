"""The pictures of the page in docs/images: python -m tools.screenshots [NAME …], or `make screenshots`.

They show the real model of the tests where it is there (tools/real_model.py), else the embedded one, in the system's
Chromium. The typeface is Inter if the system has it (Debian's package fonts-inter).
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tools.real_model import PLACE

FOLDER = Path(__file__).parents[1] / "docs" / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
TIMEOUT_MS = 400_000
WIDE = {"viewport": {"width": 1240, "height": 780}, "device_scale_factor": 1.5}
PHONE = {"viewport": {"width": 375, "height": 740}, "device_scale_factor": 2, "has_touch": True, "is_mobile": True}


@contextmanager
def serving() -> Iterator[str]:
    """The URL of a server."""
    named = [str(PLACE), "--served-model-name", "SmolLM2-135M-Instruct"] if PLACE.is_file() else []
    command = [sys.executable, "-m", "karat", "serve", "--port", "0", "--threads", "1", *named]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        yield next(found[1] for line in process.stderr if (found := re.search(r"(http\S+)/v1 serves", line)))
    finally:
        process.terminate()
        process.wait(60)


class Scene:
    """A tab with the page of a server."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(TIMEOUT_MS)
        self.tab = self.context.new_page()
        self.tab.goto(url)
        self.tab.wait_for_selector(".welcome h1")

    def settings(self, **values: str) -> None:
        self.key(",")
        for name, value in values.items():
            self.tab.locator(f"#{name}").fill(value)
            self.tab.locator(f"#{name}").blur()
        self.tab.keyboard.press("Escape")

    def key(self, key: str) -> None:
        self.tab.evaluate("document.activeElement.blur()")
        self.tab.keyboard.press(key)

    def ask(self, text: str) -> None:
        self.tab.locator("#message").fill(text)
        self.tab.keyboard.press("Enter")
        self.tab.wait_for_selector(".message.assistant:last-child, .group:last-child")
        self.tab.wait_for_selector(".send:not(.busy)")

    def take(self, name: str) -> None:
        """Write the picture, and close the tab."""
        self.tab.wait_for_timeout(400)
        self.tab.screenshot(path=FOLDER / f"{name}.png")
        self.context.close()
        print(f"docs/images/{name}.png: {(FOLDER / f'{name}.png').stat().st_size // 1024} kB")


def why(scene: Scene) -> None:
    """An answer as tokens, and what became of the candidates of one of them."""
    scene.settings(temperature="0.9", top_p="0.9", seed="11", max_completion_tokens="110")
    scene.ask("Tell me a short story about a fox and a lantern.")
    scene.key("w")
    shares = scene.tab.locator(".token[role=button]").evaluate_all("all => all.map((e) => e.lastChild.className)")
    place = next((i for i, kind in enumerate(shares) if i > 12 and re.search(r"s[23]", kind)), 3)
    scene.tab.locator(".token[role=button]").nth(place).click()
    scene.tab.mouse.move(5, 5)


def proof(scene: Scene) -> None:
    """A receipt that was replayed, and the comparisons with another seed and, where there are, other activations."""
    scene.settings(temperature="0.8", top_p="0.95", seed="3", max_completion_tokens="70")
    scene.ask("Why is the sky blue?")
    scene.key("p")
    scene.tab.get_by_role("button", name="Replay", exact=True).click()
    scene.tab.locator(".verdict").first.locator(".good").wait_for()
    scene.tab.get_by_role("button", name="Compare", exact=True).click()
    scene.tab.locator(".verdict").nth(1).locator(".two, .good").wait_for()
    if scene.tab.locator("#compare-activations").count():
        scene.tab.locator("#compare-activations").select_option("int8")
        scene.tab.get_by_role("button", name="Compare activations").click()
        scene.tab.locator(".verdict").last.locator(".two, .good").wait_for()
    scene.tab.locator(".verdict").last.scroll_into_view_if_needed()
    scene.tab.locator(".proof.body").evaluate("panel => panel.scrollTo(0, panel.scrollHeight)")


def live(scene: Scene) -> None:
    """What the server does while it answers twice at once."""
    scene.settings(temperature="0.8", seed="5", n="2", repetition_penalty="1.1", max_completion_tokens="60")
    scene.key("l")
    scene.ask("Who lives in the sea?")
    scene.settings(max_completion_tokens="1500")
    scene.key("l")
    scene.tab.locator("#message").fill("Tell me a long story about one of them.")
    scene.tab.keyboard.press("Enter")
    scene.tab.wait_for_timeout(3500)


def phone(scene: Scene) -> None:
    scene.settings(temperature="0.7", seed="4", max_completion_tokens="60")
    scene.ask("Name three birds, as a list.")


def phone_why(scene: Scene) -> None:
    phone(scene)
    scene.key("w")
    scene.tab.locator(".token[role=button]").nth(6).click()


SCENES = [
    ("page", why, {**WIDE, "color_scheme": "light"}),
    ("page-dark", why, {**WIDE, "color_scheme": "dark"}),
    ("page-proof", proof, {**WIDE, "color_scheme": "light"}),
    ("page-live", live, {**WIDE, "color_scheme": "dark"}),
    ("page-phone", phone, {**PHONE, "color_scheme": "light"}),
    ("page-phone-why", phone_why, {**PHONE, "color_scheme": "dark"}),
]


def main() -> None:
    names = [name for name, _, _ in SCENES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(names)} (default: all)")
    wanted = parser.parse_args().names or names
    if unknown := sorted(set(wanted) - set(names)):
        parser.error(f"no picture is called {', '.join(unknown)}; there are {', '.join(names)}")
    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser_path is None:
        sys.exit("there is no Chromium: install the system's package chromium")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with serving() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
        for name, play, options in SCENES:
            if name in wanted:
                scene = Scene(browser, url, **options)
                play(scene)
                scene.take(name)
        browser.close()


if __name__ == "__main__":
    main()

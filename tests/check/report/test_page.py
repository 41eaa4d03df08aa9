"""The report of a check: right figures, every picture inside the page, nothing that a browser would fetch.

Covers: karat.check.report.pictures.
"""

import base64
import re
import shlex
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat.check.model.checked import open_model
from karat.check.replay.forced import Local
from karat.check.report.page import page, visible
from karat.check.report.pictures import attention, png
from karat.check.session import session as sessions
from karat.check.session.session import CheckPlan, CheckSession
from karat.check.session.stage import overall
from karat.check.session.streamed import AttentionMap
from karat.check.stages.registry import run_stages
from karat.check.text.chat_audit import CHATS
from karat.cli import check_facts
from karat.cli.check_facts import gather
from karat.config import embedded_model_path
from karat.machine import processor
from karat.ops.api import Op, PagedAttention
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.reference import ReferenceOps
from karat.text import Tokenizer

VOID = {"meta", "img", "br", "line"}


class Faulty(ReferenceOps):
    """Multiplies the scores of layer 2 by half as much again."""

    def apply(self, op: Op[Any]) -> Any:
        if isinstance(op, PagedAttention) and ".2." in op.name:
            op = replace(op, scale=op.scale * 1.5)
        return super().apply(op)


class Reader(HTMLParser):
    """Tags that are open, and whatever a browser might fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.fetched += [str(v) for k, v in attrs if k in ("src", "href", "srcset", "data", "action", "xlink:href")]
        assert tag not in ("script", "link", "iframe", "object", "embed", "base")

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


LILY = "Once upon a time, there was a girl named Lily. She had a red ball."


def made(
    monkeypatch: pytest.MonkeyPatch,
    ops: ReferenceOps,
    prompt: str = LILY,
    chosen: tuple[str, ...] = ("layers", "logits", "health"),
    args: tuple[str, ...] = ("check", "<the model>"),
) -> str:
    monkeypatch.setattr(sessions, "create", lambda *_, **__: ops)
    plan = CheckPlan(model=open_model(None), prompt=prompt, num_tokens=24, executor="reference", stages=chosen)
    session = CheckSession(plan)
    done = list(run_stages(session))
    return page(session, done, gather(session, done, overall(done), args))


def test_a_wrong_run_is_shown_where_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    text = made(monkeypatch, Faulty("float32"))
    reader = Reader()
    reader.feed(text)
    assert not reader.open, "tags that are not closed"
    assert all(source.startswith("data:image/png;base64,") for source in reader.fetched)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", text), "the page asks for something else"
    words = " ".join(reader.texts)
    assert "karat check: bug" in words.replace("karat check:  ", "karat check: ") and "<the model>" in words
    assert "scale-wrong" in words and "scores are wrong" in words and "model.layers.2.self_attn, head" in words
    assert text.count("fill='#a8071a'") == 1, "one op is wrong, and its dot is red"
    assert text.count("<figure>") >= 1 and "Likeliest next tokens" in words
    assert text.count("rgb(190, 20, 35)") == 1


def test_a_right_run_flags_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = made(monkeypatch, ReferenceOps("float32"))
    assert "No head was flagged." in text and "fill='#a8071a'" not in text and "class='other'" not in text


def test_it_tells_what_was_asked_of_what_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """Command, options, prompt with its ids, rendered conversations, processor, kernels and versions."""
    monkeypatch.setattr(processor, "cpu_model", lambda: "A Fast One")
    monkeypatch.setattr(processor, "cpu_features", lambda: ["avx2", "f16c"])
    monkeypatch.setattr(check_facts, "_installed", lambda: {"transformers": "5.0", "torch": "2.9"})
    args = ("check", "--prompt", LILY, "--tokens", "24")
    text = made(monkeypatch, ReferenceOps("float32"), chosen=("tokens", "layers"), args=args)
    reader = Reader()
    reader.feed(text)
    words = " ".join(reader.texts)
    token_ids = Tokenizer.from_folder(embedded_model_path()).encode(LILY)[:24]
    ids = " ".join(map(str, token_ids))
    chat = Tokenizer.from_folder(embedded_model_path()).render_chat(CHATS["chat"])
    for expected in (
        shlex.join(["karat", *args]),
        LILY,
        ids,
        chat,
        "A Fast One",
        "avx2 f16c",
        "transformers 5.0; torch 2.9",
        "stages tokens layers",
        "against reference",
        f"steps 0 {len(token_ids) * 2 // 3}",
    ):
        assert expected in words, expected


def test_the_kernels_in_use_are_told() -> None:
    kernels = NativeOps().isa if unavailable_reason() is None else None
    facts = gather(CheckSession(CheckPlan(model=open_model(None), num_tokens=4)), [], "skipped", ("check",))
    assert facts["kernel_build"] == kernels and (facts["threads"] or 0) >= (kernels is not None)


def test_a_prompt_is_shown_and_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Markup stays text; what a page cannot hold or what turns text around is an escape."""
    prompt = (
        "<script>alert('x')</script><img src=http://x onerror=y> &amp; \x00\x1b[31m \u202eesrever\u2066 \t</td></table>"
    )
    text = made(
        monkeypatch, ReferenceOps("float32"), prompt, ("tokens", "layers", "logits"), ("check", prompt, "\udc80")
    )
    reader = Reader()
    reader.feed(text)
    assert not reader.open and all(source.startswith("data:image/png") for source in reader.fetched)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    shown = prompt.translate({0: "\\u0000", 0x1B: "\\u001b", 0x202E: "\\u202e", 0x2066: "\\u2066"})
    assert any(shown in part for part in reader.texts) and "\\udc80" in " ".join(reader.texts)
    text.encode()


def test_what_is_visible_stays_as_it_is() -> None:
    text = "a\tb\nc “d” é שלום 你好 👩\u200d🚀"
    assert visible(text) == text


def test_ops_that_were_fed_have_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = CheckPlan(model=open_model(None), num_tokens=8, executor="reference", stages=("layers",))
    session = CheckSession(plan)
    done = list(run_stages(session))
    assert session.results is not None
    session.results.forced["transformers"] = [
        Local("model.layers.2.mlp.act", 3.0, 0.25),
        Local("model.layers.4.mlp.act", 7.5, 0.125),
        Local("lm_head", 1.0, 0.5),
    ]
    text = page(session, done, gather(session, done, "numerics", ("check",)))
    assert "Each op on the inputs that transformers had" in text
    assert "<td>mlp.act</td><td class=n>4</td><td class=n>0.125</td><td class=n>7.5 ×</td>" in text
    assert "<td>lm_head</td><td class=n></td>" in text


def test_a_png_holds_the_pixels() -> None:
    """Read back by the specification: chunks with their sums, lines of filter 0."""
    pixels = np.random.default_rng(3).integers(0, 256, (5, 7, 3), np.uint8)
    data, chunks = png(pixels), {}
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at = 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + body),)
        chunks[kind] = body
        at += 12 + length
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (7, 5, 8, 2, 0, 0, 0) and chunks[b"IEND"] == b""
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(5, 22)
    assert not lines[:, 0].any()
    np.testing.assert_array_equal(lines[:, 1:].reshape(5, 7, 3), pixels)


def test_an_attention_map_is_black_where_a_weight_is_one() -> None:
    shown = attention(AttentionMap("model.layers.0.self_attn.weights", 3, "why <so>", np.eye(4)))
    assert "model.layers.0.self_attn, head 3: why &lt;so&gt;" in shown
    (encoded,) = re.findall("base64,([^']+)'", shown)
    data = base64.b64decode(encoded)
    start = data.index(b"IDAT") + 4
    lines = np.frombuffer(zlib.decompress(data[start:-12]), np.uint8).reshape(4, 13)[:, 1::3]
    np.testing.assert_array_equal(lines, 255 - 255 * np.eye(4, dtype=np.uint8))


def title_in_chromium(folder: Path, text: str, script: str) -> str:
    """What a script gives, once a page is there that is opened with every request sent to a proxy that is not."""
    path = folder / "page.html"
    made = f"<script>onload = () => {{ document.title = {script} }}</script>"
    path.write_text(text.replace("</body></html>", f"{made}</body></html>"), encoding="utf-8")
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--proxy-server=127.0.0.1:9", "--dump-dom")
    profile = f"--user-data-dir={folder / 'profile'}"
    command = ["chromium", *options, "--virtual-time-budget=2000", profile, path.as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    found = re.search("<title>(.*?)</title>", done.stdout.decode())
    assert found, done.stderr[-2000:]
    return found[1]


needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium for the page")


@needs_chromium
def test_a_browser_draws_it_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All pictures are drawn, and with every request sent to a proxy that is not there, none fails."""
    text = made(monkeypatch, Faulty("float32"))
    drawn = "[...document.images].every(i => i.complete && i.naturalWidth > 0)"
    fetched = "performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length"
    assert title_in_chromium(tmp_path, text, f"{drawn} + ' ' + {fetched}") == "true 0"


@needs_chromium
def test_stages_can_be_read_on_a_telephone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At 420 pixels what a stage says has the width of the page, and nothing of the page sticks out of it."""
    text = made(monkeypatch, Faulty("float32"), chosen=("tokens", "layers", "logits", "health"))
    narrowest = "Math.min(...[...d.querySelectorAll('td.lines')].map(e => e.offsetWidth))"
    widths = f"(d => [d.defaultView.innerWidth, d.body.scrollWidth, {narrowest}].join(' '))(frames[0].document)"

    def measured(width: int) -> list[int]:
        """Of the page in a frame of this width: a window may not be so narrow."""
        frame = f"<iframe style='width: {width}px; height: 900px; border: 0' srcdoc='{escape(text)}'></iframe>"
        outer = f"<!doctype html><html><title>none</title><body>{frame}</body></html>"
        return [int(number) for number in title_in_chromium(tmp_path, outer, widths).split()]

    window, page_width, lines = measured(420)
    assert page_width <= window == 420 and lines >= 0.85 * window
    window, page_width, lines = measured(1200)
    assert page_width <= window == 1200 and 0.4 * window < lines < 0.85 * window, "a table, where there is room"

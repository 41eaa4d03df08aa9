"""The bar of a large model that is loaded."""

import io

import pytest

from karat.cli.loading_bar import LEAST_BYTES, LoadingBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, total: int) -> str:
    with LoadingBar(stream) as bar:
        for part in (0.25, 0.5, 1):
            bar(int(part * total), total)
    return stream.getvalue()


def test_a_large_model_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    text = shown(Terminal(), 4 * LEAST_BYTES)
    assert "loading" in text and "1.1/1.1 GB" in text


def test_nothing_of_a_small_one_nor_into_a_pipe() -> None:
    assert shown(Terminal(), LEAST_BYTES - 1) == "" == shown(io.StringIO(), 4 * LEAST_BYTES)

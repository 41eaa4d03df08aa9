"""Styles, tables and text made safe."""

import errno
import io
import os

import pytest

from karat.cli.terminal import bytes_text, columns, emit, printable, styled
from karat.errors import KaratError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_control_characters_become_visible() -> None:
    assert printable("a\x1b]0;title\x07\tb\nc\rd\x7f\x9b2J é 狐") == "a␛]0;title␇\tb\nc␍d␡\ufffd2J é 狐"


def test_generated_text_is_exact_in_a_pipe_and_safe_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, expected in ((io.StringIO(), "\x1b[31mred\r"), (Terminal(), "␛[31mred␍")):
        monkeypatch.setattr("sys.stdout", stream)
        emit("\x1b[31mred\r")
        assert stream.getvalue() == expected


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space or write elsewhere"),
        (errno.EFBIG, "raise ulimit -f or write elsewhere"),
        (errno.EBADF, "leave stdout open, or redirect it to a file or a pipe"),
        (errno.EIO, "write elsewhere"),
    ],
)
def test_output_that_fails_is_an_error_of_ours_with_advice_that_helps(
    number: int, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(io.StringIO):
        def flush(self) -> None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr("sys.stdout", Failing())
    with pytest.raises(KaratError) as caught:
        emit("text")
    assert str(caught.value) == f"the output cannot be written ({os.strerror(number)}); {advice}"


@pytest.mark.parametrize(
    ("variables", "has_style"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_styles_are_for_terminals_that_show_them(
    variables: dict[str, str], has_style: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert styled("x", "dim", Terminal()) == ("\x1b[2mx\x1b[0m" if has_style else "x")
    assert styled("x", "dim", io.StringIO()) == "x"


def test_columns() -> None:
    assert columns([("a", "1"), ("bcd", "22")], right="1") == "a     1\nbcd  22"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1536, "1.54 kB"),
        (21_125_120, "21.1 MB"),
        (3 * 10**9, "3 GB"),
        (999_600, "1 MB"),
        (2 * 10**13, "20 TB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert bytes_text(size) == text

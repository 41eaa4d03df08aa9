r"""Escapes of a prompt: as llama.cpp reads them (common's string_process_escapes), with -e alone."""

import pytest

from karat.cli.escapes import has_escapes, unescaped
from karat.errors import RequestError
from tests.cli.conftest import Karat


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (r"a\nb", "a\nb"),
        (r"\r\t\'\"\\", "\r\t'\"\\"),
        (r"\\n", r"\n"),
        (r"\xc3\xa9\x41", "éA"),
        (r"\q \x4 \u0041 \0", r"\q \x4 \u0041 \0"),
        ("é\\", "é\\"),
    ],
)
def test_what_they_mean(text: str, meant: str) -> None:
    assert unescaped(text) == meant
    assert has_escapes(text) == (text != meant)


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(RequestError, match="escapes make no UTF-8"):
        unescaped(r"a\xff")


def test_they_are_read_when_asked_and_named_when_not(karat_here: Karat) -> None:
    ask = ["run", "-n", "4", "--json"]
    read, plain, kept = (karat_here(*ask, *more, "-p", r"One.\nTwo") for more in (["-e"], [], ["--no-escape"]))
    direct = karat_here(*ask, "-p", "One.\nTwo")
    assert read.stdout.split('"usage"')[0] == direct.stdout.split('"usage"')[0] != plain.stdout.split('"usage"')[0]
    assert r"-e reads \n" in plain.stderr
    for done in (read, kept, direct, karat_here(*ask, "-q", "-p", r"One.\nTwo")):
        assert "-e reads" not in done.stderr
    assert karat_here(*ask, "-q", stdin=r"One.\nTwo").stderr == ""

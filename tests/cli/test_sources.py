"""How the words of `karat run` are told apart."""

import io
from pathlib import Path

import pytest

from karat.cli.sources import Source, looks_like_model, resolve
from karat.errors import RequestError, UsageError


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, with one sub-folder `tale`, and a home with a folder `model`."""
    (tmp_path / "tale").mkdir()
    (tmp_path / "home" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


class FakeStdin(io.TextIOWrapper):
    def __init__(self, content: bytes, *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def pipe(monkeypatch: pytest.MonkeyPatch, content: bytes, *, terminal: bool = False) -> None:
    monkeypatch.setattr("sys.stdin", FakeStdin(content, terminal=terminal))


@pytest.mark.parametrize(
    "word", ["tale", "./tale", "./nowhere", "/no/such/folder", "../x", "~/model", "org/name", "a.b/c-d_1@v2", "and/or"]
)
def test_words_taken_for_a_model(word: str) -> None:
    assert looks_like_model(word)


@pytest.mark.parametrize(
    "word",
    ["Once upon a time", "fox", "", "tale ", "a/b/c", "./two words", "and/or not", "1/2 cup", "~nobody", "x" * 5000,
     "a\0b", "line\nbreak", "größe/maß", "-"],
)  # fmt: skip
def test_words_taken_for_a_prompt(word: str) -> None:
    assert looks_like_model(word) is None


@pytest.mark.parametrize(
    ("words", "model", "prompt", "expected"),
    [
        (["Hello you"], None, None, (None, "Hello you")),
        (["tale"], None, None, ("tale", "piped")),
        (["org/name"], None, None, ("org/name", "piped")),
        (["Hello", "you"], None, None, ("Hello", "you")),
        (["org/name", "-"], None, None, ("org/name", "piped")),
        (["-"], None, None, (None, "piped")),
        ([], None, None, (None, "piped")),
        (["tale"], "m", None, ("m", "tale")),
        (["Hello"], None, "p", ("Hello", "p")),
        ([], "m", "p", ("m", "p")),
        ([], "m", "-", ("m", "piped")),
        ([], None, "and/or", (None, "and/or")),
        ([], None, "", (None, "")),
    ],
)
def test_model_and_prompt(
    words: list[str], model: str | None, prompt: str | None, expected: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pipe(monkeypatch, b"piped\n")
    source = resolve(words, model, prompt)
    assert (source.model, source.prompt) == expected


@pytest.mark.parametrize(
    ("words", "model", "prompt"),
    [(["a", "b", "c"], None, None), (["a", "b"], "m", None), (["a", "b"], None, "p"), (["a"], "m", "p"),
     ("Once upon a time".split(), None, None)],
)  # fmt: skip
def test_too_many_words_are_refused_with_the_quotes_that_are_missing(
    words: list[str], model: str | None, prompt: str | None
) -> None:
    with pytest.raises(UsageError, match=f'{len(words)} words .* karat run "{" ".join(words)}"'):
        resolve(words, model, prompt)


def test_a_single_word_says_how_it_was_taken_and_how_to_have_it_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"piped")
    assert resolve(["and/or"], None, None).reading == (
        "'and/or' was taken for a model, because it has the form org/name; to give it as the prompt, write -p 'and/or'"
    )
    assert "taken for the prompt" in (resolve(["fox"], None, None).reading or "")
    assert resolve(["org/name", "fox"], None, None).reading is None


@pytest.mark.parametrize(
    ("content", "prompt"),
    [(b"a\n", "a"), (b"a\r\n", "a"), (b"a\n\n", "a\n"), (b" a ", " a "), ("é\n".encode(), "é"), (b"\n", "")],
)
def test_a_pipe_loses_one_line_end_and_nothing_else(
    content: bytes, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, content)
    assert resolve([], None, None) == Source(None, prompt, is_piped=True)


def test_a_pipe_is_left_alone_when_there_is_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert resolve(["Hello"], None, None).prompt == "Hello"


@pytest.mark.parametrize(("content", "terminal"), [(b"", False), (b"typed", True)])
def test_no_prompt_is_a_usage_error(content: bytes, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, content, terminal=terminal)
    with pytest.raises(UsageError, match="no prompt"):
        resolve([], None, None)


def test_a_dash_reads_even_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"typed\n", terminal=True)
    assert resolve(["-"], None, None).prompt == "typed"


def test_text_that_is_not_utf8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"caf\xe9")
    with pytest.raises(RequestError, match="byte 3"):
        resolve([], None, None)
    with pytest.raises(RequestError, match="UTF-8"):
        resolve(["caf\udce9 au lait"], None, None)

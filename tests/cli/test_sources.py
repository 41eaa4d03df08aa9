"""How the words of `karat run` are told apart."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from karat.checkpoint import resolve as resolve_model
from karat.cli import sources
from karat.cli.sources import ModelSource, looks_like_model, resolve
from karat.errors import CapacityError, CheckpointError, HubError, RequestError, UsageError


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a sub-folder `tale` and a file `blob`, and a home with a folder `model`."""
    (tmp_path / "blob").touch()
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
    "word",
    [
        "tale",
        "blob",
        "no-such.gguf",
        "./tale",
        "./nowhere",
        "/no/such/folder",
        "../x",
        "~/model",
        "org/name",
        "hf.co/org/name:Q4_K_M",
        "https://huggingface.co/org/name",
        "https://huggingface.co/org/name/resolve/main/name-Q4_0.gguf",
        "a.b/c-d_1@v2",
        "and/or",
    ],
)
def test_words_taken_for_a_model(word: str) -> None:
    assert looks_like_model(word)


@pytest.mark.parametrize(
    "word",
    [
        "Once upon a time",
        "fox",
        "",
        "tale ",
        "a/b/c",
        "./two words",
        "and/or not",
        "1/2 cup",
        "~nobody",
        "x" * 5000,
        "a\0b",
        "line\nbreak",
        "größe/maß",
        "-",
        "About no-such.gguf",
        "gguf",
    ],
)
def test_words_taken_for_a_prompt(word: str) -> None:
    assert looks_like_model(word) is None


@pytest.mark.parametrize(
    ("words", "model", "prompt", "expected"),
    [
        (["Hello you"], None, None, (None, "Hello you")),
        (["tale"], None, None, ("tale", "piped")),
        (["org/name"], None, None, ("org/name", "piped")),
        (["org/name", "you"], None, None, ("org/name", "you")),
        (["tale", "you"], None, None, ("tale", "you")),
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
    words: list[str],
    model: str | None,
    prompt: str | None,
    expected: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe(monkeypatch, b"piped\n")
    source = resolve(words, model, prompt)
    assert (source.model, source.prompt) == expected


@pytest.mark.parametrize(
    ("words", "model", "prompt"),
    [
        (["a", "b", "c"], None, None),
        (["a", "b"], "m", None),
        ("Once upon a time".split(), None, None),
    ],
)
def test_too_many_words_are_refused_with_the_quotes_that_are_missing(
    words: list[str], model: str | None, prompt: str | None
) -> None:
    given = "" if model is None else f"-m {model} "
    with pytest.raises(UsageError, match=f'{len(words)} words .* karat run {given}"{" ".join(words)}"'):
        resolve(words, model, prompt)


@pytest.mark.parametrize(
    ("words", "model", "beside"), [(["a", "b"], None, "'a b' beside -p: "), (["a"], "m", "'a' beside -m and -p: ")]
)
def test_words_beside_the_prompt_are_refused(words: list[str], model: str | None, beside: str) -> None:
    with pytest.raises(UsageError, match=beside):
        resolve(words, model, "p")


def test_two_words_of_which_the_first_is_no_model_need_quotes() -> None:
    with pytest.raises(UsageError, match=r"'hello' is no model: .* karat run \"hello world\""):
        resolve(["hello", "world"], None, None)


@pytest.mark.parametrize("words", [["smollm2:135m", "Hi there"], ["nope.bin", "Hi"], ["mistral", "Hi"], ["x", "a b"]])
def test_a_model_that_is_not_here_is_no_missing_quote(words: list[str]) -> None:
    with pytest.raises(HubError, match=rf"'{words[0]}': no such folder or file, .* ~/.ollama/models/blobs/sha256-"):
        resolve(words, None, None)


@pytest.mark.parametrize("word", ["mistral", "smollm2", "llama3.2", "Qwen2.5", "phi", "deepseek-r1:7b", "nope.bin"])
def test_a_lone_word_like_a_name_is_said_to_be_the_prompt(word: str) -> None:
    source = resolve([word], None, None)
    assert source.model is None and source.prompt == word
    assert source.remark and source.remark.endswith(f"goes on with it; name a model by -m {word}")


@pytest.mark.parametrize("word", ["Once", "philosophy", "Hello", "glow", "mistrals"])
def test_other_words_are_prompts_without_a_remark(word: str) -> None:
    assert resolve([word], None, None).remark is None


def test_a_single_word_says_how_it_was_taken_and_how_to_have_it_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"piped")
    assert resolve(["and/or"], None, None).reading == (
        "'and/or' was taken for a model, because it has the form org/name; to give it as the prompt, write -p 'and/or'"
    )
    assert resolve(["fox"], None, None).reading is None
    assert resolve(["org/name", "fox"], None, None).reading is None


@pytest.mark.parametrize(
    ("content", "prompt"),
    [(b"a\n", "a"), (b"a\r\n", "a"), (b"a\n\n", "a\n"), (b" a ", " a "), ("é\n".encode(), "é"), (b"\n", "")],
)
def test_a_pipe_loses_one_line_end_and_nothing_else(
    content: bytes, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, content)
    assert resolve([], None, None) == ModelSource(None, prompt, is_piped=True)


def test_a_pipe_is_left_alone_when_there_is_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert resolve(["Hello"], None, None).prompt == "Hello"


@pytest.mark.parametrize(("content", "terminal"), [(b"", False), (b"typed", True)])
def test_no_prompt_is_a_usage_error(content: bytes, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, content, terminal=terminal)
    with pytest.raises(UsageError, match="no prompt"):
        resolve([], None, None)


def test_a_model_without_a_prompt_on_a_terminal_may_want_a_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"", terminal=True)
    with pytest.raises(UsageError, match="to talk with the model: karat chat tale"):
        resolve(["tale"], None, None)


def test_a_dash_reads_even_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"typed\n", terminal=True)
    assert resolve(["-"], None, None).prompt == "typed"


def test_text_that_is_not_utf8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"caf\xe9")
    with pytest.raises(RequestError, match="byte 3"):
        resolve([], None, None)
    with pytest.raises(RequestError, match="UTF-8"):
        resolve(["caf\udce9 au lait"], None, None)


def test_a_misspelt_file_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the pipe is read, which may be empty."""
    pipe(monkeypatch, b"")
    for words, model in ((["modle.gguf"], None), ([], "modle.gguf"), (["./nowhere"], None)):
        with pytest.raises(CheckpointError, match=r"(modle\.gguf|nowhere)': does not exist"):
            resolve(words, model, None)
    with pytest.raises(CheckpointError, match=r"'modle\.gguf': does not exist"):
        resolve_model("modle.gguf")


def test_a_pipe_without_end_is_read_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_PIPE_BYTES", 1000)
    pipe(monkeypatch, b"x" * 1000)
    assert resolve([], None, None).prompt == "x" * 1000
    with Path("/dev/zero").open() as zeros:
        monkeypatch.setattr("sys.stdin", zeros)
        with pytest.raises(CapacityError, match="more than 1000 bytes"):
            resolve([], None, None)


def test_utf8_is_utf8_without_a_locale() -> None:
    """Python takes each byte beyond ASCII for half a surrogate pair then."""
    program = (
        "import sys; from karat.cli.sources import resolve; print(ascii(resolve(sys.argv[1:], None, None).prompt))"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    def run(word: bytes) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, "-c", program, word], env=environment, capture_output=True, text=True)

    assert run("größe ☃".encode()).stdout.strip() == ascii("größe ☃")
    assert "RequestError: the prompt is not valid UTF-8" in run(b"gr\xf6sse").stderr

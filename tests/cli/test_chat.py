"""`karat chat`: entries, commands, history, and a Ctrl-C that stops the answer and not the program.

Covers: karat.cli.chat_input, karat.cli.chat_session, karat.cli.conversation.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from karat.cli import chat_input
from karat.cli.chat_input import line_reader, read_entry
from karat.cli.conversation import SETTINGS, Conversation
from karat.errors import CapacityError, RequestError, UsageError
from tests.cli.alphabet_model import ALPHABET, TEMPLATE
from tests.cli.conftest import Karat
from tests.cli.pseudo_terminal import CTRL_C, CTRL_D, PseudoTerminal


def lines(*texts: str) -> Callable[[str], str]:
    """A reader of these lines, then of the end of the input."""
    left: Iterator[str] = iter(texts)

    def read_line(prompt: str) -> str:
        for text in left:
            return text
        raise EOFError

    return read_line


@pytest.mark.parametrize(
    ("entered", "entry"),
    [
        (["Hello"], "Hello"),
        (["", "  ", "Hello "], "Hello "),
        (["a\\", "b\\", "c", "d"], "a\nb\nc"),
        (["a\\"], "a"),
        (['"""', "a", "", "b\\", '"""', "c"], "a\n\nb\\"),
        (["'''a", "b'''"], "a\nb"),
        (['"""a"""'], "a"),
        (['  """a', '"b"', '"""  '], 'a\n"b"'),
        (['"""', "'''", '"""'], "'''"),
        (["/set a b"], "/set a b"),
    ],
)
def test_entries(entered: list[str], entry: str) -> None:
    assert read_entry(lines(*entered)) == entry


def test_the_end_of_the_input() -> None:
    with pytest.raises(EOFError):
        read_entry(lines("", " "))
    with pytest.raises(UsageError, match="close it with '''"):
        read_entry(lines("'''a", "b"))


def test_a_line_without_end_is_read_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_input, "MAX_PIPE_BYTES", 1000)
    with Path("/dev/zero").open() as zeros:
        monkeypatch.setattr("sys.stdin", zeros)
        with pytest.raises(CapacityError, match="more than 1000 bytes"):
            read_entry(line_reader())


def test_settings_are_checked_when_they_are_set() -> None:
    talk = Conversation(None, {"temperature": 0.5})
    for name, text, value in [
        ("top_k", "7", 7),
        ("top-p", "0.5", 0.5),
        ("ignore_eos", "true", True),
        ("stop", "The end", "The end"),
        ("stop", "5", "5"),
        ("bad_words", "5", "5"),
        ("bad_words_ids", "[[5, 6]]", [[5, 6]]),
        ("stop", '["a", "b"]', ["a", "b"]),
        ("logit_bias", '{"7": -1}', {7: -1}),
        ("allowed_token_ids", "[65, 66]", [65, 66]),
        ("structured_outputs", '{"regex": "[a-z]+"}', {"regex": "[a-z]+"}),
    ]:
        talk.set(name, text)
        assert talk.settings[name.replace("-", "_")] == value
    talk.set("temperature", "default")
    assert "temperature" not in talk.settings and talk.settings["top_k"] == 7
    before = dict(talk.settings)
    for name, text in [
        ("temperature", "hot"),
        ("top_p", "NaN"),
        ("top_k", "9" * 5000),
        ("seed", "-2"),
        ("structured_outputs", "5"),
    ]:
        with pytest.raises(RequestError, match=name):
            talk.set(name, text)
    for name in ("n", "logprobs", "nonsense", "__class__"):
        with pytest.raises(UsageError, match="no such parameter; there are temperature, "):
            talk.set(name, "1")
    assert talk.settings == before and len(SETTINGS) == 31


def prompt_tokens(*messages: tuple[str, str]) -> int:
    """Tokens of the ChatML prompt, counted without Karat: a byte each, and special tokens."""
    text = "".join(f"<{role}\n{content}>\n" for role, content in messages) + "<assistant\n"
    return len(text.encode())


def test_a_conversation_through_a_pipe(alphabet: Path, karat: Karat) -> None:
    assert TEMPLATE.count("<|im_start|>") == 2, "as prompt_tokens has it"
    done = karat("chat", str(alphabet), "--system", "Sing.", stdin='Hi\n\n"""two\nlines"""\n//ö\n')
    assert (done.returncode, done.stdout) == (0, f"{ALPHABET}\n" * 3)
    turns = [("system", "Sing."), ("user", "Hi"), ("assistant", ALPHABET), ("user", "two\nlines")]
    turns += [("assistant", ALPHABET), ("user", "/ö")]
    counted = [int(number) for number in re.findall(r"(\d+) prompt tokens", done.stderr)]
    assert counted == [prompt_tokens(*turns[:2]), prompt_tokens(*turns[:4]), prompt_tokens(*turns)]
    assert f"context {counted[0] + 27} of 20000" in done.stderr


@pytest.mark.parametrize("shares", [True, False])
def test_what_a_conversation_has_said_is_not_computed_again(shares: bool, alphabet: Path, karat_here: Karat) -> None:
    """All before the new message but for the end of the last answer and what fills no block of 16."""
    options = [] if shares else ["--no-enable-prefix-caching"]
    done = karat_here("chat", str(alphabet), *options, stdin="one\ntwo\n")
    assert (done.returncode, done.stdout) == (0, f"{ALPHABET}\n" * 2)
    known = (prompt_tokens(("user", "one")) + len(ALPHABET)) // 16 * 16
    assert re.findall(r"\d+ prompt tokens \((\d+) cached, \d", done.stderr) == [str(known)] * shares


def test_control_tokens_of_a_message_stay_text_if_asked(alphabet: Path, karat_here: Karat) -> None:
    hostile = "Hi<|im_end|>"
    counts = []
    for flag in ([], ["--sanitize-control-tokens"]):
        done = karat_here("chat", str(alphabet), *flag, stdin=f"{hostile}\n")
        counts += [int(number) for number in re.findall(r"(\d+) prompt tokens", done.stderr)]
    obeyed = prompt_tokens(("user", "Hi>"))
    assert counts == [obeyed, obeyed - 1 + len("<|im_end|>")]


def test_commands(alphabet: Path, tmp_path: Path, karat_here: Karat) -> None:
    file = tmp_path / "talk.json"
    entries = [
        "/system Sing.",
        "one",
        "/set stop k",
        "/retry",
        "/show",
        f"/save {file}",
        "/clear",
        "/system -",
        "two",
        f"/save {file}",
        "/help",
        "/exit",
        "never sent",
    ]
    done = karat_here("chat", "-q", "-m", str(alphabet), stdin="\n".join(entries))
    assert (done.returncode, done.stdout) == (0, f"{ALPHABET}\nabcdefghij\nabcdefghij\n")
    assert json.loads(file.read_text()) == {
        "model": str(alphabet),
        "settings": {"stop": "k"},
        "messages": [{"role": "user", "content": "two"}, {"role": "assistant", "content": "abcdefghij"}],
    }
    num_tokens = prompt_tokens(("system", "Sing."), ("user", "one")) + len("abcdefghijk")
    assert f"{num_tokens} of 20000 tokens, messages answered: 1" in done.stderr
    assert "stop='k'" in done.stderr and "temperature=0.5" in done.stderr and "/retry" in done.stderr


@pytest.mark.parametrize(
    ("entry", "code", "words"),
    [
        ("/frob", 2, "no command /frob; /help lists them"),
        ("/set temperature", 2, "/set needs a name and a value"),
        ("/set temperature 101", 7, "temperature=101"),
        ("/retry", 2, "nothing was answered yet"),
        ("/save", 2, "/save needs the name of a file"),
        ("/save EXISTS", 2, "exists already"),
        ("/save /no/such/folder/x", 1, "cannot be written (No such file or directory)"),
        ("'''open", 2, "close it with '''"),
        (b"caf\xe9", 7, "not UTF-8"),
    ],
)
def test_in_a_pipe_the_first_error_ends_it(
    entry: str | bytes, code: int, words: str, alphabet: Path, tmp_path: Path, karat_here: Karat
) -> None:
    existing = tmp_path / "existing"
    existing.write_text("mine")
    stdin = entry if isinstance(entry, bytes) else entry.replace("EXISTS", str(existing)).encode()
    done = karat_here("chat", "-q", str(alphabet), stdin=stdin + b"\nnever answered\n")
    assert done.returncode == code and words in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == "" and existing.read_text() == "mine"


def test_a_full_context_is_said_and_nothing_is_dropped(alphabet: Path, karat_here: Karat) -> None:
    longest = prompt_tokens(("user", "one")) + 10
    done = karat_here("chat", "-q", str(alphabet), "--max-model-len", str(longest), stdin="one\ntwo\n")
    assert done.returncode == 8
    assert done.stdout == "abcdefghij\n"
    cut, full = done.stderr.splitlines()
    assert cut == "the answer is cut off: the context is full: /clear starts over"
    num_tokens = prompt_tokens(("user", "one"), ("assistant", "abcdefghij"), ("user", "two"))
    assert (
        f"the conversation has {num_tokens} tokens, and there is room for {longest}; the message was not sent" in full
    )


def test_the_models_own_limit_gives_way_to_the_context_and_the_users_does_not(
    alphabet: Path, tmp_path: Path, karat_here: Karat
) -> None:
    import shutil

    folder = shutil.copytree(alphabet, tmp_path / "limited")
    (folder / "generation_config.json").write_text('{"max_new_tokens": 20}')
    longest = str(prompt_tokens(("user", "one")) + 10)
    assert karat_here("chat", "-q", str(folder), stdin="one\n").stdout == f"{ALPHABET[:20]}\n"
    assert (
        karat_here("chat", "-q", str(folder), "--max-model-len", longest, stdin="one\n").stdout == f"{ALPHABET[:10]}\n"
    )
    done = karat_here("chat", "-q", str(folder), "--max-model-len", longest, "--max-tokens", "20", stdin="one\n")
    assert done.returncode == 8 and "max_tokens=20" in done.stderr and done.stdout == ""


def test_ctrl_c_stops_the_answer_and_the_program_lives(alphabet: Path) -> None:
    with PseudoTerminal("chat", str(alphabet), "--ignore-eos") as terminal:
        terminal.wait_for("Ctrl-D leaves\n> ")
        terminal.type("Hi\n")
        terminal.wait_for(ALPHABET + "ABC")
        terminal.type(CTRL_C)
        stopped = terminal.wait_for("> ")
        assert "Stopped. The partial answer is kept" in stopped and "· interrupted ·" in stopped
        terminal.type("/set ignore_eos false\n")
        terminal.wait_for("> ")
        terminal.type("/show\n")
        shown = terminal.wait_for("> ")
        assert "messages answered: 1" in shown
        (used,) = re.findall(r"(\d+) of 20000 tokens", shown)
        assert f"· context {used} of 20000" in stopped and int(used) > prompt_tokens(("user", "Hi")) + len(ALPHABET)
        terminal.type("Again\n")
        assert ALPHABET + "\n" in terminal.wait_for("> ")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end()[0] == 0


def test_ctrl_c_at_the_prompt_gives_a_hint_and_then_leaves(alphabet: Path) -> None:
    with PseudoTerminal("chat", "-q", str(alphabet), echo=True) as terminal:
        terminal.wait_for("> ")
        terminal.type("half a mess")
        terminal.wait_for("half a mess")
        terminal.interrupt_when_idle()
        assert "Ctrl-C" not in terminal.wait_for("> "), "it took back what was typed"
        terminal.interrupt_when_idle()
        assert "Ctrl-C once more leaves" in terminal.wait_for("> ")
        terminal.type("and another half")
        terminal.wait_for("and another half")
        terminal.interrupt_when_idle()
        assert "Ctrl-C" not in terminal.wait_for("> "), "typing took the hint back, too"
        terminal.type("Hi\n")
        assert ALPHABET in terminal.wait_for("\n> ")
        terminal.interrupt_when_idle()
        terminal.wait_for("Ctrl-C once more leaves")
        terminal.wait_for("> ")
        terminal.interrupt_when_idle()
        code, text = terminal.wait_for_end()
    assert code == 130 and "Traceback" not in text


def test_on_a_terminal_errors_do_not_end_it(alphabet: Path) -> None:
    with PseudoTerminal("chat", "-q", str(alphabet), "--max-model-len", "60") as terminal:
        terminal.wait_for("> ")
        for entry, words in [
            ("/frob", "no command /frob"),
            ("/set top_p 2", "top_p=2: expected"),
            ("x" * 60, "the context is full"),
            ("Hi", ALPHABET),
            ("Hi", "the context is full"),
            ("/clear", "forgotten"),
            ("Hi \\\nyou", ALPHABET),
            ("/set max_tokens 50", "max_tokens = 50"),
            ("/retry", "max_tokens=50 after"),
            ("/show", "messages answered: 1"),
            ("/set max_tokens default", "max_tokens = None, the model's own"),
            ("'''\na\nb\n'''", "context is full"),
            ("/exit", ""),
        ]:
            terminal.type(entry + "\n")
            if words:
                terminal.wait_for(words)
                terminal.wait_for("> ")
        assert terminal.wait_for_end()[0] == 0


def test_with_stdout_elsewhere_prompts_stay_on_the_terminal(alphabet: Path, tmp_path: Path) -> None:
    with PseudoTerminal("chat", "-q", str(alphabet), stdout=tmp_path / "log") as terminal:
        terminal.wait_for("> ")
        terminal.type("Hi\n")
        terminal.wait_for("> ")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end()[0] == 0
    assert (tmp_path / "log").read_text() == f"{ALPHABET}\n"


def test_the_tokenizer_counts_bytes(alphabet: Path) -> None:
    """What prompt_tokens relies on."""
    tokenizer = Tokenizer.from_file(str(alphabet / "tokenizer.json"))
    assert len(tokenizer.encode("<|im_start|>user\nö<|im_end|>\n").ids) == len("<user\nö>\n".encode())

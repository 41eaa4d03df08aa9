"""`karat chat` as a person at a terminal has it: pasted texts, a prompt that takes long, what is typed ahead.

Covers: karat.cli.interrupts, karat.cli.prefill.
"""

import json
import time
from pathlib import Path

import pytest

from karat import LLM, SamplingParams
from karat.cli.conversation import Conversation
from karat.cli.interrupts import Interrupt
from karat.cli.prefill import PromptWatch
from karat.engine.scheduling.step_budget import Pace
from karat.errors import RequestError, UsageError
from karat.ops.executor import AtOnce
from karat.ops.native import unavailable_reason
from tests.cli.alphabet_model import ALPHABET
from tests.cli.conftest import Karat
from tests.cli.pseudo_terminal import CTRL_C, CTRL_D, PseudoTerminal


def pasted(text: str) -> str:
    """As a terminal sends it to a program that asked for bracketed paste."""
    return f"\x1b[200~{text}\x1b[201~"


def test_pasted_lines_are_one_message(alphabet: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    texts = ["one\ntwo\n\nthree", "/usr/bin and\n/usr/lib"]
    with PseudoTerminal("chat", "-q", str(alphabet)) as terminal:
        terminal.wait_for("> ")
        assert "\x1b[?2004h" in terminal.raw, "the terminal is told to say what is pasted"
        for text in texts:
            terminal.type(pasted(text + "\n") + "\n")
            assert terminal.wait_for("\n> ").count(ALPHABET) == 1
        terminal.type(f"/save {file}\n")
        terminal.wait_for("> ")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end()[0] == 0
    messages = json.loads(file.read_text())["messages"]
    assert [message["content"] for message in messages if message["role"] == "user"] == texts


def test_ctrl_c_in_a_long_prompt_stops_it_and_progress_is_shown(alphabet: Path) -> None:
    """The prompt takes about 15 seconds on the reference executor, its steps about half a second."""
    with PseudoTerminal("chat", str(alphabet), "--executor", "reference") as terminal:
        terminal.wait_for("\n> ")
        terminal.type(pasted("x" * 9000) + "\n")
        terminal.wait_for("of 9,0")
        before = time.monotonic()
        terminal.type(CTRL_C)
        stopped = terminal.wait_for("\n> ")
        assert time.monotonic() - before < 10
        assert "Stopped. There was no text yet, so the message is not kept" in stopped and "· interrupted ·" in stopped
        assert ALPHABET not in stopped and "context 0 of 20000" in stopped
        terminal.type("Hi\n")
        assert ALPHABET in terminal.wait_for("\n> ")
        terminal.type("/show\n")
        assert "messages answered: 1" in terminal.wait_for("\n> ")


@pytest.mark.skipif(unavailable_reason() is not None, reason="steps are cut for the native executor")
def test_steps_of_a_prompt_are_cut_to_half_a_second(alphabet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, sizes = [0.0], []
    params = SamplingParams(temperature=0, max_tokens=4)
    (expected,) = LLM(alphabet).generate([65] * 1000, params)
    llm = LLM(alphabet)
    monkeypatch.setattr(llm.engine, "_pace", Pace(0.0))  # as if attention were free
    monkeypatch.setattr(llm.engine, "_clock", lambda: clock[0])
    run = llm.engine.run

    def slow(batch):  # type: ignore[no-untyped-def]
        clock[0] += batch.num_tokens / 200
        sizes.append(batch.num_tokens)
        return run(batch)

    llm.engine.run = AtOnce(slow)
    interrupt = Interrupt()
    with PromptWatch(interrupt) as watch:
        chunks = list(llm.stream([65] * 1000, params, on_prompt=watch))
    assert sum((chunk.token_ids for chunk in chunks), ()) == expected.outputs[0].token_ids
    assert sizes == [40, *[100] * 9, 60, 1, 1, 1]
    (again,) = llm.generate([66] * 1000, params)
    assert sizes[14] == 512, "nobody watches"
    interrupt.requested = True
    with pytest.raises(KeyboardInterrupt), PromptWatch(interrupt) as watch:
        list(llm.stream([67] * 1000, params, on_prompt=watch))
    assert not llm.engine.has_work
    assert llm.generate([66] * 1000, params)[0].outputs == again.outputs


def test_what_is_typed_ahead_waits_for_the_prompt(alphabet: Path) -> None:
    options = ["--ignore-eos", "--max-tokens", "2000"]
    with PseudoTerminal("chat", "-q", str(alphabet), *options, echo=True) as terminal:
        terminal.wait_for("> ")
        terminal.type("Hi\n")
        terminal.wait_for(ALPHABET + "ABC")
        terminal.type("12345")
        answer = terminal.wait_for("\n> ")
        assert not set("12345") & set(answer)
        terminal.wait_for("12345")


def test_on_greedy_a_retry_says_that_it_is_the_same(alphabet: Path, karat_here: Karat) -> None:
    done = karat_here("chat", "-q", str(alphabet), "--temperature", "0", stdin="Hi\n/retry\n")
    assert done.stdout == f"{ALPHABET}\n" * 2
    assert done.stderr == "temperature is 0 (greedy), so the answer is the same; try /set temperature 0.7\n"


def test_in_a_pipe_nothing_is_said_of_set(alphabet: Path, karat_here: Karat) -> None:
    args = ["chat", str(alphabet), "--max-tokens", "3"]
    assert karat_here(*args, "-q", stdin="Hi\n").stderr == ""
    told = karat_here(*args, stdin="Hi\n").stderr
    assert "the answer is cut off: max_tokens is reached: see --max-tokens\n" in told and "/set" not in told


def test_show_counts_as_the_line_before_it(alphabet: Path, karat_here: Karat) -> None:
    told = karat_here("chat", str(alphabet), stdin="Hi\n/show\n/clear\n/show\n").stderr
    used = told.partition("context ")[2].split()[0]
    assert f"context      {used} of 20000 tokens, messages answered: 1" in told
    assert "context      0 of 20000 tokens, messages answered: 0" in told


def test_a_conversation_is_saved_and_loaded(alphabet: Path, tmp_path: Path, karat_here: Karat) -> None:
    file, again = tmp_path / "talk.json", tmp_path / "again.json"
    entries = ["/system Sing.", "/set stop k", '/set logit_bias {"7": -1}', "one", f"/save {file}", "/clear"]
    entries += ["/set stop default", f"/load {file}", f"/save {again}", "/bye", "never sent"]
    done = karat_here("chat", "-q", str(alphabet), stdin="\n".join(entries))
    assert (done.returncode, done.stdout) == (0, "abcdefghij\n")
    assert json.loads(again.read_text()) == json.loads(file.read_text())
    assert f"1 messages with their answers from {file}" in done.stderr
    file.write_text('{"messages": [{"role": "user", "content": "unanswered"}]}')
    for argument, words in [
        ("", "/load needs the name of a file"),
        ("/no/such/file", "cannot be opened (No such file"),
        (str(alphabet / "model.safetensors"), "is no JSON"),
        (str(file), f"the last one an answer (in {file})"),
    ]:
        done = karat_here("chat", "-q", str(alphabet), stdin=f"/load {argument}\n")
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1


def test_what_is_no_conversation_is_refused() -> None:
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert Conversation.from_json({"messages": turn}).messages() == turn
    for content in (
        None,
        [],
        {},
        {"messages": {}},
        {"messages": [5]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": turn[::-1]},
        {"messages": turn * 2 + turn[:1]},
        {"messages": turn, "settings": []},
        {"messages": turn, "settings": {"n": 2}},
    ):
        with pytest.raises(UsageError, match="expected"):
            Conversation.from_json(content)
    with pytest.raises(RequestError, match="temperature"):
        Conversation.from_json({"messages": turn, "settings": {"temperature": -1}})


@pytest.mark.parametrize(
    ("entry", "words"),
    [("/set temprature 1", "did you mean temperature? there are "), ("/retyr", "did you mean /retry?")],
)
def test_a_misspelt_name_is_answered_with_the_right_one(
    entry: str, words: str, alphabet: Path, karat_here: Karat
) -> None:
    done = karat_here("chat", "-q", str(alphabet), stdin=f"{entry}\n")
    assert done.returncode == 2 and words in done.stderr


def test_more_threads_than_cores_are_remarked(alphabet: Path, karat_here: Karat) -> None:
    if unavailable_reason() is None:
        told = karat_here("run", str(alphabet), "xyz", "--threads", "1000").stderr
        assert "slow, with 1000 threads on " in told
    assert "threads" not in karat_here("run", str(alphabet), "xyz", "--threads", "1").stderr

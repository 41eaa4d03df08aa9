"""`karat chat` on two ranks: the same answers, and a rank that dies is said while the user still types."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from karat.errors import RankError
from karat.ops.native import unavailable_reason
from tests.cli.alphabet_model import ALPHABET
from tests.cli.conftest import COMMAND, Karat, environment
from tests.cli.pseudo_terminal import CTRL_C, CTRL_D, PseudoTerminal

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("ranks are found through /proc", allow_module_level=True)

OPTIONS = ("--tensor-parallel-size", "2", "--threads", "1")
DIED = r"karat: error: rank 1 \(process \d+\) was killed \(SIGKILL\), so all 2 ranks were ended; [^\n]*"


def ranks_of(pid: int) -> list[int]:
    """The process's children."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    ranks = sorted(int(child) for task in tasks for child in task.read_text().split())
    assert len(ranks) == 2
    return ranks


def kill_a_rank(pid: int) -> None:
    os.kill(ranks_of(pid)[1], signal.SIGKILL)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_answers_through_a_pipe_are_those_of_one_process(alphabet: Path, karat: Karat) -> None:
    entries = "Hi\n/set temperature 1\n/set seed 5\n/retry\n"
    alone, together = (karat("chat", "-q", str(alphabet), *options, stdin=entries) for options in ((), OPTIONS))
    assert together.returncode == 0 and together.stdout.startswith(f"{ALPHABET}\n")
    assert (together.stdout, together.stderr) == (alone.stdout, alone.stderr)


@pytest.fixture
def piped(alphabet: Path) -> Iterator["subprocess.Popen[str]"]:
    """A chat that has given an answer and waits for more input."""
    process = subprocess.Popen(
        [*COMMAND, "chat", "-q", str(alphabet), *OPTIONS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("Hi\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{ALPHABET}\n"
        yield process
        process.kill()


def test_a_rank_that_dies_between_two_messages_of_a_pipe_ends_it(piped: "subprocess.Popen[str]") -> None:
    kill_a_rank(piped.pid)
    assert piped.wait(600) == RankError.exit_code, "though the input is still open"
    assert piped.stderr is not None and re.fullmatch(DIED + "\n", piped.stderr.read())


def test_at_the_prompt_it_is_said_and_the_conversation_can_be_kept(alphabet: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    with PseudoTerminal("chat", "-q", str(alphabet), *OPTIONS) as terminal:
        terminal.wait_for("> ")
        terminal.type("Hi\n")
        terminal.wait_for(ALPHABET)
        terminal.wait_for("> ")
        terminal.type("half a mess")
        kill_a_rank(terminal.pid)
        assert re.search(DIED + "\nno more answers can come; /save FILE", terminal.wait_for("> "))
        terminal.type("Again\n")
        assert "the ranks of this model have ended: rank 1" in terminal.wait_for("> ")
        terminal.type(f"/save {file}\n")
        terminal.wait_for("> ")
        terminal.type(CTRL_D)
        code, last = terminal.wait_for_end()
    assert code == RankError.exit_code and "the ranks of this model have ended: rank 1" in last
    assert [message["content"] for message in json.loads(file.read_text())["messages"]] == ["Hi", ALPHABET]


def test_a_rank_that_dies_in_an_answer_ends_with_its_code(alphabet: Path) -> None:
    with PseudoTerminal("chat", "-q", str(alphabet), *OPTIONS, "--ignore-eos") as terminal:
        terminal.wait_for("> ")
        terminal.type("Hi\n")
        terminal.wait_for(ALPHABET)
        kill_a_rank(terminal.pid)
        assert "was killed (SIGKILL)" in terminal.wait_for("\n> ")
        terminal.type("/exit\n")
        assert terminal.wait_for_end()[0] == RankError.exit_code


def test_without_ranks_leaving_is_no_error(alphabet: Path, karat: Karat) -> None:
    assert karat("chat", "-q", str(alphabet), stdin="/exit\n").returncode == 0


def test_ctrl_c_and_ctrl_z_are_not_for_the_ranks(alphabet: Path) -> None:
    with PseudoTerminal("chat", "-q", str(alphabet), *OPTIONS, "--ignore-eos") as terminal:
        terminal.wait_for("> ")
        for _ in range(2):
            terminal.type("Hi\n")
            terminal.wait_for(ALPHABET + "ABC")
            terminal.type(CTRL_C)
            assert "Stopped. The partial answer is kept" in terminal.wait_for("> ")
        os.killpg(terminal.pid, signal.SIGSTOP)  # as Ctrl-Z does, from a shell
        while state(terminal.pid) != "T":
            time.sleep(0.01)
        assert "T" not in [state(rank) for rank in ranks_of(terminal.pid)]
        os.killpg(terminal.pid, signal.SIGCONT)
        terminal.type("/set ignore_eos false\n")
        terminal.wait_for("> ")
        terminal.type("Hi\n")
        assert ALPHABET in terminal.wait_for("> ")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end()[0] == 0

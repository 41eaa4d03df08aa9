"""Progress on a terminal: one line that the next one replaces, and no control character shown as a sign."""

from pathlib import Path

import pytest

from tests.cli.pseudo_terminal import PseudoTerminal
from tests.engine.tiny import write_model

of_commands = pytest.mark.parametrize(
    "arguments",
    [
        ["check", "MODEL", "--stages", "weights,layers", "--against", "reference"],  # which imports no transformers
        ["perplexity", "TEXT", "--model", "MODEL", "--window", "16"],
    ],
    ids=["check", "perplexity"],
)


@pytest.fixture
def names(tmp_path: Path) -> dict[str, str]:
    """What stands for MODEL and TEXT."""
    (text := tmp_path / "text").write_text("Once upon a time there was a little fox. " * 8)
    (folder := tmp_path / "model").mkdir()
    return {"MODEL": str(write_model(folder)), "TEXT": str(text)}


@pytest.mark.drawn(1)
@of_commands
def test_progress_is_written_over(arguments: list[str], names: dict[str, str]) -> None:
    with PseudoTerminal(*(names.get(word, word) for word in arguments), NO_COLOR="1") as terminal:
        code, _ = terminal.wait_for_end()
    assert code == 0 and " …" in terminal.raw, "no progress was shown"
    assert not set(terminal.raw) & {chr(0x240D), chr(0x2401)}, "a carriage return came as a sign"
    for line in terminal.raw.split("\r\n"):
        shown = line.split("\r")
        assert all(part.count(" …") <= 1 for part in shown), f"two lines of progress beside each other: {line!r}"


@pytest.mark.drawn(1)
@of_commands
def test_who_is_quiet_shows_no_progress(arguments: list[str], names: dict[str, str]) -> None:
    with PseudoTerminal(*(names.get(word, word) for word in arguments), "-q", NO_COLOR="1") as terminal:
        code, _ = terminal.wait_for_end()
    assert code == 0 and " …" not in terminal.raw

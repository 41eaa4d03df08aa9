"""Progress on a terminal: one line that the next one replaces, and no control character shown as a sign."""

from pathlib import Path

import pytest

from tests.cli.pseudo_terminal import PseudoTerminal

of_commands = pytest.mark.parametrize(
    "arguments",
    [["check", "--stages", "weights,layers"], ["perplexity", "TEXT", "--window", "16"]],
    ids=["check", "perplexity"],
)


@pytest.fixture
def text(tmp_path: Path) -> str:
    """The name of a file."""
    file = tmp_path / "text"
    file.write_text("Once upon a time there was a little fox. " * 8)
    return str(file)


@pytest.mark.drawn(1)
@of_commands
def test_progress_is_written_over(arguments: list[str], text: str) -> None:
    with PseudoTerminal(*(text if word == "TEXT" else word for word in arguments), NO_COLOR="1") as terminal:
        code, _ = terminal.wait_for_end()
    assert code == 0 and " …" in terminal.raw, "no progress was shown"
    assert not set(terminal.raw) & {chr(0x240D), chr(0x2401)}, "a carriage return came as a sign"
    for line in terminal.raw.split("\r\n"):
        shown = line.split("\r")
        assert all(part.count(" …") <= 1 for part in shown), f"two lines of progress beside each other: {line!r}"


@pytest.mark.drawn(1)
@of_commands
def test_who_is_quiet_shows_no_progress(arguments: list[str], text: str) -> None:
    words = (text if word == "TEXT" else word for word in arguments)
    with PseudoTerminal(*words, "-q", NO_COLOR="1") as terminal:
        code, _ = terminal.wait_for_end()
    assert code == 0 and " …" not in terminal.raw

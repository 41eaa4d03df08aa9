"""Input of `karat chat`, from a terminal or a pipe, joined to messages of several lines."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from karat.cli.sources import MAX_PIPE_BYTES
from karat.cli.terminal import is_terminal, note
from karat.errors import CapacityError, RequestError, UsageError

PROMPT, MORE = "> ", "… "
_FENCES = ('"""', "'''")

ReadLine = Callable[[str], str]  # shows its argument as the prompt; raises EOFError at the end of the input


def read_entry(read_line: ReadLine) -> str:
    """The next entry that is not blank: one line; or lines that end in a backslash, and one more; or a block.

    A block starts and ends with three quotes of one kind, with any lines between them. A text pasted into a terminal
    counts as one line, also if it has several. Raises EOFError at the end of the input, UsageError if a block is open
    there.
    """
    line = ""
    while not line.strip():
        line = read_line(PROMPT).rstrip("\n")
    for fence in _FENCES:
        if line.lstrip().startswith(fence):
            return _read_block(line.lstrip().removeprefix(fence), fence, read_line)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        try:
            lines.append(read_line(MORE))
        except EOFError:
            break
    return "\n".join(lines)


def _read_block(line: str, fence: str, read_line: ReadLine) -> str:
    lines = [line]
    while not lines[-1].rstrip().endswith(fence):
        try:
            lines.append(read_line(MORE))
        except EOFError:
            raise UsageError(f"the input ended inside a block; its text was not sent: close it with {fence}") from None
    lines[-1] = lines[-1].rstrip().removesuffix(fence)
    return "\n".join(lines).strip("\n")


def typed_entry(read_line: ReadLine) -> str:
    """The next entry from a terminal. Ctrl-C takes back the typed text.

    With nothing typed, the first Ctrl-C gives a hint. The next one raises KeyboardInterrupt, if nothing was typed in
    between.
    """
    hinted = False
    while True:
        lines: list[str] = []

        def read(prompt: str, lines: list[str] = lines) -> str:
            lines.append(read_line(prompt))
            return lines[-1]

        try:
            return read_entry(read)
        except KeyboardInterrupt:
            hinted = hinted and not lines
            if any(line.strip() for line in (*lines, _unfinished_line())):
                hinted = False
                note("")
                continue
            if hinted:
                raise
            hinted = True
            note("\nCtrl-C once more leaves; so does Ctrl-D or /exit")
        except EOFError:
            note("")
            raise


def _unfinished_line() -> str:
    """The part of a line that was typed before Ctrl-C."""
    readline = sys.modules.get("readline")
    return readline.get_line_buffer() if readline is not None else ""


@contextmanager
def echo_off() -> Iterator[None]:
    """Inside, text that is typed ahead is not echoed into the answer; the next prompt shows it."""
    try:
        import termios
    except ImportError:  # no Unix
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    termios.tcsetattr(descriptor, termios.TCSADRAIN, [*before[:3], before[3] & ~termios.ECHO, *before[4:]])
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def is_interactive() -> bool:
    """Whether a person types. Only then are prompts shown, and does the chat go on after an error."""
    return sys.stdin is not None and is_terminal(sys.stdin)


def line_reader() -> ReadLine:
    """Lines of stdin: edited and remembered on a terminal, bare from a pipe."""
    if not is_interactive():
        return _read_bare
    if not is_terminal(sys.stdout):
        return _read_prompted
    with suppress(ImportError):  # some builds of Python lack it; input() works without
        import readline  # from now on input() edits lines and remembers them

        if "libedit" not in (readline.__doc__ or ""):  # libedit has no such setting
            readline.parse_and_bind("set enable-bracketed-paste on")  # a pasted text is one line, line breaks and all
    return input


def _read_prompted(prompt: str) -> str:
    """A line, with the prompt on stderr, because stdout goes elsewhere."""
    print(prompt, end="", file=sys.stderr, flush=True)
    return _read_bare(prompt)


def _read_bare(prompt: str) -> str:
    content = sys.stdin.buffer.readline(MAX_PIPE_BYTES + 1) if sys.stdin is not None else b""
    if len(content) > MAX_PIPE_BYTES:
        raise CapacityError(
            f"a line on stdin has more than {MAX_PIPE_BYTES} bytes, more than any context holds; expected a message "
            "that the model can read; give a part of it"
        )
    try:
        line = content.decode()
    except UnicodeDecodeError as fault:
        raise RequestError(f"the text on stdin is not UTF-8 (byte {fault.start}); convert it") from None
    if not line:
        raise EOFError
    return line.removesuffix("\n").removesuffix("\r")

"""`karat chat`: a conversation on the terminal, or through a pipe."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from karat.cli.chat_input import is_interactive, line_reader, read_entry, typed_entry
from karat.cli.chat_session import ChatSession
from karat.cli.conversation import Conversation
from karat.cli.exits import one_line
from karat.cli.generation import load, remark
from karat.cli.options import LoadOptions, SanitizeControlTokens
from karat.cli.sampling_options import SamplingOptions
from karat.cli.terminal import note, tell
from karat.errors import KaratError, RankError, UsageError
from karat.request import SamplingParams

if TYPE_CHECKING:
    from karat.engine.llm import LLM

_LOOK_S = 0.5  # between looks for ranks that died

EXAMPLES = """
Examples

  karat chat                                    with the embedded model
  karat chat org/name --system "Answer in one sentence."
  karat chat ./my-model --temperature 0
  printf 'Hello\\nTell me more.\\n' | karat chat -q
"""


def chat(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Folder, GGUF file or name on the hub.", show_default=False),
    ] = None,
    model_option: Annotated[
        str | None, typer.Option("-m", "--model", metavar="MODEL", help="The same as an option.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")] = None,
    sanitize_control_tokens: SanitizeControlTokens = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No remarks on stderr.")] = False,
    *,
    loading: LoadOptions,
    sampling: SamplingOptions,
) -> None:
    """Talk with a model; it remembers the conversation.

    Enter sends a line. For several lines, paste them, end each but the last with a backslash, or put the text between
    lines of three quotes (\"\"\" or '''). A line that starts with / is a command: /help lists them; // sends a text
    that starts with /. Ctrl-C stops an answer, takes back what is typed, and leaves if pressed twice at an empty
    prompt; Ctrl-D or /exit leaves.

    From a pipe, each line or block is a message, only answers go to stdout, and the first error ends the program.
    """
    if model is not None and model_option is not None:
        raise UsageError(f"two models, {model!r} and {model_option!r}; give one")
    settings = sampling.given()
    SamplingParams(**settings)  # wrong options are reported before a model is loaded
    name = model if model is not None else model_option
    llm = load(name, loading, quiet=quiet)
    interactive = is_interactive()
    talk = Conversation(system, settings)
    session = ChatSession(
        llm, talk, quiet=quiet, interactive=interactive, sanitize_control_tokens=sanitize_control_tokens
    )
    if not quiet:
        remark(llm, name, settings, loading)
        if interactive:
            note("/help shows the commands, Ctrl-C stops an answer, Ctrl-D leaves")
    _talk(session, llm, interactive=interactive)
    llm.check_ranks()


def _talk(session: ChatSession, llm: "LLM", *, interactive: bool) -> None:
    """Takes entries until the end of the input or /exit. An error ends it too, unless a person types.

    The death of a rank is reported soon, not when the next message is sent.
    """
    read_line = line_reader()
    is_lost = False  # ranks have died: no more answers
    while True:
        try:
            with nullcontext() if is_lost else _ranks_watched(llm):
                entry = typed_entry(read_line) if interactive else read_entry(read_line)
            if not session.handle(entry):
                return
        except EOFError:
            return
        except KaratError as error:
            if not interactive:
                raise
            tell(f"karat: error: {one_line(error)}")
            if isinstance(error, RankError) and not is_lost:
                is_lost = True
                note("no more answers can come; /save FILE keeps the conversation, Ctrl-D leaves")


@contextmanager
def _ranks_watched(llm: "LLM") -> Iterator[None]:
    """Inside, the death of a rank soon raises RankError, also during a wait for input. For the main thread only.

    It works by a timer, whose signal interrupts the main thread; SIGCHLD may go to any thread.
    """
    llm.check_ranks()
    if llm.tensor_parallel_size == 1:
        yield
        return
    inside = True

    def look(signum: int, frame: FrameType | None) -> None:
        if inside:
            llm.check_ranks()
            signal.setitimer(signal.ITIMER_REAL, _LOOK_S)

    signal.signal(signal.SIGALRM, look)  # the handler stays, because a last signal may be on its way at the end
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S)
    try:
        yield
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)

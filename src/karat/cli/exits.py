"""How a command ends: the exit codes, which are part of the public interface, and the one line that goes with each."""

import errno
import traceback
from collections.abc import Callable, Mapping
from functools import wraps

import typer

from karat.cli.terminal import printable, tell
from karat.errors import CapacityError, KaratError

OK = 0
USAGE = 2
LINES_FAILED = 14
BUG = 70  # EX_SOFTWARE of sysexits.h
HUNG_UP = 129  # 128 + SIGHUP
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
BROKEN_PIPE = 141  # 128 + SIGPIPE
TERMINATED = 143  # 128 + SIGTERM

EXIT_CODES: Mapping[int, str] = {
    OK: "success",
    1: "an error without a code of its own, such as output that cannot be written; of check and diagnose: a bug; of "
    "verify: a difference",
    USAGE: "a command line that cannot be understood; of check, diagnose and verify: whatever kept them from a verdict",
    3: "config.json or generation_config.json is malformed, unknown or unsupported",
    4: "the weights are missing, unexpected, of the wrong shape, truncated or corrupt",
    5: "the tokenizer or the chat template is missing, corrupt or unsupported",
    6: "the model could not be fetched: unknown, not permitted, offline, or a failing network",
    7: "sampling parameters or a prompt that cannot be served as asked",
    8: "it does not fit into the context, the cache or the memory",
    9: "the executor is not available here",
    10: "NaN or infinity where a finite number was required",
    11: "a trace is malformed or does not fit the model",
    12: "a tensor-parallel rank died, hangs or could not be started",
    13: "the process of a server's engine died, hangs or could not be started",
    LINES_FAILED: "of batch: some requests failed; the file of errors says which and why",
    15: "a GPU failed while it computed",
    BUG: "a bug in Karat: please report it with the output of --debug",
    HUNG_UP: "stopped by SIGHUP: the terminal went away",
    INTERRUPTED: "stopped by Ctrl-C (SIGINT)",
    BROKEN_PIPE: "the reader of the output went away, as in `karat run … | head -c 20`",
    TERMINATED: "stopped by SIGTERM",
}


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived. Not an Exception, so that only clean-up code sees it on its way to `main`."""

    def __init__(self, exit_code: int = TERMINATED) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class NoVerdictError(Exception):
    """A command whose exit code is a verdict reached none; the cause says why."""


def ends_in_verdict(command: Callable[..., None]) -> Callable[..., None]:
    """`command`, whose exit codes 0 and 1 are a verdict. An error that prevents the verdict ends in USAGE, with the
    usual message.

    So 1 always means a bug in the judged model, never a failure of the command such as output that cannot be written.
    """

    @wraps(command)
    def judging(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except (KaratError, MemoryError) as fault:
            raise NoVerdictError from fault

    return judging


def report(error: BaseException, *, debug: bool) -> int:
    """Report an error on stderr in one line, with the traceback before it if `debug`; return the exit code.

    Raises BrokenPipeError if stderr has no reader any more.
    """
    match error:
        case typer.Exit():
            return error.exit_code
        case BrokenPipeError():
            return BROKEN_PIPE
        case SystemExit():  # not ours
            if isinstance(error.__context__, BrokenPipeError):  # rich ends so, in the middle of --help
                return BROKEN_PIPE
            raise error
        case NoVerdictError(__cause__=BaseException() as cause):
            report(cause, debug=debug)
            return USAGE
    if debug:
        tell(printable("".join(traceback.format_exception(error)).rstrip()))
    match error:
        case KeyboardInterrupt():
            return INTERRUPTED
        case Terminated():
            return error.exit_code
        case typer.TyperException():
            tell(f"karat: error: {_usage_message(error)}")
            return USAGE
        case KaratError():
            tell(f"karat: error: {one_line(error)}")
            return error.exit_code
        case OSError(errno=errno.EMFILE):
            from karat.checkpoint.files import descriptor_limit  # already imported by any module that opens files

            tell(
                f"karat: error: too many open files: this process may have {descriptor_limit()}; raise it by ulimit -n"
            )
            return KaratError.exit_code
        case MemoryError():
            tell("karat: error: out of memory; close other programs, take a smaller model or a smaller --max-model-len")
            return CapacityError.exit_code
    hint = "the traceback is above" if debug else "run it again with --debug for the traceback"
    tell(f"karat: error: {type(error).__name__}: {one_line(error)}; this is a bug in Karat: {hint}, and report it")
    return BUG


def one_line(error: BaseException) -> str:
    """The message of an error and its notes as one printable line; semicolons separate what were lines."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    text = ""
    for line in filter(None, lines):
        text += line if not text else f" {line}" if text[-1] in ",;:" else f"; {line}"
    notes = (" ".join(f"({note})".split()) for note in getattr(error, "__notes__", ()))
    return printable(" ".join(filter(None, (text, *notes))))


def _usage_message(error: typer.TyperException) -> str:
    """The complaint of the option parser, and where to find help."""
    context = getattr(error, "ctx", None)  # set on the exceptions that know their command
    command = context.command_path if context is not None else "karat"
    message = printable(" ".join(error.format_message().split()).rstrip("."))
    return f"{message}{' See' if message.endswith('?') else '; see'} `{command} --help`"

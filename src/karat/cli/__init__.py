"""The command line. Modules here import what is heavy inside the command that needs it: `karat --help` stays quick."""

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from karat.cli.exits import BROKEN_PIPE, INTERRUPTED, OK, Terminated, report
from karat.cli.options import Invocation
from karat.config import Settings


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command (`sys.argv` unless `args` are given) and returns its exit code; see `karat help exit-codes`.

    Takes SIGTERM over for the rest of the process.
    """
    invocation = Invocation(debug=Settings.from_env().debug)
    try:
        signal.signal(signal.SIGTERM, _terminate)
        try:
            _run(sys.argv[1:] if args is None else args, invocation)
            if sys.stdout is not None:  # None where the caller closed it
                sys.stdout.flush()
            code = OK
        except BaseException as error:  # noqa: BLE001 - the outermost frame: everything ends in a line and a code
            code = report(error, debug=invocation.debug)
    except BrokenPipeError:  # stderr's
        code = BROKEN_PIPE
    except KeyboardInterrupt:  # a second one, while the first was reported
        code = INTERRUPTED
    if code == BROKEN_PIPE:
        _discard_the_rest()
    return code


def _run(args: Sequence[str], invocation: Invocation) -> None:
    from karat.cli.app import command

    # Not `command()`, which would print errors its own way and make a code of its own of a broken pipe.
    with command().make_context("karat", list(args), obj=invocation) as context:
        context.command.invoke(context)


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise Terminated


def _discard_the_rest() -> None:
    """Lets what is still buffered vanish, so that Python does not complain at exit that it cannot be written."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    os.close(null)

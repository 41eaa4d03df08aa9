"""The command line. A heavy module is imported inside the command that needs it, so `karat --help` is quick."""

import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TextIO

from karat.cli.collection import without_collections
from karat.cli.exits import BROKEN_PIPE, INTERRUPTED, OK, Terminated, report
from karat.cli.habits import commanded
from karat.cli.options import Invocation
from karat.cli.terminal import emit, tell
from karat.config import Settings, numpy_on_one_thread


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command (`sys.argv` unless `args` are given) and returns its exit code; see `karat help exit-codes`.

    Handles SIGTERM for the rest of the process, and SIGHUP unless it is ignored (`nohup`). Makes stdout and stderr
    UTF-8.
    """
    _prepare_streams()
    numpy_on_one_thread()
    args, remark = commanded(sys.argv[1:] if args is None else args)
    invocation = Invocation(debug=Settings.from_env().debug, args=tuple(args))
    try:
        signal.signal(signal.SIGTERM, _terminate)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, _terminate)
        try:
            if remark is not None and {"-q", "--quiet"}.isdisjoint(args):
                tell(remark)
            _run(args, invocation)
            emit("")  # or fail, if the buffered output cannot be written
            code = OK
        except BaseException as error:  # noqa: BLE001 - the outermost frame: everything ends in a line and a code
            code = report(error, debug=invocation.debug)
    except BrokenPipeError:  # stderr's
        code = BROKEN_PIPE
    except KeyboardInterrupt:  # a second one, while the first was reported
        code = INTERRUPTED
    _flush_or_discard()
    gc.unfreeze()  # what without_collections kept from collection
    return code


def _run(args: Sequence[str], invocation: Invocation) -> None:
    with without_collections():
        from karat.cli.app import command

        # Not `command()`, which would print errors its own way and make a code of its own of a broken pipe.
        made = command(args).make_context("karat", list(args), obj=invocation)
    with made as context:
        context.command.invoke(context)


class _Closed(io.TextIOBase):
    """A stdout that the caller closed: every write fails, as on a full disk."""

    def __init__(self, instead: TextIO) -> None:
        """`instead` has stdout's number as long as this object is there."""
        self._instead = instead

    def write(self, text: str) -> int:
        if text:
            raise OSError(errno.EBADF, "stdout is closed")
        return 0


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller; opened, as the next file would get its number
            null = open(os.devnull, "w")  # noqa: PTH123, SIM115 - to the end of the process
            setattr(sys, name, _Closed(null) if name == "stdout" else null)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise Terminated(128 + signum)


def _flush_or_discard() -> None:
    """Discard output that cannot be written. Otherwise Python complains at exit, with an exit code of its own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)

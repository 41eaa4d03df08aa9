"""Processes of their own that begin where another has imported what they need: a fork is made in a thousandth of the
time. Variables are read when a program runs; what reads them when it is imported is imported by the program.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_SERVER = """
import importlib, json, os, sys, traceback
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
for line in sys.stdin:
    program, arguments, environment, out, err = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, path in ((0, os.devnull), (1, out), (2, err)):
            os.dup2(os.open(path, os.O_RDWR), number)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["-c", *arguments]
        status = 1
        try:
            exec(program, {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forks:
    """Runs Python programs in forks of one process that has imported `modules`, those that are there."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._server: subprocess.Popen[str] | None = None

    def run(self, program: str, *arguments: str, env: Mapping[str, str] | None = None) -> tuple[str, str]:
        """What it wrote to stdout and stderr. An assertion fails where it does not end well."""
        if self._server is None:
            command = [sys.executable, "-c", _SERVER, *self._modules]
            self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            atexit.register(self._server.communicate)
        assert self._server.stdin is not None and self._server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            out.touch()
            err.touch()
            environment = dict(os.environ if env is None else env)
            print(
                json.dumps([program, arguments, environment, str(out), str(err)]), file=self._server.stdin, flush=True
            )
            status = int(self._server.stdout.readline())
            assert status == 0, (status, err.read_text())
            return out.read_text(), err.read_text()

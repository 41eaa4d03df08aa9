"""run_worker: one piece of work in a process of its own, which may crash and has a time limit."""

import subprocess
from collections.abc import Sequence
from tempfile import TemporaryFile

from karat.children.starter import Starter


def run_worker(module: str, arguments: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    """Call `module.main(arguments)` in a process of its own. Returns its exit code and its stderr.

    After `limit_s` seconds the process is killed, and the exit code is None. The process has ended when this returns or
    raises. Raises OSError where no process can be started.
    """
    with TemporaryFile() as words:
        starter = Starter()
        try:
            process = starter.start(module, arguments, errors=words.fileno())
            try:
                code: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                process.kill()
                process.wait()
        finally:
            starter.end()
        words.seek(0)
        return code, words.read().decode(errors="replace").strip()

"""Long native calls that Ctrl-C does not have to wait for."""

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

Result = TypeVar("Result")


def interruptible(call: Callable[[], Result]) -> Result:
    """`call()` on a thread of its own; what it returns or raises.

    Python runs signal handlers between two instructions of the main thread, so a native call of seconds puts Ctrl-C off
    for as long. Who waits for a lock is interrupted at once: the call is then left to itself, and who catches the
    interrupt must not use what it works on before it has ended. It does not keep the process from ending.
    """
    results: list[Result] = []
    faults: list[BaseException] = []
    done = threading.Lock()
    done.acquire()
    context = copy_context()

    def run() -> None:
        try:
            results.append(context.run(call))
        except BaseException as fault:  # noqa: BLE001 raised where it was called
            faults.append(fault)
        finally:
            done.release()

    threading.Thread(target=run, daemon=True, name="karat-check").start()
    done.acquire()
    if faults:
        raise faults[0]
    return results[0]

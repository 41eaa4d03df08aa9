"""Long native calls that Ctrl-C interrupts at once."""

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

Result = TypeVar("Result")


def interruptible(call: Callable[[], Result]) -> Result:
    """Run `call()` on a thread of its own; returns its result, or raises its exception.

    Python runs signal handlers between two instructions of the main thread, so a native call of seconds delays Ctrl-C
    by seconds. A main thread that waits for a lock is interrupted at once. The call then goes on alone: a caller that
    catches KeyboardInterrupt must not use the call's objects until it has ended. The thread is a daemon, and does not
    keep the process from ending.
    """
    results: list[Result] = []
    faults: list[BaseException] = []
    done = threading.Lock()
    done.acquire()
    context = copy_context()

    def run() -> None:
        try:
            results.append(context.run(call))
        except BaseException as fault:  # noqa: BLE001 raised again by the caller's thread
            faults.append(fault)
        finally:
            done.release()

    threading.Thread(target=run, daemon=True, name="karat-check").start()
    done.acquire()
    if faults:
        raise faults[0]
    return results[0]

"""The lifeline: a pipe whose other end closes when the process that started a rank ends."""

import os
import select
import threading

_LOOK_S = 0.5


def end_with_parent(lifeline: int) -> None:
    """From now on this process ends at once when the pipe's other end closes, or when its parent changes.

    The parent is watched too because a fork of the parent would hold the pipe open. Both are for systems that do not
    kill ranks at their parent's end (karat.children.starter), and for a parent that ended before a rank could ask for
    that.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            if select.select([lifeline], [], [], _LOOK_S)[0]:
                break
        os._exit(0)

    threading.Thread(target=watch, name="karat-lifeline", daemon=True).start()

"""A rank's end of the pipe by which it knows that who started it is still there."""

import os
import select
import threading

_LOOK_S = 0.5


def end_with_parent(lifeline: int) -> None:
    """From now on this process ends at once when the pipe's other end is closed, or when its parent is another.

    The second is for a parent that was forked: its child would hold the pipe open. It is for systems that do not kill
    ranks at their parent's end (karat.children.starter), and for ranks that were started too late for that.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            if select.select([lifeline], [], [], _LOOK_S)[0]:
                break
        os._exit(0)

    threading.Thread(target=watch, name="karat-lifeline", daemon=True).start()

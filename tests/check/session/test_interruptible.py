"""Ctrl-C does not wait for a long native call of `karat check`."""

import hashlib
import signal
import threading
import time

import pytest

from karat.check.model.checked import open_model
from karat.check.session.interruptible import interruptible
from karat.check.session.same_bits import invariance_of
from karat.engine.engine import Engine

ENOUGH_S = 0.3  # to be within the call


def long_native_call() -> None:
    """Seconds without an instruction of Python, and without its lock."""
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 12_000_000)


def interrupted_after(seconds: float) -> list[float]:
    """When Ctrl-C will have been pressed, by the processor time of this process: the machine may be busy."""
    pressed: list[float] = []

    def press() -> None:
        pressed.append(time.process_time())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    timer = threading.Timer(seconds, press)
    timer.daemon = True
    timer.start()
    return pressed


def test_a_step_of_seconds_is_interrupted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "step", lambda _self: long_native_call())
    rows = invariance_of(open_model(None).checkpoint, num_tokens=8, options={"threads": 1})
    pressed = interrupted_after(ENOUGH_S)
    with pytest.raises(KeyboardInterrupt):
        list(rows)
    assert time.process_time() - pressed[0] < 1, "the call goes on by itself"


def test_what_a_call_returns_or_raises_is_that_of_the_call() -> None:
    assert interruptible(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0)

"""Ctrl-C put off to the end of a block, by real signals."""

import signal
import threading

import pytest

from karat.dist.interrupts import InterruptsPutOff


def test_an_interrupt_comes_at_the_end() -> None:
    done = []

    def block() -> None:
        with InterruptsPutOff():
            signal.raise_signal(signal.SIGINT)
            done.append(1)
        done.append(2)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_comes_at_once() -> None:
    done = []

    def block() -> None:
        with InterruptsPutOff():
            signal.raise_signal(signal.SIGINT)
            done.append(1)
            signal.raise_signal(signal.SIGINT)
            done.append(2)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nothing_is_changed_where_there_is_nothing_to_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look() -> None:
        with InterruptsPutOff():
            seen.append(signal.getsignal(signal.SIGINT))

    other = threading.Thread(target=look)
    other.start()
    other.join()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        look()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.default_int_handler, signal.SIG_IGN]

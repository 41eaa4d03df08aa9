"""Ctrl-C put off to the end of a block, by real signals."""

import signal
import threading

import pytest

from karat.ranks.interrupts import InterruptsPutOff


@pytest.mark.parametrize(("interrupts", "kept"), [(1, [1, 2]), (2, [1])], ids=["at the end", "a second one at once"])
def test_when_an_interrupt_comes(interrupts: int, kept: list[int]) -> None:
    done = []

    def block() -> None:
        with InterruptsPutOff():
            signal.raise_signal(signal.SIGINT)
            done.append(1)
            for _ in range(interrupts - 1):
                signal.raise_signal(signal.SIGINT)
            done.append(2)
        done.append(3)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == kept
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

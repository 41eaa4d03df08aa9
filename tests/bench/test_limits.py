"""The loops that measure limits do read every byte and compute every step; times are not judged."""

from collections import defaultdict
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from karat.bench.limits import LimitMeter, ReadPattern, instruction_sets, last_cache_bytes
from karat.ops.native import unavailable_reason

if unavailable_reason():
    pytest.skip(f"no native extension: {unavailable_reason()}", allow_module_level=True)

import karat._native as _native

ISAS = instruction_sets()


def checksum(num_bytes: int) -> int:
    """The XOR of the words that the buffer is filled with."""
    words = np.arange(1, num_bytes // 8 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return int(np.bitwise_xor.reduce(words))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_every_word_is_read_exactly_once(isa: str, num_threads: int) -> None:
    limits = _native.Limits(5 << 20, num_threads)
    assert limits.num_bytes == num_threads * -(-(5 << 20) // (num_threads * (2 << 20))) * (2 << 20)
    expected = checksum(limits.num_bytes)
    for streams in (1, 2, 4, 8, 16):
        for ahead in (0, 512, 1 << 30):
            for chunk in (0, 1 << 16, 1 << 20):
                seconds, total = limits.read(isa, streams, ahead, chunk)
                assert total == expected and seconds > 0, (streams, ahead, chunk)


@pytest.mark.parametrize("isa", ISAS)
def test_every_chain_is_computed(isa: str) -> None:
    limits = _native.Limits(1, 2)
    # x = x / 2 + 1 / 2 from 0, 1, 2, …, chains - 1, each in 16 lanes; a FLOP for the product and one for the sum
    seconds, flops, total = limits.fma(isa, 0)
    assert flops == 0 and seconds >= 0
    _, flops, after_one = limits.fma(isa, 1)
    num_chains = flops / 2 / 2 / 16  # two threads
    assert total == 16 * num_chains * (num_chains - 1) / 2
    assert after_one == pytest.approx((total + flops / 4) / 2)
    _, flops_of_many, after_many = limits.fma(isa, 1000)
    assert flops_of_many == 1000 * flops
    assert after_many == flops / 4  # every lane is 1


def test_arguments_that_would_read_elsewhere_are_refused() -> None:
    limits = _native.Limits(2 << 20, 1)
    for streams, chunk in ((0, 0), (3, 0), (65, 0), (1, 100), (1, 3 << 20), (8, 1024)):
        with pytest.raises(ValueError, match="divide"):
            limits.read(ISAS[-1], streams, 0, chunk)
    with pytest.raises(ValueError, match="sse9"):
        limits.fma("sse9", 1)
    for num_bytes, num_threads in ((0, 1), (1, 0), (1, 5000), (2**64 - 1, 1)):
        with pytest.raises(ValueError, match=r"at least a byte|threads"):
            _native.Limits(num_bytes, num_threads)


def test_limits_only_rise() -> None:
    meter = LimitMeter(2, buffer_bytes=4 << 20)
    meter.run()
    first = meter.limits()
    for _ in range(3):
        meter.run()
    last = meter.limits()
    assert last.bandwidth >= first.bandwidth > 0 and last.fma_peak >= first.fma_peak > 0
    assert (first.num_runs, last.num_runs, last.num_threads) == (1, 4, 2)
    assert last.fma_by_isa.keys() == set(ISAS) and last.fma_peak == max(last.fma_by_isa.values())
    assert last.pattern.isa in ISAS
    for limits in (first, last):
        assert 0 < limits.bandwidth_median <= limits.bandwidth and 0 < limits.fma_median <= limits.fma_peak
    assert first.fma_median == first.fma_peak


def test_the_median_of_reading_is_of_all_readings_by_one_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the largest of several: readings vary much more than figures of a longer time do."""
    meter = LimitMeter(1, buffer_bytes=1 << 20)
    readings = defaultdict(lambda: cycle((9.0, 1.0, 1.0)))  # of all other patterns: once fast
    readings[ReadPattern(ISAS[-1], 2, 0, 0)] = cycle((3.0, 5.0, 4.0))
    readings[ReadPattern(ISAS[-1], 4, 0, 0)] = cycle((8.0, 2.0, 3.0))
    monkeypatch.setattr(meter, "_read_rate", lambda pattern: next(readings[pattern]))
    monkeypatch.setattr(meter, "_fma_rate", lambda isa: 1.0)
    for _ in range(3):
        meter.run()
    assert (meter.limits().bandwidth, meter.limits().bandwidth_median) == (9.0, 4.0)


def test_the_median_of_the_peak_is_of_what_each_run_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = LimitMeter(1, buffer_bytes=1 << 20)
    for peak in (5.0, 7.0, 6.0):
        monkeypatch.setattr(meter, "_fma_rate", lambda isa, best=peak: best if isa == ISAS[-1] else 1.0)
        meter.run()
    assert (meter.limits().fma_peak, meter.limits().fma_median) == (7.0, 6.0)


@pytest.mark.parametrize(("text", "size"), [("32768K\n", 32 << 20), ("2M", 2 << 20), ("", 0), ("odd", 0)])
def test_the_last_cache(text: str, size: int, tmp_path: Path) -> None:
    (tmp_path / "size").write_text(text)
    assert last_cache_bytes(tmp_path / "size") == size
    assert last_cache_bytes(tmp_path / "none") == 0

"""The limits of this machine: bandwidth of reading memory, and peak of multiply-adds. The best that any loop of ours
has reached.

A limit must be hard to beat, and of the same time as the figures beside it. So it is the best of several access
patterns, kernel builds and runs, and the runs are spread over the whole measurement (see karat.bench.workloads). What
a median of figures is compared with is a median, too: of all readings by one pattern, the fastest by its median. The
loops are csrc/measure/limits.cpp.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic

from karat.errors import CapacityError, ExecutorError
from karat.machine.extension import native, unavailable_reason

MIN_BUFFER_BYTES = 512 << 20  # many times a cache
CACHES_PER_BUFFER = 8
FIRST_READINGS = 3  # of each pattern, in turns
NUM_KEPT = 3  # patterns that are read by again in later runs, in turns
READ_RUN_S = 0.5  # of reading in such a run: memory that was idle is slow for some tenths of a second
FMA_RUN_S = 0.02
_L3 = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")


@dataclass(frozen=True, slots=True)
class ReadPattern:
    """How a buffer is read: the kernel build; streams a thread; bytes by which prefetches run ahead (0: none); chunk
    0: each thread reads one part, else the bytes of the chunks that threads take in turn.
    """

    isa: str
    streams: int
    ahead: int
    chunk: int


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """bandwidth in bytes/s, with the pattern that reached it; FMA peak in FLOP/s of the best build and of each.

    The median of the bandwidth is over all readings of a pattern, that of the FMA peak over the runs. A best far above
    its median was a moment: a clock that rose while little power was drawn, or quiet neighbours.
    """

    num_threads: int
    bandwidth: float
    pattern: ReadPattern
    fma_peak: float
    fma_by_isa: dict[str, float]
    bandwidth_median: float
    fma_median: float
    num_runs: int


class LimitMeter:
    """Measures with `num_threads` threads at once; each `run` may raise the limits, and none lowers them.

    It holds a buffer of 512 MiB, or of eight times the last cache if that is more. ExecutorError without the native
    extension, CapacityError if there is no memory for the buffer.
    """

    def __init__(self, num_threads: int, *, buffer_bytes: int | None = None) -> None:
        if reason := unavailable_reason():
            raise ExecutorError(f"limits are measured by the native extension, which is not available: {reason}")
        import karat._native as extension

        self.num_threads = num_threads
        self._isas = instruction_sets()
        num_bytes = buffer_bytes or max(MIN_BUFFER_BYTES, CACHES_PER_BUFFER * last_cache_bytes())
        try:
            self._native = extension.Limits(num_bytes, num_threads)
        except MemoryError:
            raise CapacityError(
                f"a buffer of {num_bytes} bytes to measure the memory's bandwidth does not fit; close other programs"
            ) from None
        self._readings: dict[ReadPattern, list[float]] = {pattern: [] for pattern in _patterns(self._isas)}
        self._kept: list[ReadPattern] = []
        self._peaks = dict.fromkeys(self._isas, 0.0)
        self._peak_of_runs: list[float] = []

    def run(self) -> None:
        """One more measurement: the first of all patterns, later ones of the best."""
        is_first = not self._peak_of_runs
        if is_first:
            for _ in range(FIRST_READINGS):
                self._read_by(self._readings)
            self._kept = sorted(self._readings, key=self._median, reverse=True)[:NUM_KEPT]
        else:
            end = monotonic() + READ_RUN_S
            while monotonic() < end:
                self._read_by(self._kept)
        fastest = sorted(self._peaks, key=self._peaks.__getitem__)[-1]
        peaks = {isa: self._fma_rate(isa) for isa in (self._isas if is_first else (fastest,))}
        self._peaks.update({isa: max(self._peaks[isa], rate) for isa, rate in peaks.items()})
        self._peak_of_runs.append(max(peaks.values()))

    def limits(self) -> MachineLimits:
        """The best so far. Call `run` at least once before."""
        assert self._peak_of_runs, "nothing was measured"
        pattern = max(self._readings, key=lambda pattern: max(self._readings[pattern]))
        return MachineLimits(
            num_threads=self.num_threads,
            bandwidth=max(self._readings[pattern]),
            pattern=pattern,
            fma_peak=max(self._peaks.values()),
            fma_by_isa=dict(self._peaks),
            bandwidth_median=max(map(self._median, self._kept)),
            fma_median=median(self._peak_of_runs),
            num_runs=len(self._peak_of_runs),
        )

    def _read_by(self, patterns: Iterable[ReadPattern]) -> None:
        for pattern in patterns:
            self._readings[pattern].append(self._read_rate(pattern))

    def _median(self, pattern: ReadPattern) -> float:
        return median(self._readings[pattern])

    def _read_rate(self, pattern: ReadPattern) -> float:
        """Bytes/s of reading the buffer once."""
        seconds, _ = self._native.read(pattern.isa, pattern.streams, pattern.ahead, pattern.chunk)
        return self._native.num_bytes / seconds

    def _fma_rate(self, isa: str) -> float:
        """FLOP/s, of a run that is long enough for the clock."""
        rounds = 1024
        while True:
            seconds, flops, _ = self._native.fma(isa, rounds)
            if seconds > FMA_RUN_S:
                return flops / seconds
            rounds *= 4


def instruction_sets() -> tuple[str, ...]:
    """Those with loops that this CPU runs. Builds for one maker's cores (avx512-intel) have no loops of their own."""
    return () if unavailable_reason() else tuple(native().limit_isas())


def _patterns(isas: tuple[str, ...]) -> list[ReadPattern]:
    shapes = [(streams, ahead, chunk) for chunk in (0, 1 << 20) for streams in (1, 2, 4, 8) for ahead in (0, 512, 4096)]
    return [ReadPattern(isa, *shape) for isa in isas for shape in shapes]


def last_cache_bytes(size: Path = _L3) -> int:
    """Bytes of the processor's third-level cache; 0 where Linux states none."""
    text = size.read_text().strip() if size.exists() else ""
    number, unit = text[:-1], text[-1:]
    return int(number) * {"K": 1 << 10, "M": 1 << 20}[unit] if number.isdigit() and unit in "KM" else 0

"""The memory of `karat batch` over many lines: python -m benchmarks.batch_memory [-n 1000000] [--folder DIR]

A scripted server, of which nothing is measured, answers every request at once. What is measured is all else: reading,
sorting, dealing out, the journal, the output. Prints one JSON object: megabytes of memory (resident, without the pages
of files) before it begins, at every tenth of the answers, and after the output is written; and the lines a second.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from karat.batch_files.asking import PatientPlace
from karat.batch_files.journal import BatchAnswer, Journal
from karat.batch_files.lines import LineReading
from karat.batch_files.running import Batch, BatchMeter, answer_pending, survey, write_results
from karat.batch_files.sources import RequestLines

_BODY = json.dumps(
    {
        "id": "cmpl-" + "0" * 24,
        "object": "text_completion",
        "choices": [{"index": 0, "text": "once there was a fox " * 12, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 64, "total_tokens": 84},
    }
).encode()


class ScriptedPlace:
    """A place to ask (karat.batch_files.asking) that answers at once."""

    name = "a script"

    async def post(self, route: str, body: bytes) -> tuple[BatchAnswer, Mapping[str, str]]:
        await asyncio.sleep(0)
        return BatchAnswer(200, "req_0", _BODY), {}


class CountingMeter(BatchMeter):
    """Notes the memory at every tenth."""

    def __init__(self, num_requests: int) -> None:
        super().__init__(num_requests)
        self.noted: list[float] = []

    def count(self, answer: BatchAnswer) -> None:
        super().count(answer)
        if self.num_done % max(1, self.num_requests // 10) == 0:
            self.noted.append(resident_mb())
            print(f"{self.num_done:,} answers: {self.noted[-1]:.1f} MB", file=sys.stderr)


def resident_mb() -> float:
    """Anonymous memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
    return int(kilobytes) / 1000


def measure(num_lines: int, folder: Path) -> dict[str, object]:
    source = folder / "in.jsonl"
    with source.open("w", encoding="utf-8") as file:
        for number in range(num_lines):
            text = f"Tell me story number {number} of the fox that went over the hills {number * 7919 % 1000} times."
            file.write(json.dumps({"custom_id": f"line-{number}", "prompt": text, "max_tokens": 64}) + "\n")
    before, begun = resident_mb(), time.perf_counter()
    batch = Batch(RequestLines(source), LineReading({}), 0, Journal(folder / "journal"))
    found = survey(batch)
    surveyed, meter = resident_mb(), CountingMeter(found.num_requests)
    asyncio.run(answer_pending(batch, [PatientPlace(ScriptedPlace(), 60)], 32, meter, lambda text: None))
    num_good, num_bad = write_results(batch, folder / "out", folder / "errors", times=False)
    elapsed_s = time.perf_counter() - begun
    assert (num_good, num_bad) == (num_lines, 0)
    return {
        "lines": num_lines,
        "megabytes": {
            "before": before,
            "surveyed": surveyed,
            "at_tenths": [round(each, 1) for each in meter.noted],
            "written": resident_mb(),
        },
        "output_megabytes": round((folder / "out").stat().st_size / 1e6),
        "lines_per_s": round(num_lines / elapsed_s),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch_memory", description=__doc__.partition("\n")[0])
    parser.add_argument("-n", "--lines", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="for about 1.5 GB of files, which are removed")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(json.dumps(measure(options.lines, Path(folder)), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The fuzz harness finds what is planted, and nothing in the reader within its few seconds here."""

import random
import subprocess
import sys
from pathlib import Path

from tools.fuzz_gguf import Fuzzer

ROOT = Path(__file__).parents[2]


def test_coverage_leads_it_to_a_planted_bug() -> None:
    """Four bytes in a row by chance alone would take billions of files."""

    def target(content: bytes) -> None:
        for place, expected in enumerate(b"\x47\x13\xe5\x7a"):
            if content[place : place + 1] != bytes([expected]):
                return
        raise IndexError("planted")

    fuzzer = Fuzzer(target, [bytes(4)], lambda name: name == __file__, random.Random(1))
    for _ in range(60):
        fuzzer.run(1)
        if fuzzer.faults:
            break
    content, what = fuzzer.faults[0]
    assert content[:4] == b"\x47\x13\xe5\x7a"
    assert "IndexError: planted" in what


def test_the_reader_stands_it() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "fuzz_gguf.py", "--seconds", "2"], capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "0 faults" in done.stdout

"""Perplexity from logits that are looked at row by row and never kept: the same bits in little memory."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from karat import LLM
from karat.check.session.perplexity import perplexity, windows
from karat.engine.choosing.logits_readers import LogitsTarget
from tests.engine.tiny import write_model

CHILD = """
import re, sys
from pathlib import Path
from karat.cli import main
code = main(["perplexity", sys.argv[1], sys.argv[2]])
print(code, re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def whole_logits(llm: LLM, ids: Sequence[int], window: int, stride: int) -> float:
    """-log of the text's probability as it was computed from all logits of a window in one array."""
    nats = 0.0
    for begin, end, first in windows(len(ids), window, stride):
        rows = llm.logits(ids[begin:end])[first - begin - 1 : end - begin - 1].astype(np.float64)
        largest = rows.max(axis=1)
        log_sum = largest + np.log(np.exp(rows - largest[:, None]).sum(axis=1))
        nats += float((log_sum - rows[np.arange(len(rows)), np.asarray(ids[first:end])]).sum())
    return nats


@pytest.mark.drawn(1, each=("budget", "window"))
@pytest.mark.parametrize("budget", [1, 7, 40, 512])
@pytest.mark.parametrize(("window", "stride"), [(96, 48), (33, 7), (2, 1)])
def test_the_bits_are_those_of_all_logits_at_once(budget: int, window: int, stride: int) -> None:
    llm = LLM(max_num_seqs=1, max_num_batched_tokens=budget, kv_dtype="float32")
    ids = llm.tokenizer.encode(
        "Once upon a time there was a fox. It lived in a hole under a tree, and it was sad.\n" * 6
    )
    ids = ids[:130]
    *_, score = perplexity(llm.write_logits, ids, window=window, stride=stride)
    assert score.num_scored == score.num_total == len(ids) - 1
    assert score.nats == whole_logits(llm, ids, window, stride)


def test_rows_that_come_again_are_counted_once() -> None:
    """As they do after an interrupt of another thread's."""
    logits = np.random.default_rng(1).standard_normal((20, 50)).astype(np.float32)

    def write(ids: Sequence[int], target: LogitsTarget, *, again: bool = True) -> None:
        for first, last in [(0, 9), *([(0, 4), (4, 9)] if again else []), (9, 20)]:
            rows: NDArray[np.floating] = logits[first:last].copy()
            target[first:last] = rows
            rows[:] = np.nan  # lent for the call

    ids = list(range(20))
    found = {
        list(perplexity(lambda ids, target, again=again: write(ids, target, again=again), ids, window=20, stride=9))[
            -1
        ].nats
        for again in (False, True)
    }
    assert len(found) == 1 and np.isfinite(found.pop())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc, Linux's")
def test_logits_of_a_window_are_never_all_in_memory(tmp_path: Path) -> None:
    """2,047 rows of 65,536 float32 are 537 MB, and as many in float64, three times, were 3.2 GB more."""
    write_model(tmp_path, vocab_size=65_536, num_hidden_layers=1, max_position_embeddings=2048)
    (tmp_path / "text").write_text("The quick brown fox " * 105)  # of a byte a token
    command = [sys.executable, "-P", "-c", CHILD, str(tmp_path), str(tmp_path / "text")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.search(r"over 2099 tokens.*\n0 (\d+)$", done.stdout.strip())
    assert found, done.stdout
    assert int(found[1]) < 400_000  # kB; Python, the libraries and the model are about 120,000, a step's logits 65,000

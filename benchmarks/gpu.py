"""A GPU, in commands of a few minutes each: python -m benchmarks.gpu STAGE [--device cuda] [--out FILE]

| stage  | what it finds                                                                                    |
|--------|--------------------------------------------------------------------------------------------------|
| bits   | the digests of contract 5 in all formats and widths; a model's logits against the CPU's           |
| decode | seconds of each linear layer of an 8B model for 1, 4 and 16 tokens, beside copying in the same run |

A stage needs nothing that an earlier one left. It says what it found in a table and, with --out, in a JSON file with
the card's name. `--device cuda-emulated` rehearses it on layers of a thirty-second of the rows and columns, at least
256 of these; its times say nothing.

`bits` ends with status 1 where a bit is another one. `decode` times the device alone: some calls in a row, then one
read, which waits for them; the median of five.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from karat.check.session.same_bits import invariance_of
from karat.checkpoint.weights import Weight
from karat.config import embedded_model_path
from karat.models.opening import open_model
from karat.ops.device import DeviceOps
from karat.ops.leaves import leaf_ends
from karat.ops.registry import create
from karat.quant import FORMATS
from tests.support.integer_digests import digest, stated

# Of an 8B model: name, rows, columns, and how many leaves it has.
LAYERS = (("qkv", 6144, 4096, 1), ("o", 4096, 4096, 8), ("gate, up", 28672, 4096, 1), ("down", 4096, 14336, 8))
TYPES = ("Q4_0", "Q4_K", "Q8_0", "BF16")
TOKENS = (1, 4, 16)
COPIED_BYTES = 2**30


def bits(device: str) -> Iterator[dict[str, Any]]:
    """A row for each format and width, then one for each way to compute the embedded model."""

    def on_device(weight: Weight, x: Any, ends: tuple[int, ...], width: str) -> Any:
        ops = _open(device, width)
        return ops.read(ops.linear(x, ops.load(weight), leaves=ends, name="layer"))

    for (stored, width), expected in stated().items():
        yield {"what": f"{stored}, {width}", "same": digest(stored, width, on_device) == expected}
    checkpoint = open_model(embedded_model_path())
    num_tokens = 8 if device == "cuda-emulated" else 300
    for row in invariance_of(checkpoint, num_tokens=num_tokens, options={"device": device}):
        yield {"what": row.setting.name, "same": row.is_right}


def decode(device: str) -> Iterator[dict[str, Any]]:
    """A row for copying, then one for each type, layer and number of tokens."""
    share = 32 if device == "cuda-emulated" else 1
    ops = _open(device, "int16")
    rng = np.random.default_rng(0)
    big = ops.scale(rng.standard_normal((1, COPIED_BYTES // 4 // share**2), np.float32), 1.0, name="big")
    copied = _seconds(ops, lambda: ops.scale(big, 1.0, name="copy"))
    bandwidth = 2 * COPIED_BYTES / share**2 / copied
    yield {"what": "copy", "seconds": copied, "bytes_per_s": bandwidth}
    for stored in TYPES:
        for name, rows, columns, leaves in LAYERS:
            shape = (rows // share, max(256, columns // share // 256 * 256))
            weight = _random(stored, shape, rng)
            loaded = ops.load(weight)
            ends = leaf_ends(shape[1], _block(stored)) if leaves > 1 else (shape[1],)
            for tokens in TOKENS:
                x = ops.scale(rng.standard_normal((tokens, shape[1]), np.float32), 1.0, name="x")
                seconds = _seconds(ops, lambda x=x, w=loaded, e=ends: ops.linear(x, w, leaves=e, name="layer"))  # type: ignore[misc]
                speed = weight.num_bytes / seconds
                yield {
                    "what": f"{stored}, {name}, {tokens} tokens",
                    "seconds": seconds,
                    "bytes_per_s": speed,
                    "of_copy": speed / bandwidth,
                }


def _open(device: str, width: str) -> DeviceOps:
    ops = create("auto", "float32", {"device": device, "activations": width})
    if not isinstance(ops, DeviceOps):
        raise SystemExit(f"--device {device}: expected cuda, cuda:N or cuda-emulated")
    return ops


def _block(stored: str) -> int:
    return FORMATS[stored].block_size if stored in FORMATS else 1


def _random(stored: str, shape: tuple[int, int], rng: np.random.Generator) -> Weight:
    """Any bytes; scales are what they happen to be, as speed does not depend on them."""
    of_bytes = FORMATS[stored].block_bytes if stored in FORMATS else 2
    data = rng.integers(0, 256, shape[0] * shape[1] // _block(stored) * of_bytes, np.uint8)
    return Weight("layer", stored, shape, data, Path("in-memory"))


def _seconds(ops: DeviceOps, call: Callable[[], Any]) -> float:
    """Of a call: the median of five series, each about as long as 20 calls, or one where it takes long."""
    ops.read(call())
    begun = perf_counter()
    ops.read(call())
    count = 20 if perf_counter() - begun < 0.02 else 1
    series = []
    for _ in range(5):
        begun = perf_counter()
        for _ in range(count - 1):
            call()
        ops.read(ops.scale(call(), 1.0, name="last"))
        series.append((perf_counter() - begun) / count)
    return statistics.median(series)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("stage", choices=("bits", "decode"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    rows = []
    for row in {"bits": bits, "decode": decode}[given.stage](given.device):
        rows.append(row)
        print(_line(row), flush=True)
    facts = {
        "stage": given.stage,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": given.device,
        "card": _open(given.device, "int16").device_name,
        "rows": rows,
    }
    if given.out is not None:
        given.out.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    wrong = [row["what"] for row in rows if not row.get("same", True)]
    print(f"{facts['card']}: {len(rows)} rows" + (f", DIFFERENT: {'; '.join(wrong)}" if wrong else ""))
    return 1 if wrong else 0


def _line(row: dict[str, Any]) -> str:
    if "same" in row:
        return f"{row['what']:<40} {'same' if row['same'] else 'DIFFERENT'}"
    share = f"{row['of_copy']:>8.1%} of copying" if "of_copy" in row else ""
    return f"{row['what']:<40} {row['seconds'] * 1e6:>10.1f} µs {row['bytes_per_s'] / 1e9:>9.1f} GB/s{share}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

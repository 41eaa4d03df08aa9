"""A GPU, in commands of a few minutes each: python -m benchmarks.gpu STAGE [--device cuda] [--out FILE]

| stage  | what it finds                                                                                          |
|--------|--------------------------------------------------------------------------------------------------------|
| driver | of a Hopper card: the prototype's bits, then rates of copying, FFMA and tiles; nvcc compiles it        |
| bits   | the digests of contract 5 in all formats and widths, and layers of all types for 1, 3, 8, 17 and 200   |
|        | tokens; logits of the embedded model and of one in Q4_0 against the CPU's, under every setting         |
| layers | seconds of each linear layer of an 8B model for 1, 4 and 16 tokens                                     |
| decode | an 8B model's step for 1, 4, 16 and 64 sequences at a context of 512, and for 1, 4 and 16 at 8192, and |
|        | a prompt of 512; --types, --shape                                                                      |

A stage needs nothing that an earlier one left. It says what it found in a table and, with --out, in a JSON file with
the card's name. `--device cuda-emulated` rehearses it: `layers` then has a thirty-second of the rows and columns, at
least 256 of these, `decode` is better given --shape tiny, and `driver` is compiled; the times say nothing.

`bits` ends with status 1 where a bit is another one. The others measure what a device copies from its memory to its
memory in the same run, bytes read and written, and give the bytes of weights a second, at 8192 those of the cache too,
as a share of it. A layer is timed as one list of launches on matrices of more than 128 MB in all, so that no cache has
them; a step is timed as the engine runs it, its logits on the host, and as its launches alone. All are medians of five.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from karat.batch import ForwardBatch
from karat.bench.device_limits import DeviceMeter, recorded_launches, seconds_of
from karat.bench.shapes import random_model, write_shape
from karat.check.session.same_bits import invariance_of
from karat.checkpoint.weights import Weight
from karat.config import embedded_model_path
from karat.engine.model_running import open_runner
from karat.errors import NumericsError
from karat.models.opening import open_model
from karat.models.registry import build, read_config
from karat.ops.device import DeviceOps
from karat.ops.device_plan import DevicePlan
from karat.ops.executor import StepLimits
from karat.ops.leaves import leaf_ends
from karat.ops.registry import create
from karat.quant import FORMATS
from tests.support.integer_digests import digest, stated
from tests.support.weights import random_blocks

# Of an 8B model: name, rows, columns, and how many leaves it has.
LAYERS = (("qkv", 6144, 4096, 1), ("o", 4096, 4096, 8), ("gate, up", 28672, 4096, 1), ("down", 4096, 14336, 8))
TYPES = ("Q4_0", "Q4_K", "Q8_0", "BF16")
TOKENS = (1, 4, 16)
TOKENS_OF_BITS = (1, 3, 8, 17, 200)
COPIED_BYTES = 2**30
BEYOND_CACHES = 128 * 2**20  # bytes
CONTEXT, LONG_CONTEXT, BLOCK_SIZE = 512, 8192, 16
FILLED = 16  # sequences that have computed a prompt; more of them read the blocks of these


def driver(device: str) -> Iterator[dict[str, Any]]:
    """A row for each line that the prototype says; for the emulation one that it compiles."""
    source = Path(__file__).with_name("gpu") / "driver.cu"
    with TemporaryDirectory() as folder:
        program, hopper = Path(folder) / "driver", "arch=compute_90a,code=sm_90a"
        subprocess.run(
            ["nvcc", "-O3", "-std=c++20", "-gencode", hopper, "-fmad=false", source, "-o", program], check=True
        )
        if device == "cuda-emulated":
            yield {"what": "driver.cu compiles", "same": program.exists()}
            return
        with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            yield from ({"what": line.rstrip()} for line in running.stdout)
        yield {"what": "its bits", "same": running.returncode == 0}


def bits(device: str) -> Iterator[dict[str, Any]]:
    """A row for each format and width, for each type of floats, and for each way to compute two models.

    A digest is of 24 tokens. The result that has it is then compared with those for other numbers of tokens, for which
    other kernels are launched.
    """
    counts = TOKENS_OF_BITS[:-1] if device == "cuda-emulated" else TOKENS_OF_BITS
    differing: list[str] = []

    def on_device(weight: Weight, x: Any, ends: tuple[int, ...], width: str) -> Any:
        ops = _open(device, width)
        loaded = ops.load(weight)
        result = ops.read(ops.linear(x, loaded, leaves=ends, name="layer"))
        for tokens in counts:
            rows = np.arange(tokens) % len(x)
            found = ops.read(ops.linear(x[rows], loaded, leaves=ends, name="layer"))
            if not _same_bits(found, result[rows]):
                differing.append(f"{tokens} tokens")
        return result

    for (stored, width), expected in stated().items():
        same = digest(stored, width, on_device) == expected
        yield {"what": f"{stored}, {width}", "same": same and not differing}
        differing.clear()
    rng = np.random.default_rng(0)
    native = create("native")
    for stored in ("F32", "F16", "BF16", "E4M3"):
        weight, x = random_blocks(stored, 150, 640, rng), rng.standard_normal((24, 640), np.float32)
        for ends in ((640,), leaf_ends(640, _block(stored))):
            want = native.linear(x, native.load(weight), leaves=ends, name="layer")
            if not _same_bits(on_device(weight, x, ends, "int16"), want):
                differing.append("24 tokens")
        yield {"what": f"{stored}, layers", "same": not differing}
        differing.clear()
    num_tokens = 8 if device == "cuda-emulated" else 300
    with TemporaryDirectory() as folder:
        in_blocks = Path(folder) / "tiny.gguf"  # a file, because ranks read it
        write_shape(in_blocks, "tiny", "q4_0")
        for name, path in (("bf16", embedded_model_path()), ("q4_0", in_blocks)):
            for row in invariance_of(open_model(path), num_tokens=num_tokens, options={"device": device}):
                yield {"what": f"{name}: {row.setting.name}", "same": row.is_right}


def _same_bits(a: Any, b: Any) -> bool:
    """NaN where there is NaN, of any sign and payload."""
    return np.array_equal(*(np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32)) for x in (a, b)))


def layers(device: str) -> Iterator[dict[str, Any]]:
    """A row for copying, then one for each type, layer and number of tokens."""
    share = 32 if device == "cuda-emulated" else 1
    ops = _open(device, "int16")
    on, rng = ops.kernels, np.random.default_rng(0)
    bandwidth = _copying(ops, share)
    yield {"what": "copying", "bytes_per_s": bandwidth}
    for stored in TYPES:
        for name, rows, columns, leaves in LAYERS:
            shape = (rows // share, max(256, columns // share // 256 * 256))
            weight = _random(stored, shape, rng)
            loaded = [ops.load(weight) for _ in range(1 + BEYOND_CACHES // share**2 // weight.num_bytes)]
            ends = list(leaf_ends(shape[1], _block(stored)) if leaves > 1 else (shape[1],))
            for tokens in TOKENS:
                x = on.device.array(rng.standard_normal((tokens, shape[1]), np.float32))
                digits = on.device.quantise(x, on.width) if stored in FORMATS else None

                def all_of_them(x: Any = x, digits: Any = digits, loaded: Any = loaded, ends: Any = ends) -> None:
                    for each in loaded:
                        on.device.linears([each], x, digits, on.width, ends, [None], None)

                seconds = _seconds_of_launches(ops, all_of_them) / len(loaded)
                yield _row(f"{stored}, {name}, {tokens} tokens", seconds, weight.num_bytes, bandwidth)


def decode(device: str, shape: str, types: list[str]) -> Iterator[dict[str, Any]]:
    """A row for copying, then for each type one for each number of sequences, and one for a prompt."""
    for stored in types:
        ops = _open(device, "int16")
        bandwidth = _copying(ops, 32 if device == "cuda-emulated" else 1)
        yield {"what": "copying", "bytes_per_s": bandwidth}
        made = random_model(shape, stored=stored).checkpoint
        config = read_config(made.config)
        longest = LONG_CONTEXT if device != "cuda-emulated" else 2 * CONTEXT
        model = build(config, ops, made, num_positions=longest + 1)
        read = sum(w.num_bytes for name, w in made.weights.items() if len(w.shape) > 1 and "embed" not in name)
        limits = StepLimits(num_tokens=CONTEXT, num_logit_rows=64, num_seqs=64, context_len=longest + 1)
        blocks = max(_blocks_each(CONTEXT) * FILLED, _blocks_each(longest) * max(TOKENS))
        run = open_runner(model, "float16", [blocks], limits, block_size=BLOCK_SIZE)
        assert isinstance(run, DevicePlan), "a model that is launched as a list"
        for seq in range(FILLED):
            run(_batch([seq], 0, CONTEXT))
        prompt = _batch([0], 0, CONTEXT)
        seconds = _median(lambda run=run, prompt=prompt: run(prompt))  # type: ignore[misc]
        yield {"what": f"{stored}, a prompt of {CONTEXT}", "seconds": seconds, "tokens_per_s": CONTEXT / seconds}
        for seqs in (*TOKENS, 64):
            batch = _batch(list(range(seqs)), CONTEXT, CONTEXT + 1)
            run(batch)
            seconds = _median(lambda run=run, batch=batch: run(batch))  # type: ignore[misc]
            row = _row(f"{stored}, {seqs} sequences", seconds, read, bandwidth)
            yield row | {"tokens_per_s": seqs / seconds}
            seconds = _seconds(ops, run.launches(batch).replay)
            yield _row(f"{stored}, {seqs} sequences, launches", seconds, read, bandwidth)
        for seqs in TOKENS:  # the cache holds what it happens to hold: speed does not depend on it
            of_cache = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 2 * longest * seqs
            batch = _batch(list(range(seqs)), longest, longest + 1)
            with suppress(NumericsError):
                run(batch)
            seconds = _seconds(ops, run.launches(batch).replay)
            yield _row(f"{stored}, {seqs} sequences at {longest}, launches", seconds, read + of_cache, bandwidth)


def _blocks_each(context: int) -> int:
    return -(-(context + 1) // BLOCK_SIZE)


def _batch(seqs: list[int], begin: int, end: int) -> ForwardBatch:
    """Tokens begin … end - 1 of these sequences, FILLED of which have blocks of their own; the last one's logits are
    wanted.
    """
    new, blocks_each = end - begin, _blocks_each(CONTEXT if end <= CONTEXT + 1 else end - 1)
    positions = [position for _ in seqs for position in range(begin, end)]
    first = {seq: seq % FILLED * blocks_each * BLOCK_SIZE for seq in seqs}
    return ForwardBatch.of(
        BLOCK_SIZE,
        token_ids=[position % 97 for position in positions],
        positions=positions,
        query_starts=[i * new for i in range(len(seqs) + 1)],
        context_lens=[end] * len(seqs),
        logit_rows=[(i + 1) * new - 1 for i in range(len(seqs))],
        slots=[[first[seq] + position for seq in seqs for position in range(begin, end)]],
        block_tables=[[list(range(first[seq] // BLOCK_SIZE, first[seq] // BLOCK_SIZE + blocks_each)) for seq in seqs]],
    )


def _row(what: str, seconds: float, num_bytes: int, bandwidth: float) -> dict[str, Any]:
    speed = num_bytes / seconds
    return {"what": what, "seconds": seconds, "bytes_per_s": speed, "of_copying": speed / bandwidth}


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


def _copying(ops: DeviceOps, share: int) -> float:
    """Bytes a second, read and written."""
    size = COPIED_BYTES // 4 // share**2
    meter = DeviceMeter(ops, copied_bytes=4 * size)
    for _ in range(5):
        meter.run()
    return meter.limits().bandwidth_median


def _seconds_of_launches(ops: DeviceOps, launch: Callable[[], Any]) -> float:
    return _seconds(ops, recorded_launches(ops.kernels.device, launch))


def _seconds(ops: DeviceOps, call: Callable[[], Any]) -> float:
    return statistics.median(seconds_of(ops.kernels.device, call) for _ in range(5))


def _median(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(5):
        begun = perf_counter()
        call()
        times.append(perf_counter() - begun)
    return statistics.median(times)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("stage", choices=("driver", "bits", "layers", "decode"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="llama-3.1-8b", help="of karat.bench.shapes, for decode")
    parser.add_argument("--types", default="q4_0,q4_k_m,q8_0,bf16", help="of its weights, for decode")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    stages: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "driver": lambda: driver(given.device),
        "bits": lambda: bits(given.device),
        "layers": lambda: layers(given.device),
        "decode": lambda: decode(given.device, given.shape, given.types.split(",")),
    }
    rows = []
    for row in stages[given.stage]():
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
    parts = [f"{row['what']:<40}"]
    if "same" in row:
        parts.append("same" if row["same"] else "DIFFERENT")
    if "seconds" in row:
        parts.append(f"{row['seconds'] * 1e6:>10.1f} µs")
    if "bytes_per_s" in row:
        parts.append(f"{row['bytes_per_s'] / 1e9:>9.1f} GB/s")
    if "of_copying" in row:
        parts.append(f"{row['of_copying']:>8.1%} of copying")
    if "tokens_per_s" in row:
        parts.append(f"{row['tokens_per_s']:>9.1f} tokens/s")
    return " ".join(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Models with recurrent layers beside llama.cpp, and the recurrence's share of a step: python -m benchmarks.recurrent

For one shape and type, in a file of random weights that is made once: prefill of 512 tokens and decode after 128, in
turns with llama.cpp on the same file. Then the recurrence alone: a plan of the delta rule of as many layers as do not
fit into any cache, with as many threads, for a prefill of 512 tokens and for one token; and of the convolution before
it. Its share is that of the model's delta nets of a step of the whole model, of which decode is taken without the head:
a step whose logits nobody wants.

    python -m benchmarks.recurrent --shape qwen3.5-9b-cut --weights q4_k_m --peer-path llama.cpp=FOLDER

FOLDER has a build of llama-cpp-python. The result goes to benchmarks/results/DATE-MACHINE-recurrent-SHAPE-TYPE.json.
"""

import argparse
import os
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.integers import Eta, peer_paths, row
from benchmarks.record import RESULTS, ROOT, commit, keep, without_folders
from karat.batch import ForwardBatch
from karat.bench.limits import LimitMeter
from karat.bench.peers.process import PeerProcess
from karat.bench.shape_configs import SHAPES
from karat.bench.shapes import write_shape
from karat.bench.sides import Side, extra_tokens
from karat.bench.workloads import Workload, measure
from karat.engine.engine_config import EngineConfig
from karat.engine.model_running import open_runner
from karat.kv.blocks import BLOCK_SIZE
from karat.kv.groups import State, bytes_of_state
from karat.machine import cores, extension, memory, processor
from karat.models.decoder import outline
from karat.models.opening import open_model
from karat.models.registry import build, read_config
from karat.ops import api
from karat.ops.executor import Runner, StateSpec, StepLimits
from karat.ops.native import NativeOps, supported_isas
from karat.ops.native_plan import PlanRecorder

KIND = "recurrent"
PEER = "llama.cpp"
SIDES = "benchmarks.integer_sides"
RECURRENT = tuple(name for name in SHAPES if name.startswith("qwen3.5"))
BEYOND_CACHES = 512 << 20  # bytes of states that are read before the first comes again
ONE = 24  # steps of one token


def beside(path: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of Karat and of llama.cpp, and reading (bytes a second) between their turns."""
    prompt, steps = options.prompt_tokens, options.gen_tokens
    planned = (Workload("prefill", prompt), Workload("decode", min(128, prompt), 1, steps))
    longest = max(
        each.prompt_tokens + extra_tokens([each.prompt_tokens], prompt) + each.num_steps(options.repeat) + 1
        for each in planned
    )
    given = {"model": str(path), "num_threads": options.threads}
    karat = given | {"longest": longest, "batch": 1, "isa": supported_isas()[-1], "activations": "int16"}
    makers: list[Callable[[], Side]] = [partial(PeerProcess, f"{SIDES}:load_karat", karat)]
    if not options.no_peer:
        makers.append(partial(PeerProcess, f"{SIDES}:load_peer", given | {"peer": PEER, "path": options.path}))
    progress = Eta(len(makers) * 3 + len(planned) * options.repeat * (1 + len(makers)))
    meter = LimitMeter(options.threads, buffer_bytes=options.buffer_bytes)
    sides: list[Side] = []
    try:
        for make in makers:
            progress("loading")
            sides.append(make())
        rows = []
        for workload in planned:
            found = measure(
                workload,
                sides,
                repeat=options.repeat,
                vocab_size=int(open_model(path).config["vocab_size"]),
                meter=meter,
                progress=progress,
            )
            rows += [row(workload, side, series) for side, series in zip(sides, found, strict=True)]
    finally:
        for side in sides:
            side.close()
    limits = meter.limits()
    for own in rows:
        if own["bytes"] is not None:
            own["of_reading"] = own["bytes"] / own["seconds"] / limits.bandwidth_median
            own["of_float_peak"] = own["linear_flops"] / own["seconds"] / limits.fma_median
            others = [each for each in rows if each["workload"] == own["workload"] and each is not own]
            own["times_peer"] = others[0]["seconds"] / own["seconds"] if others else None
    return rows


def shares(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of whole steps, of the recurrences of all delta nets in them, and their shares."""
    checkpoint = open_model(path)
    config = read_config(checkpoint.config)
    states = [kept for kept in outline(config).keeps if isinstance(kept, State)]
    ops = NativeOps(threads=options.threads)
    prompt = options.prompt_tokens
    sizes = EngineConfig(
        vocab_size=config.vocab_size,
        max_model_len=prompt + ONE,
        num_blocks=-(-(prompt + ONE) // BLOCK_SIZE) + 1,
        max_num_seqs=1,
        max_num_batched_tokens=prompt,
        state_bytes=bytes_of_state(outline(config).keeps, "float32"),
    )
    model = build(config, ops, checkpoint, num_positions=prompt + ONE)
    run = open_runner(model, "float16", sizes.group_blocks, sizes.step_limits, num_states=sizes.num_state_slots)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, config.vocab_size, prompt).tolist()
    whole = statistics.median(_step(run, ids, 0, wanted=True) for _ in range(options.repeat))
    one = {
        wanted: statistics.median(_step(run, ids[:1], prompt + n, wanted=wanted) for n in range(ONE))
        for wanted in (True, False)
    }
    del run, model
    ops_of = {"delta_rule": _delta_rule, "causal_conv": _convolution}
    found: dict[str, Any] = {"delta_nets": len(states), "prefill_s": whole, "decode_s": one[True]}
    found["decode_without_head_s"] = one[False]
    for name, record in ops_of.items():
        parts = {
            tokens: len(states) * _alone(states[0], record, tokens, options, config.hybrid.delta)  # type: ignore[attr-defined]
            for tokens in (prompt, 1)
        }
        found[name] = {
            "prefill_s": parts[prompt],
            "decode_s": parts[1],
            "of_prefill": parts[prompt] / whole,
            "of_decode_without_head": parts[1] / one[False],
        }
    return found


def _step(run: Runner, ids: Sequence[int], start: int, *, wanted: bool) -> float:
    """Seconds of a step of these tokens from position `start` on; it reads state 0 unless it begins."""
    end = start + len(ids)
    batch = ForwardBatch.of(
        BLOCK_SIZE,
        token_ids=ids,
        positions=range(start, end),
        query_starts=[0, len(ids)],
        context_lens=[end],
        logit_rows=[len(ids) - 1] if wanted else [],
        slots=[range(start, end)],
        block_tables=[[list(range(-(-end // BLOCK_SIZE)))]],
        state_reads=[0 if start else -1],
        state_writes=[1 if start else 0],
    )
    begun = perf_counter()
    run(batch)
    return perf_counter() - begun


def _delta_rule(rec: PlanRecorder, state: Any, kept: State, delta: Any) -> tuple[list[Any], list[Any]]:
    keys, heads = (delta.key_heads, delta.key_dim), (delta.value_heads, delta.value_dim)
    given = [rec.input(tail) for tail in (keys, keys, heads, heads[:1], heads[:1])]
    key_heads = tuple(map(delta.key_head, range(delta.value_heads)))
    return given, [rec.apply(api.DeltaRule(*given, each, None, key_heads=key_heads, name="d")) for each in state]


def _convolution(rec: PlanRecorder, state: Any, kept: State, delta: Any) -> tuple[list[Any], list[Any]]:
    rows, channels = kept.shapes[0]
    taps = extension.native().vector(np.full(channels * (rows + 1), 0.1, np.float32))
    given = [rec.input((channels,))]
    return given, [rec.apply(api.CausalConv(given[0], taps, each, None, silu=True, name="c")) for each in state]


def _alone(kept: State, record: Any, tokens: int, options: argparse.Namespace, delta: Any) -> float:
    """Seconds of one layer's op, among those of layers whose states are together beyond all caches."""
    ops = NativeOps(threads=options.threads)
    size = 4 * sum(int(np.prod(shape)) for shape in kept.shapes)
    layers = 1 if tokens > 1 else -(-BEYOND_CACHES // (2 * size))
    states = ops.new_states(StateSpec(layers=tuple(range(layers)), num_slots=2, shapes=kept.shapes))
    rec = PlanRecorder(ops.isa, options.threads)
    given, results = record(rec, states, kept, delta)
    rec.finish(StepLimits(num_tokens=tokens, num_logit_rows=0, num_seqs=1, context_len=tokens), results)
    rng = np.random.default_rng(0)
    for handle in given:
        values = rng.uniform(0.1, 0.9, (tokens, *handle.tail)) if len(handle.tail) == 1 else None
        values = 0.1 * rng.standard_normal((tokens, *handle.tail)) if values is None else values
        rec.fill(handle, values.astype(np.float32))
    seconds = []
    for turn in range(1 + 3 * options.repeat):
        batch = ForwardBatch.of(
            1,
            token_ids=[0] * tokens,
            positions=range(tokens),
            query_starts=[0, tokens],
            context_lens=[tokens],
            logit_rows=[],
            slots=[],
            block_tables=[],
            state_reads=[turn % 2],
            state_writes=[1 - turn % 2],
        )
        begun = perf_counter()
        rec.run(batch)
        seconds.append((perf_counter() - begun) / layers)
    return statistics.median(seconds[1:])


def table(result: dict[str, Any]) -> str:
    """The result in words."""
    lines = []
    for own in result["rows"]:
        if own["bytes"] is not None:
            times = "" if own["times_peer"] is None else f", {own['times_peer']:.2f} × {PEER}"
            lines.append(
                f"{own['workload']}: {own['tokens_per_s']:.1f} tokens a second{times}; {own['of_reading']:.2f} of "
                f"reading, {own['of_float_peak']:.2f} of the float peak"
            )
    found = result["shares"]
    for name in ("delta_rule", "causal_conv"):
        lines.append(
            f"{name}: {found[name]['of_prefill']:.1%} of prefill, {found[name]['of_decode_without_head']:.1%} of "
            "decode without the head"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=RECURRENT, required=True)
    parser.add_argument("--weights", default="q4_k_m", help="the stored type, as of karat bench")
    parser.add_argument("--peer-path", nargs="+", metavar="NAME=FOLDER", default=[], help="a folder of packages")
    parser.add_argument("--no-peer", action="store_true", help="without llama.cpp")
    parser.add_argument("--threads", type=int, default=cores.num_physical_cores())
    parser.add_argument("--repeat", type=int, default=3, help="turns")
    parser.add_argument("-n", "--gen-tokens", type=int, default=32, help="steps of decode in a turn")
    parser.add_argument("-p", "--prompt-tokens", type=int, default=512)
    parser.add_argument("--folder", type=Path, default=Path("build/recurrent"), help="for the files, which are kept")
    parser.add_argument("--buffer-bytes", type=int, help="of reading; default: many times the last cache")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    options.path = next(iter(peer_paths(options.peer_path, parser.error).get(PEER, [])), None)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    path = options.folder / f"{options.shape}-{options.weights}.gguf"
    if not path.exists():
        options.folder.mkdir(parents=True, exist_ok=True)
        write_shape(path, options.shape, options.weights)
    result: dict[str, Any] = {
        "kind": KIND,
        "command": shlex.join(["python", "-m", "benchmarks.recurrent", *without_folders(given)]),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": processor.cpu_model(),
            "usable_cores": cores.num_usable_cores(),
            "memory_bytes": memory.memory_bytes(),
        },
        "threads": options.threads,
        "build": supported_isas()[-1],
        "rows": beside(path, options),
        "shares": shares(path, options),
    }
    print(table(result))
    print(keep(f"{KIND}-{options.shape}-{options.weights}", result, results))


if __name__ == "__main__":
    main()

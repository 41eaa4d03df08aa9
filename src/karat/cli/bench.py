"""`karat bench`: how fast a model runs here, against what the machine can do and against other engines."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from karat.cli.bench_model import overrides_of
from karat.cli.options import Device, HostLayers, OverrideOptions
from karat.cli.progress import Progress
from karat.cli.terminal import bytes_text, columns, emit
from karat.config import embedded_model_path
from karat.errors import UsageError
from karat.machine import cores, memory, processor

EXAMPLES = """
Examples

  karat bench                                        the embedded model
  karat bench --shape qwen2.5-0.5b --quantize q4_0   random weights
  karat bench ./my-model -p 512 -p 8192 --context 8192
  karat bench --shape llama-3.2-1b --quantize q8_0 --peer llama.cpp
  karat bench --shape qwen2.5-0.5b --plot roofline.svg
  karat bench --shape qwen2.5-0.5b --weights q4_0 --tensor-parallel-size 2
  karat bench --shape qwen3-30b-a3b-cut --weights q4_k_m --packed-cache DIR
"""


def bench(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A folder, a GGUF file, or org/name.")] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Random weights instead: qwen2.5-0.5b, qwen2.5-1.5b, llama-3.2-1b, llama-3.1-8b, gemma-3-1b, "
            "gemma-4-26b-a4b-cut (six of its layers), qwen3-30b-a3b-cut (6), gpt-oss-20b-cut (6), olmoe-small (a whole "
            "mixture of 0.5B), qwen3.5-0.8b, qwen3.5-9b-cut (8), qwen3.5-35b-a3b-cut (4), tiny, or the path of a "
            "config.json.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Stored type of --shape: bf16 (default), f16, f32, q8_0, q4_0, or a mix such as q4_k_m.",
        ),
    ] = None,
    quantize: Annotated[str | None, typer.Option(metavar="TYPE", help="Run on weights as q8_0 or q4_0.")] = None,
    prompt_tokens: Annotated[
        list[str] | None,
        typer.Option("-p", "--prompt-tokens", metavar="N", help="Prefill N tokens (default: 512); N,N or repeatable."),
    ] = None,
    gen_tokens: Annotated[
        int, typer.Option("-n", "--gen-tokens", metavar="N", help="Steps of decode in each turn.")
    ] = 32,
    batch: Annotated[int, typer.Option(metavar="B", help="Sequences of batched decode; 1: leave it out.")] = 16,
    context: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Tokens before long-context decode (default: 4096 if they fit); 0: leave it out."
        ),
    ] = None,
    repeat: Annotated[int, typer.Option(metavar="N", help="Turns of each workload.")] = 3,
    peer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Measure another engine, too: llama.cpp, transformers, openvino or openvino-f32."
        ),
    ] = None,
    tensor_parallel_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="N ranks share the threads, in turns with one process that has all of them."),
    ] = None,
    packed_cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Map the model from a packed file there, in turns with one in memory."),
    ] = None,
    threads: Annotated[int | None, typer.Option(metavar="N", help="Threads (default: as many as cores).")] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of a step, so the chunk of a prefill (default: 512).")
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Keep keys and values in float16, bfloat16 or float32.")
    ] = None,
    executor: Annotated[str | None, typer.Option(metavar="NAME", help="An executor that `karat env` lists.")] = None,
    device: Device = None,
    host_layers: HostLayers = None,
    activations: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Read by weights in blocks: int16 (default), int24 or int8.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the roofline into FILE, an .svg.", dir_okay=False)
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress on stderr.")] = False,
    *,
    words: OverrideOptions,
) -> None:
    """Measure prefill, decode, batched and long-context decode, each as a share of what the machine can do.

    The limits are the bandwidth of reading memory and the peak of fused multiply-adds, the best of several ways and
    runs, measured in between with as many threads; of a GPU what it copies in its memory, read and written. Bytes are
    all stored weights and the cache entries read in a step; FLOPs the linear layers, the causal half of attention, and
    the logits wanted. A star marks the nearer limit.

    With --peer another engine computes on the same weights in the same run, in turns; the ratio is how many times as
    fast Karat is, as median with the least and the most of all turns.
    """
    if model is not None and shape is not None:
        raise UsageError(f"both a model ({model}) and --shape {shape}; give one of them")
    if weights is not None and (shape is None or quantize is not None):
        raise UsageError("--weights says how --shape stores its weights; use it without --quantize, or leave it out")
    for name, value in (("--threads", threads), ("--max-num-batched-tokens", max_num_batched_tokens)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value}: expected at least 1")
    if tensor_parallel_size is not None and (tensor_parallel_size not in (2, 4, 8) or peer is not None):
        raise UsageError(
            f"--tensor-parallel-size {tensor_parallel_size}: expected 2, 4 or 8, and no --peer: the ranks are "
            "measured against one process"
        )
    if packed_cache is not None and (tensor_parallel_size is not None or peer is not None):
        raise UsageError("--packed-cache is measured against the same model in memory: without --peer and ranks")
    if packed_cache is not None and not packed_cache.is_dir():
        raise UsageError(f"--packed-cache {packed_cache}: there is no such folder; make it, or choose another")
    check_plot(plot)
    if plot is not None and device not in (None, "cpu"):
        raise UsageError(f"--plot {plot}: a roofline has the CPU's limits; leave it out, or --device {device}")
    overrides = overrides_of(words, shape=shape, peer=peer)
    from karat.bench.plot import roofline
    from karat.bench.session import BenchOptions, run_bench
    from karat.checkpoint import resolve

    folder = None
    if shape is None:
        folder = embedded_model_path() if model is None else resolve(model, progress=not quiet)
    loading: dict[str, Any] = {"kv_dtype": kv_dtype, "executor": executor, "activations": activations}
    loading |= {"device": device, "host_layers": host_layers}
    options = BenchOptions(
        model=folder,
        shape=shape,
        threads=threads,
        stored=weights or quantize or "bf16",
        quantize=quantize if shape is None else None,
        prompt_tokens=_numbers(prompt_tokens or ()),
        gen_tokens=gen_tokens,
        batch=batch,
        context=context,
        repeat=repeat,
        max_num_batched_tokens=max_num_batched_tokens,
        peer=peer,
        tensor_parallel_size=tensor_parallel_size or 1,
        packed_cache=packed_cache,
        overrides=overrides,
        loading={name: value for name, value in loading.items() if value is not None},
    )
    progress = Progress(quiet=quiet, lines=True)
    try:
        measured = run_bench(options, progress)
    finally:
        progress.clear()
    result = {**facts_of_now(), **measured}
    emit(json.dumps(result, indent=2, ensure_ascii=False) + "\n" if as_json else as_text(result))
    if plot is not None:  # last, because it may still fail
        write_plot(plot, roofline(result))


def _numbers(texts: Sequence[str]) -> tuple[int, ...]:
    """Of each text one number, or several between commas."""
    try:
        return tuple(int(part) for text in texts for part in text.split(","))
    except ValueError:
        raise UsageError(f"-p {' '.join(texts)}: expected a number of tokens, or several such as 64,128") from None


def check_plot(plot: Path | None) -> None:
    """UsageError for a place where no SVG can be written. Call it before the measurement."""
    if plot is None:
        return
    if plot.suffix != ".svg":
        raise UsageError(f"--plot {plot}: only SVG is drawn; give a name that ends in .svg")
    if not plot.parent.is_dir():
        raise UsageError(f"--plot {plot}: there is no folder {plot.parent}; make it, or choose another place")
    if not os.access(plot if plot.exists() else plot.parent, os.W_OK):
        raise UsageError(f"--plot {plot}: cannot be written; name a file in a folder of yours")


def facts_of_now() -> dict[str, Any]:
    """The date and the machine, as every result has them."""
    machine = {
        "cpu": processor.cpu_model(),
        "features": processor.cpu_features(),
        "usable_cores": cores.num_usable_cores(),
        "memory_bytes": memory.memory_bytes(),
    }
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine}


def write_plot(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as fault:
        raise UsageError(
            f"--plot {path}: cannot be written ({fault.strerror}); name a file in a folder of yours"
        ) from fault


def as_text(result: dict[str, Any]) -> str:
    """The result as a table for people."""
    limits, peer = result["limits"], result["peer"]
    stored = ", ".join(f"{name} {bytes_text(size)}" for name, size in result["stored"].items())
    facts = [
        ("model", f"{result['model']}: {result['parameters']:,} parameters, {stored}"),
        ("machine", f"{result['machine']['cpu'] or 'unknown'}, {result['machine']['usable_cores']} cores"),
        ("karat", _karat_text(result["karat"])),
    ]
    if peer:
        facts.append((peer["name"], _peer_text(peer)))
    if exchange := result["exchange"]:
        cores = "a core for each rank" if exchange["own_cores"] else "fewer cores than ranks"
        facts.append(
            ("all-reduce", f"{1e6 * exchange['all_reduce_s']:.1f} µs for {exchange['floats']} numbers, {cores}")
        )
    if limits and "device" in limits:
        copied, median = (f"{limits[f'{key}bytes_per_s'] / 1e9:,.1f}" for key in ("bandwidth_", "bandwidth_median_"))
        facts.append(
            ("limits", f"{copied} GB/s copied by {limits['device']} (best of {limits['runs']} runs, median {median})")
        )
    elif limits:
        read, read_median, fma, fma_median = (
            f"{limits[key] / 1e9:,.1f}"
            for key in (
                "bandwidth_bytes_per_s",
                "bandwidth_median_bytes_per_s",
                "fma_peak_flops_per_s",
                "fma_median_flops_per_s",
            )
        )
        medians = f"best of {limits['runs']} runs, medians {read_median} and {fma_median}"
        facts.append(("limits", f"{read} GB/s read, {fma} GFLOP/s ({medians}), with {limits['threads']} threads"))
    else:
        facts.append(("limits", "not measured: that needs the native extension, and all of the model in one place"))
    head = ["", "tok/s", "GB/s", "of limit", "GFLOP/s", "of limit", "overhead"]
    if peer:
        head += [peer["name"], "ratio", "least – most"]
    table = [head, *(_row_text(row, with_peer=bool(peer)) for row in result["rows"])]
    return f"{columns(facts)}\n\n{columns(table, right='12345678')}\n"


def _row_text(row: dict[str, Any], *, with_peer: bool) -> list[str]:
    """A row of the table; a star marks the share of the nearer limit."""
    shares = [
        "–" if share is None else f"{'*' if row['bound'] == bound else ''}{share:.0%}"
        for bound, share in (("bandwidth", row["of_bandwidth"]), ("fma", row["of_fma_peak"]))
    ]
    cells = [
        row["name"],
        f"{row['tokens_per_s']:.1f}",
        f"{row['bytes_per_s'] / 1e9:.2f}",
        shares[0],
        f"{row['flops_per_s'] / 1e9:.1f}",
        shares[1],
        f"{row['overhead']:.1%}",
    ]
    if with_peer:
        peer = row["peer"]
        spread = f"{peer['ratio_min']:.2f} – {peer['ratio_max']:.2f}"
        cells += [f"{peer['tokens_per_s']:.1f}", f"{peer['ratio']:.2f} ×", spread]
    return cells


def _karat_text(karat: dict[str, Any]) -> str:
    build = f" ({karat['isa']})" if karat["isa"] else ""
    parts = [karat["version"], karat["executor"] + build, karat["dtype"], f"cache {karat['kv_dtype']}"]
    if karat["activations"] != karat["dtype"]:
        parts.append(f"activations {karat['activations']}")
    ranks = f" over {karat['tensor_parallel_size']} ranks" if karat["tensor_parallel_size"] > 1 else ""
    return ", ".join([*parts, f"{karat['threads']} threads{ranks}"])


def _peer_text(peer: dict[str, Any]) -> str:
    deviation = peer["logits_deviation"]
    shown = "logits not shown" if deviation is None else f"its logits deviate by {deviation:.1e}"
    return f"{peer['version']}, {peer['threads']} threads, {shown}"

"""`karat bench throughput`: tokens a second of many prompts at once, without a server."""

import json
import secrets
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from karat.cli.bench import facts_of_now
from karat.cli.bench_model import ShapeOptions, overrides_of
from karat.cli.options import Device, HostLayers, OverrideOptions
from karat.cli.progress import Progress
from karat.cli.terminal import columns, emit, is_terminal
from karat.errors import UsageError

EXAMPLES = """
Examples

  karat bench throughput                           the embedded model
  karat bench throughput ./model.gguf --num-prompts 64
  karat bench throughput m.gguf --peer llama-batched-bench ./batched-bench
  karat bench throughput --dataset sharegpt.json   its prompts and lengths
"""


def bench_throughput(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A folder, a GGUF file, or org/name.")] = None,
    num_prompts: Annotated[int, typer.Option(metavar="N", help="Prompts of each turn.")] = 32,
    prompt_tokens: Annotated[str, typer.Option(metavar="LENGTHS", help="N, or a distribution (docs/cli.md).")] = "128",
    tokens: Annotated[str, typer.Option(metavar="LENGTHS", help="Of answers, likewise.")] = "128",
    dataset: Annotated[
        Path | None, typer.Option(metavar="FILE", help="First turns of conversations in ShareGPT's form (JSON).")
    ] = None,
    batch: Annotated[int, typer.Option(metavar="B", help="Sequences computed at a time.")] = 16,
    repeat: Annotated[int, typer.Option(metavar="N", help="Turns, with new prompts each.")] = 1,
    peer: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="NAME PLACE", help="In turns with llama-batched-bench, and its path."),
    ] = None,
    threads: Annotated[int | None, typer.Option(metavar="N", help="Threads (default: the physical cores).")] = None,
    activations: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Read by weights in blocks: int16 (default), int24 or int8.")
    ] = None,
    device: Device = None,
    host_layers: HostLayers = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of the prompts (default: a new one, stated).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the text.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress on stderr.")] = False,
    *,
    shapes: ShapeOptions,
    words: OverrideOptions,
) -> None:
    """Measure many prompts at once without a server: requests and tokens a second, in vLLM's words.

    MODEL is a folder, a GGUF file, or org/name (default: the embedded model). Prompts are token ids drawn anew for each
    turn; answers are greedy and have the length asked for. Loading is not measured.

    With --peer llama.cpp's batched bench decodes one batch of prompts and answers of the same lengths on the same file,
    in turns; it neither samples nor makes text.
    """
    for option, value in (
        ("--num-prompts", num_prompts),
        ("--batch", batch),
        ("--repeat", repeat),
        ("--threads", threads),
    ):
        if value is not None and value < 1:
            raise UsageError(f"{option} {value}: expected at least 1")
    if seed is not None and seed < 0:
        raise UsageError(f"--seed {seed}: expected at least 0")
    overrides = overrides_of(words, shape=shapes.shape, peer=peer)
    import numpy as np

    import karat
    from karat.bench import throughput
    from karat.bench.load.lengths import Lengths
    from karat.bench.load.prompts import ConversationShape, RandomText, Supply
    from karat.machine.cores import num_physical_cores
    from karat.models.opening import open_model
    from karat.text import Tokenizer

    shape = ConversationShape(
        prompt_tokens=Lengths.parse(prompt_tokens, "--prompt-tokens"), answer_tokens=Lengths.parse(tokens, "--tokens")
    )
    drawn_seed = secrets.randbits(32) if seed is None else seed
    plan = throughput.ThroughputPlan(
        num_prompts=num_prompts, batch=batch, repeat=repeat, threads=threads or num_physical_cores()
    )
    progress = Progress(quiet=quiet, lines=True)
    with ExitStack() as stack:
        stack.callback(progress.clear)
        path = shapes.path(model, stack, quiet=quiet)
        other = None
        if peer is not None:
            if peer[0] != throughput.PEER:
                raise UsageError(f"--peer {peer[0]}: expected {throughput.PEER} and its path")
            if dataset is not None or {shape.prompt_tokens.kind, shape.answer_tokens.kind} != {"fixed"}:
                raise UsageError(
                    "--peer computes prompts and answers of one length; give --prompt-tokens and --tokens N"
                )
            other = throughput.BatchedBench(peer[1], path, shape.prompt_tokens.low, shape.answer_tokens.low)
            other.check()
        source = RandomText(np.random.default_rng(drawn_seed), Tokenizer.of(open_model(path, overrides)), as_ids=True)
        supply = Supply(source, shape, dataset)
        progress("loading the model")
        longest = supply.most_tokens or shape.most_tokens
        given = {"activations": activations, "device": device, "host_layers": host_layers}
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        llm = stack.enter_context(
            karat.LLM(
                path,
                threads=plan.threads,
                max_num_seqs=batch,
                max_model_len=longest,
                generation_config="none",
                **chosen,
                **words.said(),
            )
        )
        shows_bar = not quiet and is_terminal(sys.stderr)
        found = throughput.measure(llm, plan, supply, other, progress, shows_bar=shows_bar)
    result: dict[str, Any] = {
        **facts_of_now(),
        "schema": throughput.SCHEMA,
        "kind": "throughput",
        "version": karat.__version__,
        "model": path.name,
        "device": llm.device,
        "threads": plan.threads,
        "activations": llm.activations,
        "numeric_contract": llm.numeric_contract,
        "batch": batch,
        "repeat": repeat,
        "prompt_tokens": str(shape.prompt_tokens) if dataset is None else dataset.name,
        "answer_tokens": str(shape.answer_tokens) if dataset is None else dataset.name,
        "seed": drawn_seed,
        **found,
    }
    emit(json.dumps(result, indent=2, ensure_ascii=False) + "\n" if as_json else as_text(result))


def as_text(result: dict[str, Any]) -> str:
    """The result for people: vLLM's line, the peer's, and their ratio."""
    ours, peer, ratios = result["karat"], result["peer"], result["ratios"]
    rows = [("karat", _line(ours)), *([(peer["name"], _line(peer))] if peer else [])]
    on = "" if result["device"] == "cpu" else f"on {result['device']}, "
    lines = [
        f"{result['model']}: prompts of {result['prompt_tokens']} tokens, answers of {result['answer_tokens']}, "
        f"{result['batch']} at a time, {on}{result['threads']} threads, activations in {result['activations']}; "
        f"seed {result['seed']}",
        columns(rows),
        f"Total num prompt tokens:  {ours['total_prompt_tokens']:.0f}",
        f"Total num output tokens:  {ours['total_output_tokens']:.0f}",
    ]
    if ratios:
        shown = (
            f"{name.replace('_', ' ')} {of['median']:.2f} ({of['min']:.2f} – {of['max']:.2f})"
            for name, of in ratios.items()
        )
        lines.append(f"karat over {peer['name']}, the median of the turns (least – most): {', '.join(shown)}")
    return "\n".join(lines) + "\n"


def _line(figures: dict[str, float]) -> str:
    return (
        f"Throughput: {figures['requests_per_s']:.2f} requests/s, {figures['total_tokens_per_s']:.2f} total tokens/s, "
        f"{figures['output_tokens_per_s']:.2f} output tokens/s"
    )

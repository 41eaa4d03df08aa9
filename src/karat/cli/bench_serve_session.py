"""One run of `karat bench serve`: the servers, the prompts, and the result as JSON has it."""

import secrets
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np

import karat
from karat.bench.load.asking import Manner
from karat.bench.load.prompts import RandomText, Supply
from karat.bench.load.servers import MeasuredServer, free_port, karat_command, llama_server_command
from karat.bench.load.session import SCHEMA, TrafficPlan, measure
from karat.bench.load.summary import Goals
from karat.checkpoint import resolve
from karat.checkpoint.overrides import Overrides
from karat.cli.bench import facts_of_now
from karat.cli.bench_model import ShapeOptions, overrides_of
from karat.cli.bench_serve_options import DEFAULT_CONCURRENCY, PromptOptions, TargetOptions, TrafficOptions
from karat.cli.load_progress import LoadProgress
from karat.cli.options import OverrideOptions
from karat.config import DEFAULT_ACTIVATIONS, Activations, embedded_model_path
from karat.errors import UsageError
from karat.machine.cores import num_physical_cores
from karat.models.cut_units import cut_units, experts_by_columns
from karat.models.opening import open_model
from karat.models.registry import find_weights, read_config
from karat.ops.contract import activations_read, contract_of
from karat.text import Tokenizer

_SLACK = 256  # tokens that a chat template may add to a conversation


def measured(
    model: str | None,
    shapes: ShapeOptions,
    targets: TargetOptions,
    traffic: TrafficOptions,
    prompts: PromptOptions,
    words: OverrideOptions,
    goodput: Sequence[str],
    *,
    quiet: bool,
) -> dict[str, Any]:
    """The result (docs/cli.md). Raises UsageError for options that do not fit, ExecutorError for servers that do not
    serve.
    """
    plan, shape, fields = traffic.plan(Goals.parse(goodput)), prompts.shape(), prompts.fields()
    seed = secrets.randbits(32) if prompts.seed is None else prompts.seed
    rng = np.random.default_rng(seed)
    overrides = overrides_of(words, shape=shapes.shape, peer=targets.peer)
    if targets.url is not None and (said := [*targets.words(), *words.words()]):
        raise UsageError(f"--url {targets.url}: its model is loaded already; give {said[0]} to that server")
    with ExitStack() as stack:
        path = None if targets.url is not None else shapes.path(model, stack, quiet=quiet)
        tokenizer_path = path if prompts.tokenizer is None else resolve(prompts.tokenizer, progress=not quiet)
        tokenizer = None if tokenizer_path is None else Tokenizer.of(open_model(tokenizer_path))
        supply = Supply(RandomText(rng, tokenizer, as_ids=not prompts.chat), shape, prompts.dataset)
        seq_tokens = -(-((supply.most_tokens or shape.most_tokens) + _SLACK) // 256) * 256
        servers = [_first(targets, path, plan, words), *_second(targets, path, plan, seq_tokens)]
        for server in servers:
            stack.callback(server.close)
        names = [server.wait(wanted) for server, wanted in zip(servers, (targets.model_name, None), strict=False)]
        manners = {
            server.name: Manner(prompts.chat, {"model": name, **fields})
            for server, name in zip(servers, names, strict=True)
        }
        with LoadProgress(quiet=quiet) as progress:
            points = measure(plan, servers, manners, supply, rng, progress)
        states = {}
        for server in servers:
            with server.awake():
                states[server.name] = server.states()
        arithmetic = _arithmetic(path, targets, overrides)
    return {
        **facts_of_now(),
        "schema": SCHEMA,
        "kind": "serve",
        "karat": karat.__version__,
        "model": names[0] if path is None else "the embedded model" if path == embedded_model_path() else path.name,
        "about": f"prompts of {shape.prompt_tokens} tokens, answers of {shape.answer_tokens}"
        if prompts.dataset is None
        else f"conversations of {prompts.dataset.name}",
        "servers": [
            {
                "name": server.name,
                "url": server.url,
                "model": name,
                "command": _shown(server.command),
                "states": states[server.name],
            }
            for server, name in zip(servers, names, strict=True)
        ],
        **arithmetic,
        "load": {
            "seed": seed,
            "chat": prompts.chat,
            "prompt_tokens": str(shape.prompt_tokens),
            "answer_tokens": str(shape.answer_tokens),
            "counted_in": "words" if tokenizer_path is None else f"tokens of {tokenizer_path.name}",
            "prefix_tokens": shape.prefix_tokens,
            "prefixes": shape.num_prefixes,
            "turns": shape.turns,
            "dataset": None if prompts.dataset is None else prompts.dataset.name,
            "dataset_rounds": supply.num_rounds,
            "fields": fields,
            "requests": plan.num_requests,
            "warmup": plan.warmup,
            "timeout_s": plan.timeout_s,
        },
        "points": points,
    }


def _arithmetic(path: Path | None, targets: TargetOptions, overrides: Overrides) -> dict[str, Any]:
    """What the linear layers of the Karat that was started here read, and its contract; None of a server elsewhere."""
    if path is None:
        return {"activations": None, "numeric_contract": None}
    checkpoint = open_model(path, overrides)
    config = read_config(checkpoint.config)
    weights = find_weights(config, checkpoint)
    types = {weight.dtype for weight in weights.values() if len(weight.shape) > 1}
    asked = cast(Activations, targets.activations or DEFAULT_ACTIVATIONS)  # the server has checked it
    activations = activations_read(types, asked)
    contract = contract_of(config, types, experts_by_columns(cut_units(config, weights)), activations)
    return {"activations": activations, "numeric_contract": contract}


def _shown(command: Sequence[str] | None) -> str | None:
    """Programs and files by their names: where they lie is of no use elsewhere."""
    if command is None:
        return None
    words = ["karat", *command[command.index("karat") + 1 :]] if "karat" in command else list(command)
    return shlex.join(Path(word).name if Path(word).is_absolute() else word for word in words)


def _num_seqs(plan: TrafficPlan) -> int:
    """Places of a server that is started here: one for each client, and as usual where nobody counts them."""
    return max([load.concurrency or DEFAULT_CONCURRENCY for load in plan.loads])


def _first(targets: TargetOptions, path: Path | None, plan: TrafficPlan, words: OverrideOptions) -> MeasuredServer:
    if path is None:
        assert targets.url is not None
        return MeasuredServer("server", targets.url, headers=_key(targets.api_key_file))
    port, threads = free_port(), targets.threads or num_physical_cores()
    options = [*targets.words(), *words.words()]
    command = karat_command(str(path), port, num_seqs=_num_seqs(plan), threads=threads, options=options)
    return MeasuredServer("karat", f"http://127.0.0.1:{port}", headers={}, command=command)


def _second(targets: TargetOptions, path: Path | None, plan: TrafficPlan, seq_tokens: int) -> list[MeasuredServer]:
    if targets.peer is None:
        return []
    name, place = targets.peer
    if name in ("karat", "server"):
        raise UsageError(f"--peer {name}: the first server is called so; give the other another name")
    if place.startswith(("http://", "https://")):
        return [MeasuredServer(name, place, headers={})]
    if name != "llama-server":
        raise UsageError(f"--peer {name} {place}: only llama-server can be started here; give the URL of another")
    if path is None:
        raise UsageError("--peer llama-server PROGRAM needs MODEL, a GGUF file for both; or give its URL")
    port, threads = free_port(), targets.threads or num_physical_cores()
    num_seqs = _num_seqs(plan)
    command = llama_server_command(place, str(path), port, num_seqs=num_seqs, threads=threads, seq_tokens=seq_tokens)
    return [MeasuredServer(name, f"http://127.0.0.1:{port}", headers={}, command=command)]


def _key(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        key = path.read_text(encoding="ascii").split("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"--api-key-file {path}: cannot be read; give a file whose first line is the key") from None
    if not key or not key.isprintable():
        raise UsageError(f"--api-key-file {path}: its first line is no key")
    return {"Authorization": f"Bearer {key}"}

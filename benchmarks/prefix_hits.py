"""What servers find of conversations in their caches: python -m benchmarks.prefix_hits MODEL.gguf

`karat serve`, and with `--peer PROGRAM` llama-server on the same file, get the same requests, one after the other. The
answers in the history are written here, so all prompts are equal. The table has the tokens of all prompts, those with
which no prompt before began, and for each server those that it computed: all but what its `usage` calls cached. They
are counts: nothing depends on how busy the machine is.

With `--vocabulary FILE.gguf --template FILE.jinja` MODEL.gguf is written first: random weights in the form of Qwen3.5.
"""

import argparse
import json
import random
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from karat import LLM
from karat.bench.load.servers import MeasuredServer, free_port, karat_command, llama_server_command
from karat.checkpoint.gguf.form import AS_GGUF
from karat.checkpoint.gguf.writer import numbers, scalar, string, strings, write_gguf
from karat.checkpoint.weights import Weight
from karat.convert.conversion import own_tensors
from karat.convert.metadata import model_pairs
from karat.models.decoder import weight_specs
from karat.models.registry import read_config

SEQUENCES = 4  # that a server computes at once: slots of llama-server
MOST_TOKENS = 8192  # of a sequence
ANSWER = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
WORDS = "the fox had a lantern of old brass and went out at night to look for what he lost in the snow".split()
SHAPE: Mapping[str, Any] = {
    AS_GGUF: True,
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
    "attention_bias": False,
    "tie_word_embeddings": True,
}

Messages = list[dict[str, str]]


def write_model(path: Path, vocabulary: Path, template: Path) -> None:
    """A hybrid with random weights, the vocabulary of a GGUF file, and this template."""
    fields = gguf.GGUFReader(vocabulary).fields
    pairs = []
    for name in (name for name in fields if name.startswith("tokenizer.ggml.")):
        value, kinds = fields[name].contents(), [kind.name for kind in fields[name].types]
        if kinds[0] == "ARRAY":
            pairs.append((name, strings(value) if kinds[1] == "STRING" else numbers(kinds[1], value)))
        else:
            pairs.append((name, string(value) if kinds[0] == "STRING" else scalar(kinds[0], value)))
    pairs.append(("tokenizer.chat_template", string(template.read_text(encoding="utf-8"))))
    config = read_config({**SHAPE, "vocab_size": len(fields["tokenizer.ggml.tokens"].contents())})
    rng = np.random.default_rng(0)
    weights = {}
    for spec in weight_specs(config):
        values = rng.normal(0, 0.02, spec.shape) + ("norm" in spec.source) - spec.source.endswith("A_log")
        data = values.astype("<f4").reshape(-1).view(np.uint8)
        weights[spec.source] = Weight(spec.source, "F32", (spec.stored or (spec.shape,))[-1], data, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = own_tensors(config, weights, lambda weight: weight.dtype, weights.__getitem__)
    write_gguf(path, [*model_pairs(config, path.stem), *pairs], tensors)


def talk(rng: random.Random, turns: int, system: str = "") -> list[Messages]:
    """The messages of each request of a conversation."""
    said: Messages = [{"role": "system", "content": system}] if system else []
    requests = []
    for _ in range(turns):
        said.append({"role": "user", "content": words(rng, 20, 120)})
        requests.append(list(said))
        said.append({"role": "assistant", "content": words(rng, 20, 120)})
    return requests


def words(rng: random.Random, least: int, most: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))


def one(rng: random.Random) -> Iterator[Messages]:
    yield from talk(rng, 10)


def in_turns(rng: random.Random) -> Iterator[Messages]:
    for turn in zip(*(talk(rng, 6) for _ in range(SEQUENCES + 2)), strict=True):
        yield from turn


def shared_system(rng: random.Random) -> Iterator[Messages]:
    system = words(rng, 600, 600)
    for _ in range(8):
        yield from talk(rng, 1, system)


def asked_again(rng: random.Random) -> Iterator[Messages]:
    requests = talk(rng, 5)
    yield from requests
    for _ in range(3):
        yield requests[-1]


def put_otherwise(rng: random.Random) -> Iterator[Messages]:
    """The third of five questions is changed, and the conversation goes on from there."""
    requests = talk(rng, 5)
    yield from requests
    changed = {"role": "user", "content": words(rng, 20, 120)}
    for request in requests[2:]:
        yield [*request[:4], changed, *request[5:]]


SCENES: Mapping[str, Callable[[random.Random], Iterator[Messages]]] = {
    "one conversation of ten turns": one,
    f"{SEQUENCES + 2} conversations of six turns, turn about": in_turns,
    "a system prompt of 600 words, eight conversations": shared_system,
    "the last of five questions asked three times more": asked_again,
    "the third of five questions put otherwise": put_otherwise,
}


def ask(server: MeasuredServer, model: str, messages: Messages) -> tuple[int, int]:
    """The tokens of a prompt, and of these those that the server had."""
    body = json.dumps({"model": model, "messages": messages, **ANSWER}).encode()
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        usage = json.load(answer)["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def new_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """The tokens of each prompt after the longest beginning that a prompt before has, too, added up."""
    total = 0
    for number, prompt in enumerate(prompts):
        common = (
            next(
                (at for at, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b),
                min(map(len, (prompt, other))),
            )
            for other in prompts[:number]
        )
        total += len(prompt) - max(common, default=0)
    return total


def measure(model: Path, servers: Sequence[MeasuredServer], seed: int) -> list[dict[str, Any]]:
    """A row for each scene. AssertionError if a server's prompts have another number of tokens than Karat's."""
    names = {server.name: server.wait(None) for server in servers}
    rows = []
    with LLM(model, threads=1, max_model_len=MOST_TOKENS) as llm:
        for scene, requests_of in SCENES.items():
            requests = list(requests_of(random.Random(f"{seed} {scene}")))
            prompts = [llm.chat_prompt(messages).token_ids for messages in requests]
            row: dict[str, Any] = {"scene": scene, "prompts": len(prompts), "tokens": sum(map(len, prompts))}
            row["new"] = new_tokens(prompts)
            for server in servers:
                with server.awake():
                    found = [ask(server, names[server.name], messages) for messages in requests]
                assert [count for count, _ in found] == [len(prompt) for prompt in prompts], f"{server.name}: {scene}"
                row[server.name] = sum(count - cached for count, cached in found)
            rows.append(row)
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = list(rows[0])
    lines = [
        head,
        ["---"] * len(head),
        *([f"{row[name]:,}" if name != "scene" else row[name] for name in head] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--vocabulary", type=Path, help="a GGUF file; MODEL.gguf is written with its tokenizer")
    parser.add_argument("--template", type=Path, help="a chat template, for --vocabulary")
    parser.add_argument("--peer", metavar="PROGRAM", help="llama-server")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--state-cache-bytes", help="of karat serve")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if (options.vocabulary is None) != (options.template is None):
        parser.error("--vocabulary and --template are given together")
    if options.vocabulary is not None:
        write_model(options.model, options.vocabulary, options.template)
    model, sizes = str(options.model), {"num_seqs": SEQUENCES, "threads": options.threads}
    own = ["--max-model-len", str(MOST_TOKENS)]
    own += ["--state-cache-bytes", options.state_cache_bytes] if options.state_cache_bytes else []
    ports = {"karat": free_port()}
    commands = {"karat": karat_command(model, ports["karat"], options=own, **sizes)}
    if options.peer:
        ports["llama-server"] = free_port()
        commands["llama-server"] = llama_server_command(
            options.peer, model, ports["llama-server"], seq_tokens=MOST_TOKENS, **sizes
        )
    servers: list[MeasuredServer] = []
    try:
        for name, command in commands.items():
            servers.append(MeasuredServer(name, f"http://127.0.0.1:{ports[name]}", headers={}, command=command))
        print(table(measure(options.model, servers, options.seed)))
    finally:
        for server in servers:
            server.close()


if __name__ == "__main__":
    main()

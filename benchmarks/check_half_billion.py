"""`karat check` of a model with the shape of Qwen2.5-0.5B against transformers: python -m benchmarks.check_half_billion

Writes the model (random weights, bf16, about 1 GB) into a temporary folder, or into --folder, where it is found again,
then runs `karat check` on it in a process of its own, prints one JSON object and keeps it as
benchmarks/results/DATE-MACHINE-check-SHAPE.json: machine, commit and command, wall-clock and processor seconds, peak
resident bytes of that process, verdict and seconds of each stage. The goal on two cores: a minute, 6 GB.
"""

import argparse
import json
import os
import shlex
import struct
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from benchmarks import record
from karat.bench.shapes import random_model
from karat.models.registry import find_weights, read_config
from karat.text.placeholder import placeholder_tokens

STAGES = "weights,layers,logits,health"
PROMPT = " ".join(f"the {word} of {number}" for number in range(40) for word in ("ship", "sea", "sky"))


def write_folder(folder: Path, shape: str) -> None:
    """config.json, tokenizer.json and model.safetensors of a shape with random weights in bf16."""
    made = random_model(shape, stored="bf16")
    weights = {w.name: w for w in find_weights(read_config(made.checkpoint.config), made.checkpoint).values()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(made.checkpoint.config, indent=1))
    vocab_size = int(made.checkpoint.config["vocab_size"])
    bytes_only = Backend(models.BPE({token: i for i, token in enumerate(placeholder_tokens(vocab_size))}, []))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    bytes_only.save(str(folder / "tokenizer.json"))
    header: dict[str, Any] = {}
    end = 0
    for name, weight in weights.items():
        begin, end = end, end + weight.num_bytes
        header[name] = {"dtype": weight.dtype, "shape": weight.shape, "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for weight in weights.values():
            file.write(weight.data.data)


def measure(folder: Path, tokens: int, stages: str, against: str) -> dict[str, Any]:
    """One run of `karat check`; its figures. SystemExit if it could not check or found a bug."""
    what = ["--tokens", str(tokens), "--prompt", PROMPT, "--stages", stages, "--against", against]
    command = [sys.executable, "-m", "karat", "check", str(folder), *what, "--json"]
    before = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - before
    if process.returncode:
        sys.stderr.write(output.decode())
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    facts = json.loads(output)
    return {
        "date": facts["date"],
        "machine": {
            "cpu": facts["cpu"],
            "features": facts["cpu_features"],
            "usable_cores": facts["usable_cores"],
            "memory_bytes": facts["memory_bytes"],
            "platform": facts["machine"],
        },
        "check": _shown(facts["command"], folder),
        "verdict": facts["verdict"],
        "tokens": facts["tokens"],
        "seconds": round(seconds, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_rss_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "stages": {s["name"]: {"verdict": s["verdict"], "seconds": s["seconds"]} for s in facts["stages"]},
        "threads": facts["threads"],
        "kernel_build": facts["kernel_build"],
        "versions": {"karat": facts["karat"], "numpy": facts["numpy"], **facts["packages"]},
    }


def _shown(command: str, folder: Path) -> str:
    """A command without the place of the model, which says nothing elsewhere."""
    return command.replace(str(folder), "MODEL")


def kept(shape: str, options: list[str], result: dict[str, Any], results: Path = record.RESULTS) -> Path:
    """The file of a result of this command line, which it is told with the commit."""
    command = shlex.join(["python", "-m", "benchmarks.check_half_billion", *options])
    return record.keep(f"check-{shape}", {"command": command, "commit": record.commit(), **result}, results)


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--stages", default=STAGES)
    parser.add_argument("--against", default="hf")
    parser.add_argument("--folder", type=Path, help="where the model is kept for the next time")
    parser.add_argument("--results", type=Path, default=record.RESULTS, help="where the result is kept")
    options = parser.parse_args(args)
    with TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "model.safetensors").exists():
            write_folder(folder, options.shape)
        result = measure(folder, options.tokens, options.stages, options.against)
    words = ["--shape", options.shape, "--tokens", str(options.tokens), "--stages", options.stages]
    written = kept(options.shape, [*words, "--against", options.against], result, options.results)
    print(written.read_text(encoding="utf-8"), end="")
    print(written, file=sys.stderr)


if __name__ == "__main__":
    main()

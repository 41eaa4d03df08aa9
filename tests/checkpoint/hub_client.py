"""Models on a fake hub, and a client of it.

huggingface_hub reads its variables when it is imported, so the clients are processes of their own. What it imports of
others, and what Karat has, read none.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tests.checkpoint.builders import f32, official
from tests.checkpoint.fake_hub import FakeHub
from tests.support.forks import Forks

A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
CONFIG = b'{"model_type": "llama"}'
SINGLE = {
    "config.json": CONFIG,
    "tokenizer.json": b'{"version": "1.0"}',
    "additional_chat_templates/tools.jinja": b"{{ tools }}",
    "model.safetensors": official({"a": f32((2, 3))}),
    "README.md": b"# A fox",
    "modeling_fox.py": b"raise SystemExit",
    "pytorch_model.bin": b"\x80\x04.",
    "consolidated.safetensors": b"the same again",
    "onnx/config.json": b"{}",
    "onnx/model.safetensors": b"another",
}
SHARDED = {
    "config.json": CONFIG,
    "model.safetensors.index.json": json.dumps({"weight_map": {"a": A, "b": B}}).encode(),
    A: official({"a": f32((2, 3))}),
    B: official({"b": f32((4,))}),
    "model-00001-of-00009.safetensors": b"from an earlier upload",
}

PROGRAM = """
import json, sys, time
time.sleep = lambda seconds: None  # between the library's attempts
from karat.checkpoint.hub import pull
from karat.errors import KaratError
for model, options in json.loads(sys.argv[1]):
    try:
        print(json.dumps(["OK", str(pull(model, **options))]))
    except KaratError as fault:
        print(json.dumps([type(fault).__name__, str(fault)]))
"""

_FORKS = Forks("karat.checkpoint", "httpx", "httpx2", "httpcore2", "yaml", "filelock", "fsspec", "tqdm.auto", "typer")
Outcome = tuple[str, str]


def environment(hub: FakeHub, home: Path, **variables: str) -> dict[str, str]:
    own = {name for name in os.environ if name.startswith("HF_") or name.lower().endswith("proxy")}
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return kept | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"} | variables


class Client:
    """Runs `pull` in a process with a cache of its own."""

    def __init__(self, hub: FakeHub, home: Path) -> None:
        self.hub = hub
        self.home = home
        self.stderr = ""

    def pull(self, *models: str, options: Mapping[str, object] | None = None, **variables: str) -> list[Outcome]:
        """What became of each model: "OK" and its folder, or the error's name and message."""
        calls = json.dumps([[model, options or {}] for model in models])
        out, self.stderr = _FORKS.run(PROGRAM, calls, env=environment(self.hub, self.home, **variables))
        return [tuple(json.loads(line)) for line in out.splitlines()]

    def folder(self, model: str, options: Mapping[str, object] | None = None, **variables: str) -> Path:
        """Pulls one model, which succeeds."""
        ((kind, text),) = self.pull(model, options=options, **variables)
        assert kind == "OK", text
        return Path(text)

    def refused(self, model: str, options: Mapping[str, object] | None = None, **variables: str) -> str:
        """Pulls one model, which does not succeed."""
        ((kind, text),) = self.pull(model, options=options, **variables)
        assert kind == "HubError", text
        assert text.startswith(f"{model}: ")
        return text


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}

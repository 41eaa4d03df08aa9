"""Results of llama.cpp on Karat's files, for test runs on machines without llama.cpp.

    python -m tools.peers.record

writes tests/data/llama_cpp/ anew (and tests/data/ggml_blocks.npz, see tests/quant/ggml.py):

- MODEL-TYPE.gguf: the random model that `make_folder` draws for MODEL, converted to F32 by Karat and then quantised by
  llama.cpp's quantiser. Each block format that it makes without an importance matrix, and the families in turn.
- results.npz: for each of these files and for each family in F32, F16 and BF16, the logits [tokens, vocab] that
  llama.cpp computes of `prompt()` with a float32 cache; for F32 also the tokens with which it goes on greedily; and for
  F16 and BF16 the SHA-256 of all tensors that its quantiser makes.
- mixes.json: the type that its quantiser gives to each tensor of models of many shapes, for every mix that Karat
writes.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.convert import MIXES, convert
from karat.models.opening import open_model
from tests.quant import ggml
from tools.peers.distance import FILE_TYPES
from tools.peers.llama import VERSION, LlamaCpp, quantise
from tools.peers.models import make_folder, prompt
from tools.peers.recorded import (
    DATA,
    MIXED_MODELS,
    NUM_GREEDY,
    PLAIN,
    PREFIX_LEN,
    STORED,
    by_type,
    digest_of,
    tensor_types,
)


def f32_file(folder: Path, name: str, family: str, *size: Mapping[str, Any]) -> Path:
    """Karat's F32 file of a model of this family, drawn by `make_folder`."""
    path = folder / f"{name}.gguf"
    convert(open_model(make_folder(folder / name, family, *size)), path, MIXES["F32"])
    return path


def _results(folder: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    ids = prompt()
    for family, names in STORED.items():
        source = f32_file(folder, family, family)
        with LlamaCpp(source) as model:
            yield f"{family}-F32.logits", model.logits(ids)
            yield f"{family}-F32.greedy", np.array(model.greedy(ids[:PREFIX_LEN], NUM_GREEDY))
        for name in PLAIN:
            path = folder / f"{family}-{name}.gguf"
            quantise(source, path, FILE_TYPES[name])
            with LlamaCpp(path) as model:
                yield f"{family}-{name}.logits", model.logits(ids)
            yield f"{family}-{name}.digest", np.array(digest_of(path))
        for name in names:
            path = DATA / f"{family}-{name}.gguf"
            quantise(source, path, FILE_TYPES[name])
            with LlamaCpp(path) as model:
                yield f"{family}-{name}.logits", model.logits(ids)


def _mixes(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, (name, (family, size)) in enumerate(MIXED_MODELS.items()):
        source = f32_file(folder, f"mixed-{number}", family, size)
        found = {}
        for mix in MIXES.values():
            target = folder / "target.gguf"
            quantise(source, target, mix.file_type)
            found[mix.name] = by_type(tensor_types(target))
        yield name, found


def _as_text(mixes: Mapping[str, Any]) -> str:
    """JSON, a line for each mix of each model."""
    parts = []
    for name, found in mixes.items():
        if isinstance(found, str):
            parts.append(f" {json.dumps(name)}: {json.dumps(found)}")
        else:
            lines = [f"  {json.dumps(mix)}: {json.dumps(types)}" for mix, types in found.items()]
            parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    for path in DATA.glob("*.gguf"):
        path.unlink()
    with TemporaryDirectory() as temporary:
        np.savez_compressed(DATA / "results.npz", **dict(_results(Path(temporary))))
        (DATA / "mixes.json").write_text(_as_text({"made by": VERSION} | dict(_mixes(Path(temporary)))))
    ggml.main()
    sizes = {path.name: path.stat().st_size for path in sorted(DATA.iterdir())}
    print(
        "\n".join(f"{size:9,} {name}" for name, size in sizes.items()), f"\n{sum(sizes.values()):9,} in all, {VERSION}"
    )


if __name__ == "__main__":
    main()

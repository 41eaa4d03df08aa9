"""How far Karat's and llama.cpp's logits are from the float64 model of the same GGUF files, made by llama.cpp.

    python -m tools.peers.distance [FOLDER_OF_STORIES260K]

prints the table of docs/gguf.md: for each type of llama.cpp's quantiser, the largest difference of a logit over the
deviation of the logits, on random models of every family (the largest of them) and, if its folder is given, on
stories260k.
The exact logits are those of the reference executor in float64 on the dequantised weights; all caches are float32.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from karat.convert import MIXES, convert
from karat.engine.llm import LLM
from karat.models.opening import open_model
from tools.peers.llama import VERSION, LlamaCpp, quantise
from tools.peers.models import FAMILIES, MEDIUM, make_folder, prompt

# The types that llama.cpp's quantiser writes without an importance matrix, with its numbers of file types. Karat has no
# mixes of the last.
FILE_TYPES: Mapping[str, int] = {name: mix.file_type for name, mix in MIXES.items()} | {
    "IQ3_S": 26,
    "IQ3_M": 27,
    "TQ1_0": 36,
    "TQ2_0": 37,
}


@dataclass(frozen=True, slots=True)
class Distance:
    """The largest difference from the exact logits over their deviation."""

    karat: float
    llama_cpp: float


def distance_of(path: Path, ids: Sequence[int]) -> Distance:
    """On one file."""
    exact = LLM(path, executor="reference", dtype="float64").logits(ids)
    karat = LLM(path, executor="native", kv_dtype="float32", activations="int24").logits(ids)
    with LlamaCpp(path) as peer:
        theirs = peer.logits(ids)
    return Distance(relative(karat, exact), relative(theirs, exact))


def relative(got: NDArray[np.floating], exact: NDArray[np.floating]) -> float:
    return float(np.abs(got - exact).max() / exact.std())


def distances(sources: Iterable[Path], name: str, folder: Path) -> Iterable[Distance]:
    """Of each source, a file in F32, quantised by llama.cpp to the type `name`, on `prompt()`."""
    for path in sources:
        target = folder / f"{path.stem}-{name}.gguf"
        quantise(path, target, FILE_TYPES[name])
        yield distance_of(target, prompt())
        target.unlink()


def random_models(folder: Path) -> list[Path]:
    """New F32 files of a random model of every family."""
    paths = []
    for family in FAMILIES:
        paths.append(folder / f"{family}.gguf")
        convert(open_model(make_folder(folder / family, family, MEDIUM)), paths[-1], MIXES["F32"])
    return paths


def main() -> None:
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        groups = random_models(folder), [Path(path) / "stories260k-f32.gguf" for path in sys.argv[1:2]]
        print(f"| {VERSION} | random models: Karat | llama.cpp | stories260k: Karat | llama.cpp |")
        print("|---|---|---|---|---|")
        for name in FILE_TYPES:
            cells = []
            for sources in groups:
                found = list(distances(sources, name, folder))
                for side in ("karat", "llama_cpp"):
                    cells.append(f"{max(getattr(each, side) for each in found):.1e}" if found else "–")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

"""The models of benchmarks.machine: GGUF files with random weights, made in seconds and kept.

bf16, Q8_0 and Q4_0 have the shape of Qwen2.5-0.5B. Blocks of Q4_K have 256 columns, of which its rows of 896 are no
multiple: Q4_K has the same shape with rows of 1,024, and as many layers less as make the same number of weights.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cold_start import write_shape
from karat.bench.peers import PeerModel
from karat.bench.peers.gguf_file import write_peer_file
from karat.bench.shape_configs import shape_config
from karat.bench.shapes import DEVIATION
from karat.checkpoint import FolderCheckpoint, Weight
from karat.models.decoder import weight_specs
from karat.models.registry import find_weights, read_config
from karat.quant import FORMATS

SHAPE = "qwen2.5-0.5b"
STORED = ("Q4_0", "Q8_0", "Q4_K", "BF16")
_WIDE = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 20, "max_window_layers": 20}
_LARGEST_SCALE, _LARGEST_CODE = 63, 15  # of Q4_K


def file_of(folder: Path, stored: str, shape: str = SHAPE) -> Path:
    """The file of weights stored as `stored`, made if it is not there."""
    path = folder / f"machine-{shape}-{stored.lower()}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    if stored == "Q4_K":
        _write_wide(unfinished, shape_config(shape) | (_WIDE if shape == SHAPE else {"hidden_size": 256}))
    else:
        write_shape(unfinished, shape, stored.lower())
    unfinished.replace(path)
    return path


def _write_wide(path: Path, raw: dict[str, Any]) -> None:
    """All matrices of whole blocks are in Q4_K, views of one pool of random blocks at different places."""
    config = read_config(raw)
    format_, rng = FORMATS["Q4_K"], np.random.default_rng(0)
    specs = {spec.source: spec.shape for spec in weight_specs(config)}
    most = max(rows * columns for rows, columns in (shape for shape in specs.values() if len(shape) == 2))
    pool = _blocks(rng, format_.num_bytes(most) // format_.block_bytes + len(specs))
    weights = {}
    for number, (name, shape) in enumerate(specs.items()):
        if len(shape) == 2 and shape[1] % format_.block_size == 0:
            count = shape[0] * shape[1] // format_.block_size
            data, dtype = pool[number : number + count].reshape(-1), "Q4_K"
        else:
            values = np.ones(shape) if "norm" in name else DEVIATION * rng.standard_normal(shape)
            data, dtype = values.astype("<f4").reshape(-1).view(np.uint8), "F32"
        weights[name] = Weight(name, dtype, shape, data, path)
    checkpoint = FolderCheckpoint(path, raw, None, weights)
    found = {weight.name: weight for weight in find_weights(config, checkpoint).values()}
    write_peer_file(path, PeerModel(raw_config=raw, config=config, weights=found, quantize=None, num_threads=1))


def _blocks(rng: np.random.Generator, count: int) -> NDArray[np.uint8]:
    """[count, 144] blocks of Q4_K: scales, minima and codes of any bits, whose values have mean 0."""
    blocks = rng.integers(0, 256, (count, FORMATS["Q4_K"].block_bytes), np.uint8)
    scale = 3 * DEVIATION / (_LARGEST_SCALE * _LARGEST_CODE)
    blocks[:, 0:2] = np.array([scale], "<f2").view(np.uint8)
    blocks[:, 2:4] = np.array([scale * _LARGEST_CODE / 2], "<f2").view(np.uint8)
    return blocks

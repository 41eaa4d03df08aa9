"""Models of well-known shapes with random weights: to measure, not to talk to. Nothing is downloaded.

All weights of a model are views of one pool of random numbers (deviation 0.02, as models are initialised), at different
places. So only the bytes of the largest tensor are in memory beside the executor's weights, and they are freed with the
checkpoint. Block formats are drawn as blocks, so nothing is quantised.
"""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from karat.bench.peers.api import PeerModel
from karat.bench.peers.gguf_file import write_peer_file
from karat.bench.shape_configs import shape_config
from karat.checkpoint import FolderCheckpoint, GgufCheckpoint, Weight
from karat.checkpoint.gguf.rope import STORED_AS_FACTORS
from karat.checkpoint.gguf.writer import scalar, write_gguf
from karat.checkpoint.weights import PLAIN_BYTES
from karat.config import ModelConfig
from karat.convert.conversion import own_tensors, rope_factors, stated_tensors
from karat.convert.metadata import model_pairs, rope_of
from karat.convert.mix import MIXES, is_router, type_of
from karat.errors import UsageError
from karat.models.decoder import weight_specs
from karat.models.opening import open_gguf
from karat.models.registry import find_weights, read_config
from karat.quant import FORMATS
from karat.text import Tokenizer
from karat.text.placeholder import placeholder_tokenizer

DEVIATION = 0.02
_MIXES = ("Q4_K_M", "MXFP4_MOE")
STORED_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", *(name.lower() for name in _MIXES))

_SLACK_BYTES = 8 << 20  # of the pool, beyond the largest tensor, for different places
_CHUNK = 1 << 20  # numbers drawn at a time
_QUANTISED = 1 << 18  # numbers that are quantised for the blocks of a mix


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A checkpoint in memory, and a tokenizer with a word for every token id; for karat.engine.llm.LLM."""

    checkpoint: FolderCheckpoint
    tokenizer: Tokenizer


def random_model(name: str, *, stored: str = "bf16", seed: int = 0) -> RandomModel:
    """The shape `name` with weights stored as `stored`, one of STORED_TYPES; the same bits for the same seed.

    Vectors (norms and biases), routers and matrices whose rows are no whole number of blocks are float32, if `stored`
    is a block format. A mix gives each matrix the type that `karat convert` gives it.
    """
    raw = shape_config(name)
    if stored not in STORED_TYPES:
        raise UsageError(f"weights {stored!r}: expected one of {', '.join(STORED_TYPES)}")
    path = Path(f"random {name}, {stored}, seed {seed}")
    config = read_config(raw)
    specs = weight_specs(config)
    shapes = {spec.source: spec.shape for spec in specs}
    as_stored = {spec.source: spec.stored[-1] for spec in specs if spec.stored}
    types = {source: _stored_type(config, source, shape, stored.upper()) for source, shape in shapes.items()}
    sizes = {source: _num_bytes(types[source], shape) for source, shape in shapes.items()}
    rng = np.random.default_rng(seed)
    pools = {
        dtype: _draw(rng, dtype, _SLACK_BYTES + max(n for source, n in sizes.items() if types[source] == dtype))
        for dtype in sorted(set(types.values()))
    }
    weights = {}
    for source, shape in shapes.items():
        dtype, unit = types[source], _unit_bytes(types[source])
        start = int(rng.integers((len(pools[dtype]) - sizes[source]) // unit + 1)) * unit
        data = pools[dtype][start : start + sizes[source]]
        if len(shape) == 1 and (mean := _mean(source)):
            data = _draw(rng, dtype, sizes[source], mean=mean)
        weights[source] = Weight(source, dtype, as_stored.get(source, shape), data, path)
    return RandomModel(FolderCheckpoint(path, raw, None, weights), placeholder_tokenizer(config.vocab_size))


def written(checkpoint: FolderCheckpoint | GgufCheckpoint, path: Path) -> GgufCheckpoint:
    """The weights of a checkpoint as a GGUF file without a tokenizer, opened: for ranks, which read files."""
    config, weights = read_config(checkpoint.config), checkpoint.weights
    tensors = own_tensors(config, weights, lambda weight: weight.dtype, weights.__getitem__)
    if rope_of(config).rope_type in STORED_AS_FACTORS:
        tensors.append(rope_factors(config))
    tensors += stated_tensors(config)
    write_gguf(path, [*model_pairs(config, path.stem), ("general.file_type", scalar("UINT32", 0))], tensors)
    return open_gguf(path)


def write_shape(path: Path, shape: str, stored: str) -> None:
    """A GGUF file of the shape with random weights, stored as `stored`, for servers and programs that read files.

    UsageError for an unknown shape or type.
    """
    checkpoint = random_model(shape, stored=stored).checkpoint
    config = read_config(checkpoint.config)
    weights = {weight.name: weight for weight in find_weights(config, checkpoint).values()}
    write_peer_file(
        path, PeerModel(raw_config=checkpoint.config, config=config, weights=weights, quantize=None, num_threads=1)
    )


def _stored_type(config: ModelConfig, source: str, shape: tuple[int, ...], wanted: str) -> str:
    if wanted in _MIXES:
        layer = re.match(r"model\.layers\.(\d+)\.", source)
        return type_of(MIXES[wanted], source, shape, int(layer[1]) if layer else None, config)
    format_ = FORMATS.get(wanted)
    if format_ is None:
        return wanted
    return wanted if len(shape) > 1 and shape[-1] % format_.block_size == 0 and not is_router(source) else "F32"


def _mean(source: str) -> float:
    """Of a vector: a norm's is 1, and that of rates of decay -1, which is what A_log is in shapes stored as GGUF."""
    return 1.0 if "norm" in source else -1.0 if source.endswith("A_log") else 0.0


def _num_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return FORMATS[dtype].num_bytes(prod(shape)) if dtype in FORMATS else prod(shape) * PLAIN_BYTES[dtype]


def _unit_bytes(dtype: str) -> int:
    """A view of the pool begins at a multiple of this many bytes."""
    return FORMATS[dtype].block_bytes if dtype in FORMATS else PLAIN_BYTES[dtype]


def _draw(rng: np.random.Generator, dtype: str, num_bytes: int, mean: float = 0.0) -> NDArray[np.uint8]:
    """At least `num_bytes` bytes of stored numbers, read-only: normal, or of uniform codes in a block format."""
    unit = _unit_bytes(dtype)
    count = -(-num_bytes // unit)
    pool = np.empty((count, unit), np.uint8)
    for start in range(0, count, _CHUNK):
        part = pool[start : start + _CHUNK]
        if dtype in FORMATS:
            part[:] = _draw_blocks(rng, dtype, len(part))
            continue
        numbers = (mean + DEVIATION * rng.standard_normal(len(part), np.float32)).astype(np.float32)
        if dtype == "BF16":
            bits = numbers.view(np.uint32) >> np.uint32(16)
            part[:] = bits.astype("<u2").view(np.uint8).reshape(part.shape)
        else:
            part[:] = numbers.astype("<f4" if dtype == "F32" else "<f2").view(np.uint8).reshape(part.shape)
    flat = pool.reshape(-1)
    flat.flags.writeable = False
    return flat


def _draw_blocks(rng: np.random.Generator, dtype: str, count: int) -> NDArray[np.uint8]:
    """Blocks of a 16-bit scale and uniform codes, which are symmetric but for the lowest code of Q4_0.

    Of the formats of mixes, blocks in random order of as many quantised normal numbers as take a moment.
    """
    format_ = FORMATS[dtype]
    if dtype not in ("Q8_0", "Q4_0"):
        values = DEVIATION * rng.standard_normal((_QUANTISED // format_.block_size, format_.block_size), np.float32)
        return format_.quantize(values.astype(np.float32))[rng.integers(len(values), size=count)]
    blocks = rng.integers(0, 256, (count, format_.block_bytes), np.uint8)
    if dtype == "Q8_0":
        blocks[:, 2:][blocks[:, 2:] == 0x80] = 0x81  # -128, which no quantiser writes
    largest = {"Q8_0": 127, "Q4_0": 8}[dtype]
    scales = DEVIATION * np.sqrt(3) / largest * rng.uniform(0.75, 1.25, (count, 1))  # uniform: largest / √3
    blocks[:, :2] = scales.astype("<f2").view(np.uint8)
    return blocks

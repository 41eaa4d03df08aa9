"""A GGUF file of a shape with random weights, for servers and programs that read files."""

from pathlib import Path

from karat.bench.peers.api import PeerModel
from karat.bench.peers.gguf_file import write_peer_file
from karat.bench.shapes import random_model
from karat.models.registry import find_weights, read_config


def write_shape(path: Path, shape: str, stored: str) -> None:
    """The file `path` of the shape, its weights stored as `stored`. UsageError for an unknown shape or type."""
    checkpoint = random_model(shape, stored=stored).checkpoint
    config = read_config(checkpoint.config)
    weights = {weight.name: weight for weight in find_weights(config, checkpoint).values()}
    write_peer_file(
        path, PeerModel(raw_config=checkpoint.config, config=config, weights=weights, quantize=None, num_threads=1)
    )

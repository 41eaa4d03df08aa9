"""Models whose branches are multiplied by a number, which no family of Karat has yet: llama with multipliers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from karat.check.model.graph import Graph, build_graph
from karat.config import ModelConfig
from karat.layers.block import Block
from karat.models import decoder

FACTORS = (0.22, -1.7)  # of the two branches of a layer


@contextmanager
def scaled() -> Iterator[None]:
    """Decoders that are constructed meanwhile have these multipliers."""
    plain = decoder.layer

    def layer(*args: Any) -> Block:
        block = plain(*args)
        assert block.second is not None
        first, second = (
            replace(branch, multiplier=factor)
            for branch, factor in zip((block.first, block.second), FACTORS, strict=True)
        )
        return replace(block, first=first, second=second)

    with patch.object(decoder, "layer", layer):
        yield


def scaled_graph(config: ModelConfig) -> Graph:
    with scaled():
        return build_graph(config)

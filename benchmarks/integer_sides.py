"""Sides of benchmarks.integers, each in a process of its own (karat.bench.peers.process): Karat by build and width, and
other engines on the same file.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import karat
from karat.bench.accounting import Account
from karat.bench.peers import Peer
from karat.bench.session import load_beside, stored_bytes
from karat.bench.sides import KaratSide
from karat.engine.llm import LLM
from karat.models.opening import open_model
from karat.models.registry import find_weights, read_config

CHUNK = 512  # tokens of a step


class KaratPeer(KaratSide):
    """Karat as a peer of itself: one build, one width of activations."""

    def __init__(self, llm: LLM, account: Account, *, num_threads: int, name: str) -> None:
        super().__init__(llm, account, karat.__version__, num_threads=num_threads, name=name)
        self._model = llm

    def logits(self, prompt: Sequence[int]) -> NDArray[np.float32] | None:
        return self._model.logits(list(prompt))[-1].astype(np.float32)


def load_karat(
    *, model: str, isa: str, num_threads: int, longest: int, batch: int, activations: str | None = None
) -> KaratPeer:
    """Karat with the kernel build `isa`, for sequences of at most `longest` tokens, `batch` of them. Without
    activations it is a Karat that has no choice of them (benchmarks.earlier).
    """
    os.environ["KARAT_ISA"] = isa
    checkpoint = open_model(Path(model))
    config = read_config(checkpoint.config)
    account = Account(config, stored_bytes(find_weights(config, checkpoint), None), "float16")
    blocks = batch * (-(-longest // 16) + 2)
    chosen: dict[str, Any] = {} if activations is None else {"activations": activations}
    llm = LLM(
        checkpoint,
        **chosen,
        threads=num_threads,
        max_model_len=longest,
        max_num_seqs=batch,
        max_num_batched_tokens=CHUNK,
        max_step_ms=0,
        num_blocks=blocks,
        generation_config="none",
        enable_prefix_caching=False,
    )
    return KaratPeer(llm, account, num_threads=num_threads, name=f"{isa} {activations}")


def load_peer(*, model: str, peer: str, num_threads: int, path: str | None) -> Peer:
    """Another engine on the same file; its packages are looked for in the folder `path` first."""
    if path is not None:
        sys.path.insert(0, path)
    loaded = load_beside(model=model, shape=None, stored="", quantize=None, peer=peer, num_threads=num_threads)
    if path is not None:
        loaded.name = f"{loaded.name} ({Path(path).name})"
    return loaded

"""Other engines on the same weights, to compare with. Karat needs none of them; a user installs the one that is
wanted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

from karat.bench.peers.api import Peer, PeerModel
from karat.errors import ExecutorError, UsageError

__all__ = ["PEERS", "Peer", "PeerModel", "load_peer", "require_peer"]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A peer: the module of its adapter, the modules that this imports, how to install them, and the function that
    loads the peer.
    """

    module: str
    imports: tuple[str, ...]
    package: str
    install: str
    loader: str = "load"


_OPENVINO = _Entry("karat.bench.peers.ov", ("openvino_genai",), "openvino-genai", "pip install openvino-genai")

PEERS: Mapping[str, _Entry] = {
    "llama.cpp": _Entry(
        "karat.bench.peers.llamacpp", ("llama_cpp",), "llama-cpp-python", "pip install llama-cpp-python"
    ),
    "transformers": _Entry(
        "karat.bench.peers.hf", ("torch", "transformers"), "transformers", "pip install torch transformers"
    ),
    "openvino": _OPENVINO,
    "openvino-f32": replace(_OPENVINO, loader="load_float32"),
}


def require_peer(name: str) -> None:
    """UsageError for an unknown name; ExecutorError, with the remedy, if the peer is not installed."""
    if name not in PEERS:
        raise UsageError(f"peer {name!r} is not known; there are {', '.join(PEERS)}")
    entry = PEERS[name]
    if missing := [module for module in entry.imports if find_spec(module) is None]:
        raise ExecutorError(f"the peer {name} needs {' and '.join(missing)}; install with: {entry.install}")


def load_peer(name: str, model: PeerModel) -> Peer:
    """The peer with the model loaded. Raises the errors of `require_peer` and of the peer."""
    require_peer(name)
    entry = PEERS[name]
    load: Callable[[PeerModel, str], Peer] = getattr(import_module(entry.module), entry.loader)
    return load(model, version(entry.package))

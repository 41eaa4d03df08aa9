"""Fingerprint: what of a loaded model decides its answers, part by part.

Ranks, threads, the instruction set, batches and the cache of prefixes are no part, because they change no answer.
"""

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from threading import Lock
from weakref import WeakKeyDictionary

from karat.checkpoint import Weight
from karat.config import NUMERIC_CONTRACT, ModelConfig
from karat.engine.llm import LLM
from karat.engine.loading import Preparation
from karat.engine.sampler import SAMPLER_VERSION
from karat.models.registry import find_weights
from karat.quant import FORMATS
from karat.receipts.canonical import digest

_lock = Lock()
_begun: "WeakKeyDictionary[LLM, Future[Fingerprint]]" = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The parts. Digests are SHA-256 in hexadecimal digits.

    - configuration: of the model's configuration as it was read (RoPE, eps, windows …). The stated dtype is left out.
    - weights: the Merkle root over the tensors as they are computed with, after `quantize`.
    - tokenizer, chat_template: of their definitions.
    - numeric_contract: the last version of docs/determinism.md that changed the model's types.
    - sampler: the version of the rules that make a token of logits.
    - executor: its name. dtype and kv_dtype: the types it computes in, and keeps keys and values in.
    """

    configuration: str
    weights: str
    tokenizer: str
    chat_template: str
    numeric_contract: int
    sampler: int
    executor: str
    dtype: str
    kv_dtype: str

    @property
    def digest(self) -> str:
        """SHA-256 over the canonical JSON of the parts."""
        return digest(asdict(self))

    def differing(self, other: "Fingerprint") -> tuple[str, ...]:
        """Names of the parts that differ."""
        names = (field.name for field in fields(self))
        return tuple(name for name in names if getattr(self, name) != getattr(other, name))


def fingerprint_of(llm: LLM) -> Fingerprint:
    """The fingerprint of a loaded model. The first call reads all weights once more; later calls are at once."""
    return begin_fingerprint(llm).result()


def begin_fingerprint(llm: LLM) -> "Future[Fingerprint]":
    """The same, found by a thread beside whatever the model does. Weights are hashed without the interpreter's lock."""
    with _lock:
        if llm not in _begun:
            parts = _Source(llm)
            thread = ThreadPoolExecutor(1, "karat-fingerprint")
            _begun[llm] = thread.submit(parts.fingerprint)
            thread.shutdown(wait=False)
        return _begun[llm]


class _Source:
    """What a fingerprint is made of. It does not keep the LLM."""

    def __init__(self, llm: LLM) -> None:
        self._plan, self._tokenizer = llm.plan, llm.tokenizer

    def fingerprint(self) -> Fingerprint:
        plan, prepare = self._plan, Preparation(self._plan.options.quantize, quiet=True)
        weights = find_weights(plan.config, plan.checkpoint)
        types = {prepare.stored_type(weight) for weight in weights.values() if len(weight.shape) > 1}
        return Fingerprint(
            configuration=digest(_configuration(plan.config)),
            weights=merkle_root(weights, prepare),
            tokenizer=digest(self._tokenizer.definition),
            chat_template=digest(dict(self._tokenizer.template_sources)),
            numeric_contract=contract_of(types),
            sampler=SAMPLER_VERSION,
            executor=plan.ops.executor,
            dtype=plan.ops.dtype,
            kv_dtype=plan.kv_dtype,
        )


def _configuration(config: ModelConfig) -> dict[str, object]:
    values = asdict(config)
    del values["dtype"]  # information only
    return values


def contract_of(types: Iterable[str]) -> int:
    """The last version of the numeric contract that changed matrices of these stored types (docs/determinism.md)."""
    version = max(map(_last_change, types), default=NUMERIC_CONTRACT)
    assert version <= NUMERIC_CONTRACT
    return version


def _last_change(stored_type: str) -> int:
    if stored_type in ("Q2_K", "Q3_K"):
        return {"Q2_K": 3, "Q3_K": 4}[stored_type]
    format_ = FORMATS.get(stored_type)
    is_wide = format_ is not None and format_.block_size == 256
    return 1 if is_wide else 2  # leaves of row-parallel layers end elsewhere since version 2


def merkle_root(weights: Mapping[str, Weight], prepare: Preparation) -> str:
    """The root of the tree of RFC 9162 (section 2.1.1) with SHA-256, over the tensors in order of names.

    A leaf is a tensor's name, stored type and shape as canonical JSON, as a digest, then its bytes in order of rows.
    A tensor that two names share is read once for each.
    """
    return _root([_leaf(name, prepare(weights[name])) for name in sorted(weights)]).hex()


def _leaf(name: str, weight: Weight) -> bytes:
    header = digest({"name": name, "type": weight.dtype, "shape": list(weight.shape)})
    summed = hashlib.sha256(b"\0" + bytes.fromhex(header))
    summed.update(weight.data.data)
    return summed.digest()


def _root(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    cut = 1 << (len(leaves) - 1).bit_length() - 1  # the largest power of two below their number
    return hashlib.sha256(b"\1" + _root(leaves[:cut]) + _root(leaves[cut:])).digest()

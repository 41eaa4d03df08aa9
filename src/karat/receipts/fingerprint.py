"""Fingerprint: what of a loaded model decides its answers, part by part.

Ranks, threads, the instruction set, batches and the cache of prefixes are no part, because they change no answer.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import asdict, dataclass, fields
from typing import TypedDict

from karat.checkpoint import Checkpoint, Weight
from karat.checkpoint.packed import PackedFile
from karat.config import Activations, ModelConfig
from karat.errors import DamageError, UsageError
from karat.layers.weights import Prepare
from karat.models.cut_units import cut_units, experts_by_columns
from karat.models.registry import find_weights
from karat.ops.contract import activations_read, contract_of
from karat.receipts.canonical import digest
from karat.text import Tokenizer

SHORT = 32  # hexadecimal digits of a digest in system_fingerprint
_CLOSED = "the model was closed before its weights were hashed; open it again"
_PIECE = 1 << 20  # bytes that are hashed between two pauses: half a millisecond to some
_PAUSE = 19  # times the work before it
_LOOK_S = 0.05  # between looks whether it need be


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The parts. Digests are SHA-256 in hexadecimal digits.

    - configuration: of the model's configuration as it was read (RoPE, eps, windows …). The stated dtype is left out.
    - weights: the Merkle root over the tensors as they are computed with, after `quantize`.
    - tokenizer, chat_template: of their definitions.
    - numeric_contract: the last version of docs/determinism.md that changed such a model.
    - sampler: the version of the rules that make a token of logits.
    - executor: its name. dtype and kv_dtype: the types it computes in, and keeps keys and values in.
    - activations: what weights in blocks read; dtype in a model without blocks.
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
    activations: str

    @property
    def digest(self) -> str:
        """SHA-256 over the canonical JSON of the parts."""
        return digest(asdict(self))

    @property
    def short(self) -> str:
        """`system_fingerprint` of answers: fp_ and the first digits of the digest."""
        return f"fp_{self.digest[:SHORT]}"

    def differing(self, other: "Fingerprint") -> tuple[str, ...]:
        """Names of the parts that differ."""
        names = (field.name for field in fields(self))
        return tuple(name for name in names if getattr(self, name) != getattr(other, name))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredModel:
    """What of a model is known before it is loaded. `prepare` converts weights as for loading, and says nothing.

    `packed`, asked once the model is loaded, is the packed file that it reads, if it does.
    """

    config: ModelConfig
    checkpoint: Checkpoint
    prepare: Prepare
    tokenizer: Callable[[], Tokenizer]
    packed: Callable[[], PackedFile | None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """What is known once it is loaded: the version of the sampler's rules, and the executor with its types."""

    sampler: int
    executor: str
    dtype: str
    kv_dtype: str
    activations: Activations


class Fingerprinting:
    """The fingerprint of a model, found by a thread of its own beside whatever the model does, its loading included.

    First come the digests of the texts, which hold the interpreter's lock for some milliseconds, and are done before a
    model is loaded. Weights are hashed without the lock. The thread has a twentieth of the time of one core, so that no
    token is delayed. It makes no pause while the model is idle or somebody waits. `identify` gives the rest.
    """

    def __init__(self, stored: StoredModel) -> None:
        self._stored = stored
        self._pace = _Pace()
        self._lock = threading.Lock()
        self._computing: Future[Computing] = Future()
        self._ended = threading.Event()
        self._found: Future[Fingerprint] | None = None

    def begin(self) -> "Future[Fingerprint]":
        """Start the thread, if it has not started. It ends with the process at the latest."""
        with self._lock:
            if self._found is None:
                self._found = Future()
                self._found.set_running_or_notify_cancel()  # whoever waits may leave, and ends nothing
                arguments = (self._stored, self._computing, self._ended, self._found, self._pace)
                threading.Thread(target=_find, args=arguments, name="karat-fingerprint", daemon=True).start()
            return self._found

    def wanted(self) -> "Future[Fingerprint]":
        """As `begin`, for who waits: from now on the thread makes no pause."""
        self._pace.is_wanted.set()
        return self.begin()

    def identify(self, computing: Computing, is_idle: Callable[[], bool] | None = None) -> None:
        """The rest of what the fingerprint is made of, once. is_idle: whether the model has nothing to do (None: no).

        The thread asks `is_idle` after each piece.
        """
        if is_idle is not None:
            self._pace.is_idle = is_idle
        self._computing.set_result(computing)

    def end(self) -> None:
        """End the thread after the tensor that it hashes: the model is not loaded, or no more. May be called again."""
        self._ended.set()
        self._computing.cancel()
        self._pace.is_wanted.set()  # no pause holds the thread

    @property
    def known(self) -> Fingerprint | None:
        """The fingerprint, if it is found already."""
        found = self._found
        return found.result() if found is not None and found.done() and found.exception() is None else None

    @property
    def damage(self) -> DamageError | None:
        """What is wrong with the packed file that the model reads, once that is found."""
        found = self._found
        fault = found.exception() if found is not None and found.done() else None
        return fault if isinstance(fault, DamageError) else None


class _Pace:
    """The pauses of a thread that hashes.

    Priorities of the system are no way to this. A thread that gets only the time that nobody else wants takes the
    interpreter's lock after each piece, may wait for a processor while it holds it, and all threads wait with it: 0.6
    to 1.3 s on two busy cores.
    """

    def __init__(self) -> None:
        self.is_wanted = threading.Event()
        self.is_idle: Callable[[], bool] = _never
        self._worked_s = 0.0

    def begin(self) -> None:
        """The thread that calls begins its work."""
        self._worked_s = time.thread_time()

    def pause(self) -> None:
        """Wait 19 times as long as the thread has computed since the last call, or until it need not."""
        before, self._worked_s = self._worked_s, time.thread_time()
        end = time.monotonic() + _PAUSE * (self._worked_s - before)
        while not self.is_idle() and (left := end - time.monotonic()) > 0:
            if self.is_wanted.wait(min(left, _LOOK_S)):
                return


def _never() -> bool:
    return False


def _find(
    stored: StoredModel,
    computing: "Future[Computing]",
    ended: threading.Event,
    found: "Future[Fingerprint]",
    pace: _Pace,
) -> None:
    try:
        texts = _texts(stored)
        weights = find_weights(stored.config, stored.checkpoint)
        pace.begin()
        root = merkle_root(weights, stored.prepare, ended, pace.pause)
        _require_packed(stored, computing, ended, pace)
        found.set_result(_fingerprint(texts, root, stored, weights, computing.result()))
    except CancelledError:
        found.set_exception(UsageError(_CLOSED))
    except BaseException as fault:  # noqa: BLE001 - raised by whoever asks
        found.set_exception(fault)


def _require_packed(stored: StoredModel, computing: "Future[Computing]", ended: threading.Event, pace: _Pace) -> None:
    """Raise DamageError unless what is read in place of the weights is what was packed of them."""
    computing.result()

    def pause() -> None:
        if ended.is_set():
            raise UsageError(_CLOSED)
        pace.pause()

    if (packed := stored.packed()) is not None:
        packed.verify(pause)


def fingerprint(stored: StoredModel, computing: Computing) -> Fingerprint:
    """Reads all weights once."""
    weights = find_weights(stored.config, stored.checkpoint)
    return _fingerprint(_texts(stored), merkle_root(weights, stored.prepare), stored, weights, computing)


class _Texts(TypedDict):
    configuration: str
    tokenizer: str
    chat_template: str


def _texts(stored: StoredModel) -> _Texts:
    tokenizer = stored.tokenizer()
    return _Texts(
        configuration=digest(_configuration(stored.config)),
        tokenizer=digest(tokenizer.definition),
        chat_template=digest(dict(tokenizer.template_sources)),
    )


def _fingerprint(
    texts: _Texts, root: str, stored: StoredModel, weights: Mapping[str, Weight], computing: Computing
) -> Fingerprint:
    types = {stored.prepare.stored_type(weight) for weight in weights.values() if len(weight.shape) > 1}
    by_columns = experts_by_columns(cut_units(stored.config, weights, stored.prepare.stored_type))
    return Fingerprint(
        **texts,
        weights=root,
        numeric_contract=contract_of(stored.config, types, by_columns, computing.activations),
        sampler=computing.sampler,
        executor=computing.executor,
        dtype=computing.dtype,
        kv_dtype=computing.kv_dtype,
        activations=activations_read(types, computing.activations),
    )


def _configuration(config: ModelConfig) -> dict[str, object]:
    values = asdict(config)
    del values["dtype"]  # information only
    return values


def merkle_root(
    weights: Mapping[str, Weight],
    prepare: Prepare,
    ended: threading.Event | None = None,
    pause: Callable[[], None] | None = None,
) -> str:
    """The root of the tree of RFC 9162 (section 2.1.1) with SHA-256, over the tensors in order of names.

    A leaf is a tensor's name, stored type and shape as canonical JSON, as a digest, then its bytes in order of rows.
    A tensor that two names share is read once for each. Pages of files are given back to the system. UsageError once
    it is `ended`. `pause` is called after every piece of the work.
    """
    leaves = []
    for name in sorted(weights):
        if ended is not None and ended.is_set():
            raise UsageError(_CLOSED)
        leaves.append(_leaf(name, prepare(weights[name]), pause))
        if weights[name].is_mapped:
            weights[name].release()
    return _root(leaves).hex()


def _leaf(name: str, weight: Weight, pause: Callable[[], None] | None) -> bytes:
    header = digest({"name": name, "type": weight.dtype, "shape": list(weight.shape)})
    summed = hashlib.sha256(b"\0" + bytes.fromhex(header))
    data = weight.data.data
    for start in range(0, len(data), _PIECE):
        summed.update(data[start : start + _PIECE])
        if pause is not None:
            pause()
    return summed.digest()


def _root(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    cut = 1 << (len(leaves) - 1).bit_length() - 1  # the largest power of two below their number
    return hashlib.sha256(b"\1" + _root(leaves[:cut]) + _root(leaves[cut:])).digest()

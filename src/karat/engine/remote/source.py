"""EngineSource: where AsyncLLM's engine computes: in a process of this machine, or where somebody else has it run.

Whoever it is takes and gives the messages of karat.engine.remote.messages.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from karat.engine.remote.messages import EngineFailed, Open, Ready, Stepped
from karat.engine.remote.process import EngineProcess
from karat.errors import DamageError, EngineDiedError
from karat.receipts.fingerprint import Computing, Fingerprint, Fingerprinting, StoredModel


class RunningEngine(Protocol):
    """An engine that was told to load a model; see EngineProcess for what each method does."""

    @property
    def process_id(self) -> int: ...
    def ready(self, progress: Callable[[int, int], None] | None) -> Ready: ...
    def fileno(self) -> int: ...
    def take(self) -> list[Stepped | EngineFailed]: ...
    def tell(self, command: bytes | None = None) -> bool: ...
    def look(self, *, has_work: bool) -> EngineDiedError | None: ...
    def cause_of_end(self) -> EngineDiedError: ...
    def close(self) -> None: ...


class Fingerprints(Protocol):
    """Who finds the fingerprint of the model; see Fingerprinting for what each method does."""

    @property
    def known(self) -> Fingerprint | None: ...
    @property
    def damage(self) -> DamageError | None: ...
    def begin(self) -> "Future[Fingerprint]": ...
    def wanted(self) -> "Future[Fingerprint]": ...
    def identify(self, computing: Computing, is_idle: Callable[[], bool] | None = None) -> None: ...
    def end(self) -> None: ...


class EngineSource(Protocol):
    """Starts engines of one kind."""

    def start(self, opening: Open) -> RunningEngine:
        """An engine that loads this model. It is called again where the engine died."""
        ...

    def fingerprints(self, stored: StoredModel) -> Fingerprints:
        """Who finds the fingerprint of the model, whose files are here."""
        ...


class OwnProcess:
    """The usual source: a child process, and a thread here that hashes the weights."""

    def start(self, opening: Open) -> RunningEngine:
        return EngineProcess(opening)

    def fingerprints(self, stored: StoredModel) -> Fingerprints:
        return Fingerprinting(stored)

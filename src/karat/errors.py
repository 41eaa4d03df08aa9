"""Every error that Karat raises on purpose.

A message has three parts: what came, what was expected, and what to do. The command line prints it as one line and
exits with the class's `exit_code`, which is part of the public interface.
"""

import traceback

Packed = tuple[str, str, str | None]
"""An error on its way to another process: the name of its class in this module, its message and its `param`."""


class KaratError(Exception):
    """Base of all errors that a user can cause or meet. Any other exception that escapes is a bug in Karat."""

    exit_code = 1

    def __init__(self, message: str = "", *, param: str | None = None) -> None:
        """`param` is the name of the argument or field at fault, where one is known."""
        super().__init__(message)
        self.param = param


class UsageError(KaratError):
    """A command line or an argument that cannot be understood."""

    exit_code = 2


class ReceiptError(UsageError):
    """A receipt that is malformed, or that the loaded model and its rules cannot confirm or deny."""


class OtherContractError(ReceiptError):
    """A receipt of another model, executor, type or contract: this engine has no verdict on it."""


class ConfigError(KaratError):
    """A config.json or generation_config.json that is malformed, unknown or unsupported."""

    exit_code = 3


class CheckpointError(KaratError):
    """Weights that are missing, unexpected, of the wrong shape, truncated or corrupt."""

    exit_code = 4


class DamageError(CheckpointError):
    """A file that a loaded model reads, and whose content is not what was written: the model is at its end."""


class OutputError(KaratError):
    """A file that cannot be written: it exists already, its folder does not exist, or the disk is full."""


class TokenizerError(KaratError):
    """A tokenizer that is missing, corrupt or of an unsupported kind."""

    exit_code = 5


class NoTokenizerError(TokenizerError):
    """A model without a tokenizer, or with one of a kind that Karat does not read."""


class TemplateError(TokenizerError):
    """A chat template that is absent, invalid, or exceeds its limits."""


class HubError(KaratError):
    """A model that could not be fetched: unknown, unauthorised, offline, or a failing network."""

    exit_code = 6


class RequestError(KaratError):
    """Sampling parameters or a prompt that cannot be served as asked."""

    exit_code = 7


class CapacityError(RequestError):
    """A request or a model that does not fit into the cache, the context or the memory."""

    exit_code = 8


class OutOfMemoryError(CapacityError):
    """Memory ran out while something was computed. The request itself is valid: try it again later."""


class OverloadedError(CapacityError):
    """Too many requests wait, or one has waited too long. The request itself is valid: try it again later."""


class SlowReaderError(RequestError):
    """The caller does not read its answer. The request was ended, so that unread text does not grow without bound."""


class ExecutorError(KaratError):
    """An executor that is not available here, or an op called against its contract."""

    exit_code = 9


class NumericsError(KaratError):
    """NaN or infinity where a finite number was required; names the place."""

    exit_code = 10


class TraceError(KaratError):
    """A trace that is malformed, or that does not fit the model it is compared with."""

    exit_code = 11


class RankError(KaratError):
    """A tensor-parallel rank that died, hangs or could not be started."""

    exit_code = 12


class ClientError(KaratError):
    """A server that cannot be reached, refuses a request, or breaks an answer off."""


class EngineDiedError(KaratError):
    """The process of an engine, or one of its ranks, that died, hangs or could not be started."""

    exit_code = 13


class DeviceLostError(KaratError):
    """A GPU that failed while it computed. Its memory is lost, so this process can compute nothing more on it."""

    exit_code = 15


class BugError(KaratError):
    """A request that a bug of Karat ended. The log has the traceback; other requests go on."""


def packed(error: Exception, *, with_traceback: bool = False) -> Packed:
    """The error for `unpacked`: of its own class, or of the nearest one above it that this module has.

    Any other exception than MemoryError is a BugError, whose message is its class and text, or its traceback.
    """
    match error:
        case KaratError():
            kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == __name__)
            return kind, str(error), error.param
        case MemoryError():
            text = "memory ran out; free some, or take a smaller model, context or KV cache"
            return OutOfMemoryError.__name__, text, None
    text = "".join(traceback.format_exception(error)) if with_traceback else f"{type(error).__name__}: {error}"
    return BugError.__name__, text, None


def unpacked(kind: str, message: str, param: str | None = None) -> KaratError:
    """The error that `packed` gave; a BugError that names the class if this module has none of that name."""
    found = globals().get(kind)
    if isinstance(found, type) and issubclass(found, KaratError):
        return found(message, param=param)
    return BugError(f"{kind}: {message}", param=param)

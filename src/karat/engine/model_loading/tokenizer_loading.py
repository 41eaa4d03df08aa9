"""TokenizerLoading: the tokenizer and the defaults of an LLM, made while its weights are loading."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from karat.checkpoint import ModelCheckpoint, resolve
from karat.config import ModelConfig
from karat.engine.model_loading.defaults import GenerationDefaults, defaults_of
from karat.engine.model_loading.llm_options import GenerationSource
from karat.models.opening import open_model
from karat.text import Tokenizer


class TokenizerLoading:
    """The tokenizer of a model and the defaults of its requests, made by a thread from `start` on.

    Making a tokenizer of 150,000 tokens takes as long as loading 200 MB of weights, and holds the interpreter's lock
    for most of that time: call `start` where weights load without the lock.
    """

    def __init__(
        self,
        checkpoint: ModelCheckpoint,
        config: ModelConfig,
        tokenizer: Tokenizer | str | Path | None,
        source: GenerationSource,
    ) -> None:
        """`tokenizer` is used instead of the checkpoint's own; a path or a name means that of another model."""
        self._checkpoint, self._config, self._tokenizer, self._source = checkpoint, config, tokenizer, source
        self._future: Future[tuple[Tokenizer, GenerationDefaults]] | None = None

    def start(self) -> bool:
        """Start the thread, unless it has started. Whether it is still at work."""
        if self._future is None:
            thread = ThreadPoolExecutor(1, "karat-tokenizer")
            self._future = thread.submit(self._make)
            thread.shutdown(wait=False)
        return not self._future.done()

    def then(self, work: Callable[[], object]) -> None:
        """Have `work` done when the thread has ended, or now if it has. It is short, and raises nothing."""
        self.start()
        assert self._future is not None
        self._future.add_done_callback(lambda _: work())

    def raise_fault(self) -> None:
        """Raise the error that `result` will raise, if it is known by now."""
        if self._future is not None and self._future.done():
            self._future.result()

    def result(self) -> tuple[Tokenizer, GenerationDefaults]:
        """Wait for both. Raises TokenizerError, ConfigError and, for a named tokenizer, errors of opening a model."""
        self.start()
        assert self._future is not None
        return self._future.result()

    def _make(self) -> tuple[Tokenizer, GenerationDefaults]:
        tokenizer = self._tokenizer
        if tokenizer is None:
            tokenizer = Tokenizer.of(self._checkpoint)
        elif isinstance(tokenizer, str | Path):
            path = resolve(tokenizer)
            tokenizer = Tokenizer.of(open_model(path)) if path.is_file() else Tokenizer.from_folder(path)
        if self._tokenizer is not None:
            tokenizer = tokenizer.overridden(self._checkpoint.overrides)
        return tokenizer, defaults_of(self._checkpoint, self._config, tokenizer, self._source)

"""Shared by `run` and `chat`: load a model, with remarks; ask it; measure the answer."""

import logging
from collections.abc import Callable, Iterator
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

from karat.cli.collection import without_collections
from karat.cli.loading_bar import LoadingBar
from karat.cli.options import LoadOptions
from karat.cli.terminal import note
from karat.errors import CheckpointError, ConfigError, HubError, KaratError, TokenizerError, unpacked

if TYPE_CHECKING:
    from karat.engine.llm import LLM
    from karat.engine.requests.request_updates import PromptProgress
    from karat.outputs import StreamChunk
    from karat.request import SamplingParams
    from karat.text import ChatPrompt

NO_DEFAULTS = "no sampling of the model's own (generation_config none): temperature=1"

Message = dict[str, str]


def load(model: str | None, options: LoadOptions, *, quiet: bool, reading: str | None = None) -> "LLM":
    """The model (None: the embedded one). An error of this model also shows `reading`, the reason why a word was
    taken for a model. `quiet`: its remarks are not shown.
    """
    log = logging.getLogger("karat")
    level = log.level
    if quiet:
        log.setLevel(logging.ERROR)
    try:
        with without_collections():
            from karat.checkpoint import resolve
            from karat.engine.llm import LLM

            folder = None if model is None else resolve(model, progress=not quiet)
            with LoadingBar() as bar:
                return LLM(folder, progress=None if quiet else bar, **options.given())
    except KaratError as error:
        if reading is not None and isinstance(error, CheckpointError | ConfigError | HubError | TokenizerError):
            error.add_note(reading)
        raise
    finally:
        log.setLevel(level)


def remark(llm: "LLM", model: str | None, given: dict[str, Any], options: LoadOptions) -> None:
    """Write to stderr: the model, its defaults, and the reason if it is slow."""
    from karat.machine.cores import num_usable_cores
    from karat.machine.extension import MISSING

    line = f"{model or 'the embedded model'}: {llm.defaults_notice or NO_DEFAULTS}"
    if given:
        line += "; from the command line: " + ", ".join(f"{name}={value!r}" for name, value in given.items())
    if llm.default_params.temperature == 0 and "temperature" not in given:
        line += "; try --temperature 0.7"
    note(line)
    if MISSING is not None and options.executor in (None, "auto"):
        note(f"slow, without native kernels: {MISSING}")
    cores = num_usable_cores()
    if cores is not None and (options.threads or 0) > cores:
        note(f"slow, with {options.threads} threads on {cores} cores: --threads {cores} or fewer is faster")


class Task:
    """One prompt for a model: a text to continue (str), or a conversation to answer.

    A conversation is rendered here and not again: the model answers `prompt_ids`. Raises RequestError, CapacityError
    and TemplateError for a prompt that cannot be served, CapacityError where `params` are asked for and there is no
    room for an answer. `given` is the sampling that was asked for, which counts until `params` are used.
    """

    def __init__(
        self, llm: "LLM", prompt: str | list[Message], given: dict[str, Any], *, sanitize_control_tokens: bool = False
    ) -> None:
        self.llm = llm
        self.prompt = prompt
        self._input: list[int] | ChatPrompt
        if isinstance(prompt, str):
            self.prompt_text = prompt
            self._input = self.prompt_ids = llm.tokenizer.encode(prompt, max_tokens=llm.max_model_len)
        else:
            self._input = llm.chat_prompt(prompt, sanitize_control_tokens=sanitize_control_tokens)
            self.prompt_ids, self.prompt_text = list(self._input.token_ids), self._input.text
        self.given = dict(given)

    @property
    def doubled_start(self) -> str | None:
        """The special token that a text to continue begins with twice, since it spells what is put before it."""
        first = self.prompt_ids[:2]
        if not isinstance(self.prompt, str) or len({*first}) != 1 or len(first) < 2:
            return None
        return self.llm.tokenizer.id_to_token(first[0]) if first[0] in self.llm.tokenizer.special_ids else None

    @cached_property
    def params(self) -> "SamplingParams":
        """The sampling. If max_tokens is the model's own default and the context leaves less, that is the limit."""
        return self.llm.default_params_after(len(self.prompt_ids), self.given)

    def stream(self, on_prompt: "Callable[[PromptProgress], object] | None" = None) -> "Iterator[StreamChunk]":
        """The answer as it is generated; `on_prompt` as LLM.stream takes it."""
        return self.llm.stream(self._input, self.params, on_prompt=on_prompt)


class Meter:
    """Counts tokens, and the time that the model takes for them, without the time of the terminal and the user."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.num_found_tokens = 0  # of the prompt, found in the cache; the caller sets it
        self.num_tokens = 0
        self.prefill_s = 0.0  # until the first token, which does not count for decode
        self.decode_s = 0.0
        self._begun: set[int] = set()  # choices that have a token
        self._reasons: set[str] = set()

    def watch(self, chunks: "Iterator[StreamChunk]") -> "Iterator[StreamChunk]":
        """Yield the chunks, and measure them."""
        while True:
            before = perf_counter()
            chunk = next(chunks, None)
            elapsed_s = perf_counter() - before
            if chunk is None:
                return
            if self._begun:
                self.decode_s += elapsed_s
            else:
                self.prefill_s += elapsed_s
            self.num_tokens += len(chunk.token_ids)
            if chunk.token_ids:
                self._begun.add(chunk.index)
            if chunk.finish_reason:
                self._reasons.add(chunk.finish_reason)
            yield chunk

    @property
    def prefill_rate(self) -> float | None:
        """Tokens of the prompt computed a second; None before there was an answer."""
        return (self.num_prompt_tokens - self.num_found_tokens) / self.prefill_s if self._begun else None

    @property
    def decode_rate(self) -> float | None:
        """Tokens after the first of each choice, a second; None if there were none."""
        num_tokens = self.num_tokens - len(self._begun)
        return num_tokens / self.decode_s if num_tokens > 0 and self.decode_s > 0 else None

    @property
    def was_cut(self) -> bool:
        """Whether an answer ended because its length was reached."""
        return "length" in self._reasons

    def summary(self, *, interrupted: bool = False) -> str:
        """One line: tokens, rates, and why it ended."""
        found = f"{self.num_found_tokens} cached" if self.num_found_tokens else ""
        prompt = _counted(self.num_prompt_tokens, "prompt token")
        answer = _counted(self.num_tokens, "answer token")
        parts = [f"{prompt}{_details(found, _rate_text(self.prefill_rate))}"]
        parts.append(f"{answer}{_details(_rate_text(self.decode_rate))}")
        return " · ".join([*parts, *(["interrupted"] if interrupted else sorted(self._reasons))])


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _details(*parts: str) -> str:
    text = ", ".join(filter(None, parts))
    return f" ({text})" if text else ""


def _rate_text(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def raise_if_failed(chunk: "StreamChunk") -> None:
    """The error that ended this answer, if one did: NumericsError for NaN or infinity."""
    if chunk.finish_reason == "error":
        raise unpacked(chunk.error_type or "NumericsError", chunk.error or "the answer ended in an error")

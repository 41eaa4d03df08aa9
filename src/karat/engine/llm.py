"""LLM: a model on this machine, in one object."""

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint import open_folder, resolve
from karat.config import FLOAT_BYTES, FloatName, embedded_model_path
from karat.engine.defaults import read_defaults, turn_end_ids
from karat.engine.engine import Engine, EngineConfig, RequestUpdate
from karat.engine.memory import num_cache_blocks
from karat.engine.sampler import derived_seed
from karat.engine.step import ModelRunner
from karat.errors import CapacityError, RequestError, UsageError
from karat.models.registry import build, read_config
from karat.ops import registry
from karat.ops.api import CacheSpec
from karat.request import MAX_SEED, Request, RequestOutput, SamplingParams, StreamChunk, shown
from karat.text import Tokenizer

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
GenerationSource = Literal["auto", "none"]

MAX_LOGITS_BYTES = 1024**3  # of what `LLM.logits` returns
BLOCK_SIZE = 16

_log = logging.getLogger("karat")


class LLM:
    """A model, its tokenizer and an engine. Not thread-safe: one thread uses an LLM.

    model is a folder, or org/name on the Hugging Face hub; None is the model shipped with Karat. dtype is what is
    computed in, kv_dtype what the KV cache stores (None: the executor's default), executor "auto" or a name that
    karat.ops.registry lists. max_model_len bounds prompt and output together (None: what the model was made for).
    seed is what requests without a seed of their own draw by, together with their number. At most max_num_seqs
    sequences and max_num_batched_tokens tokens are computed in a step. The KV cache has kv_cache_bytes, or num_blocks
    blocks of 16 tokens; by default it is enough for max_num_seqs full contexts, but at most 40 % of the memory that is
    available. generation_config "auto" takes default sampling from the model's generation_config.json (see
    karat.engine.defaults); "none" takes SamplingParams() instead. End tokens are the model's in both cases.

    Raises ConfigError, CheckpointError, TokenizerError, HubError, CapacityError, ExecutorError and UsageError.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        dtype: FloatName = "float32",
        kv_dtype: FloatName | None = None,
        executor: str = "auto",
        max_model_len: int | None = None,
        seed: int = 0,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 512,
        kv_cache_bytes: int | None = None,
        num_blocks: int | None = None,
        generation_config: GenerationSource = "auto",
    ) -> None:
        if generation_config not in get_args(GenerationSource):
            raise UsageError(f"generation_config={shown(generation_config)}: expected 'auto' or 'none'")
        if kv_dtype is not None and kv_dtype not in FLOAT_BYTES:
            raise UsageError(f"kv_dtype={shown(kv_dtype)}: expected one of {', '.join(FLOAT_BYTES)}, or None")
        if kv_cache_bytes is not None and num_blocks is not None:
            raise UsageError("kv_cache_bytes and num_blocks both say how large the KV cache is; give one")
        _check_int("seed", seed, 0, MAX_SEED)
        _check_int("max_num_seqs", max_num_seqs, 1)
        _check_int("max_num_batched_tokens", max_num_batched_tokens, max_num_seqs)
        for name, value in (("num_blocks", num_blocks), ("kv_cache_bytes", kv_cache_bytes)):
            if value is not None:
                _check_int(name, value, 1)
        ops = registry.create(executor, dtype)
        self.path = embedded_model_path() if model is None else resolve(model)
        checkpoint = open_folder(self.path)
        self.config = read_config(checkpoint.config)
        longest = self.config.max_position_embeddings
        self.max_model_len = longest if max_model_len is None else max_model_len
        _check_int("max_model_len", self.max_model_len, 1)
        if self.max_model_len > longest:
            raise UsageError(
                f"max_model_len={max_model_len}: the model was made for {longest} (max_position_embeddings of its "
                "config.json); beyond them its answers mean nothing; lower it"
            )
        self.tokenizer = Tokenizer.from_folder(self.path)
        defaults = read_defaults(checkpoint.generation_config, self.config, self.tokenizer)
        self.end_token_ids = defaults.end_token_ids
        self.default_params = defaults.params if generation_config == "auto" else SamplingParams()
        self.defaults_notice = defaults.notice if generation_config == "auto" else None
        self.executor, self.dtype = ops.executor, ops.dtype
        self.kv_dtype = kv_dtype or ops.default_kv_dtype
        loaded = build(self.config, ops, checkpoint, num_positions=self.max_model_len)
        num_blocks = num_cache_blocks(
            self.config, self.kv_dtype, block_size=BLOCK_SIZE, max_model_len=self.max_model_len,
            max_num_seqs=max_num_seqs, num_bytes=kv_cache_bytes, num_blocks=num_blocks,
        )  # fmt: skip
        cache = ops.new_cache(
            CacheSpec(
                num_layers=self.config.num_layers, num_blocks=num_blocks, block_size=BLOCK_SIZE,
                num_kv_heads=self.config.num_kv_heads, head_dim=self.config.head_dim, dtype=self.kv_dtype,
            )
        )  # fmt: skip
        self.engine = Engine(
            ModelRunner(loaded, cache),
            self.tokenizer,
            EngineConfig(
                vocab_size=self.config.vocab_size, max_model_len=self.max_model_len, num_blocks=num_blocks,
                block_size=BLOCK_SIZE, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens,
            ),
        )  # fmt: skip
        self._seed = seed
        self._num_requests = 0
        self._notice_is_due = self.defaults_notice is not None
        self._inbox: dict[str, deque[RequestUpdate]] = {}

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Continue one prompt or many; outputs in the order of the prompts.

        A prompt is a text, which the tokenizer may give a BOS, or token ids, which are taken as they are. params are
        for all prompts, or one for each; None: the model's defaults. RequestError, before any work, for a prompt that
        is empty or too long, or parameters that do not suit the model. What goes wrong later ends only the choice it
        concerns, with finish_reason "error".
        """
        listed = _listed(prompts)
        all_params = self._params_for(len(listed), params)
        return self._run([self._text_request(prompt, p) for prompt, p in zip(listed, all_params, strict=True)])

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Message] | None = None,
        add_generation_prompt: bool = True,
        now: datetime | None = None,
        template_variables: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, a list of {"role": …, "content": …}, or a list of conversations.

        The prompt is made by the model's chat template, which also gets `tools`, the time `now` (None: the clock) and
        `template_variables`. params as in `generate`. TemplateError if there is no template or it refuses.
        """
        conversations = _conversations(messages)
        all_params = self._params_for(len(conversations), params)
        options = _chat_options(tools, add_generation_prompt, now, template_variables)
        return self._run([self._chat_request(c, p, options) for c, p in zip(conversations, all_params, strict=True)])

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[StreamChunk]:
        """Continue one prompt, token by token; errors as in `generate`, raised by this call.

        Work is done as chunks are asked for. Closing or dropping the iterator ends the request and frees its blocks.
        Several streams may be open; a step serves all of them.
        """
        return self._stream(self._text_request(prompt, self._params_for(1, params)[0]))

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Message] | None = None,
        add_generation_prompt: bool = True,
        now: datetime | None = None,
        template_variables: Mapping[str, Any] | None = None,
    ) -> Iterator[StreamChunk]:
        """Answer one conversation as `chat` does, streaming as `stream` does."""
        options = _chat_options(tools, add_generation_prompt, now, template_variables)
        return self._stream(self._chat_request(messages, self._params_for(1, params)[0], options))

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.floating]:
        """The model's logits [tokens, vocab] after each token, as they are, in the compute dtype.

        Row i is what the model expects after token_ids[: i + 1]. Made in chunks. CapacityError where they would take
        more than 1 GiB.
        """
        ids = _plain_ids(token_ids)
        if len(ids) > self.max_model_len:
            raise CapacityError(f"{len(ids)} tokens do not fit the context of {self.max_model_len}; give fewer")
        dtype = np.dtype(self.dtype)
        num_bytes = len(ids) * self.config.vocab_size * dtype.itemsize
        if num_bytes > MAX_LOGITS_BYTES:
            raise CapacityError(
                f"the logits of {len(ids)} tokens would take {num_bytes} bytes; at most {MAX_LOGITS_BYTES} are made at "
                f"once; give at most {MAX_LOGITS_BYTES // (self.config.vocab_size * dtype.itemsize)} tokens"
            )
        reader = self.engine.add_logits(ids, np.empty((len(ids), self.config.vocab_size), dtype))
        try:
            while not reader.done:
                self._step()
        finally:
            self.engine.abort_logits(reader)
        if reader.error:
            raise reader.error
        return reader.logits

    @cached_property
    def chat_end_token_ids(self) -> frozenset[int]:
        """The tokens that end an answer in a conversation: end_token_ids and what closes a turn in the template."""
        return self.end_token_ids | turn_end_ids(self.tokenizer)

    def default_params_after(self, prompt_len: int) -> SamplingParams:
        """The default sampling after a prompt; its max_tokens, which nobody asked for, gives way to the context."""
        params, rest = self.default_params, self.max_model_len - prompt_len
        if params.max_tokens is None or params.max_tokens <= rest:
            return params
        return replace(params, max_tokens=None, min_tokens=min(params.min_tokens, max(rest, 0)))

    def _params_for(
        self, num_prompts: int, params: SamplingParams | Sequence[SamplingParams] | None
    ) -> Sequence[SamplingParams | None]:
        """Parameters for each prompt; None: the defaults, which are shown the first time."""
        if params is None:
            if self._notice_is_due:
                _log.warning("%s", self.defaults_notice)
                self._notice_is_due = False
            return [None] * num_prompts
        listed = [params] * num_prompts if isinstance(params, SamplingParams) else list(params)
        for item in listed:
            if not isinstance(item, SamplingParams):
                raise RequestError(f"params: {shown(item)} is no SamplingParams")
        if len(listed) != num_prompts:
            raise RequestError(f"{len(listed)} SamplingParams for {num_prompts} prompts; give one, or one for each")
        return listed

    def _text_request(self, prompt: Prompt, params: SamplingParams | None) -> Request:
        if isinstance(prompt, str):
            return self._request(self.tokenizer.encode(prompt), params, prompt, self.end_token_ids)
        return self._request(prompt, params, None, self.end_token_ids)

    def _chat_request(
        self, messages: Sequence[Message], params: SamplingParams | None, options: Mapping[str, Any]
    ) -> Request:
        text = self.tokenizer.render_chat(messages, **options)
        token_ids = self.tokenizer.encode(text, add_special_tokens=False)
        return self._request(token_ids, params, text, self.chat_end_token_ids)

    def _request(
        self, token_ids: Sequence[int], params: SamplingParams | None, prompt: str | None, end_token_ids: frozenset[int]
    ) -> Request:
        ids = _plain_ids(token_ids)
        if params is None:
            params = self.default_params_after(len(ids))
        number = self._num_requests
        self._num_requests += 1
        seed = derived_seed(self._seed, number) if params.seed is None else params.seed
        request = Request(str(number), ids, params, seed, prompt, end_token_ids)
        self.engine.check_request(request)
        return request

    def _run(self, requests: Sequence[Request]) -> list[RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        try:
            for request in requests:
                self._add(request)
            while len(outputs) < len(requests):
                self._step()
                for request in requests:
                    while inbox := self._inbox.get(request.request_id):
                        if output := inbox.popleft().output:
                            outputs[request.request_id] = output
        finally:
            for request in requests:
                self._forget(request)
        return [outputs[request.request_id] for request in requests]

    def _stream(self, request: Request) -> Iterator[StreamChunk]:
        """A generator: what is never asked for is never queued."""
        try:
            self._add(request)
            output = None
            while output is None:
                inbox = self._inbox[request.request_id]
                while not inbox:
                    self._step()
                update = inbox.popleft()
                yield from update.chunks
                output = update.output
        finally:
            self._forget(request)

    def _add(self, request: Request) -> None:
        self.engine.add_request(request)
        self._inbox[request.request_id] = deque()

    def _forget(self, request: Request) -> None:
        self.engine.abort(request.request_id)
        self._inbox.pop(request.request_id, None)

    def _step(self) -> None:
        for update in self.engine.step():
            self._inbox[update.request_id].append(update)


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt is a text or token ids; anything else is a sequence of prompts."""
    if isinstance(prompts, str):
        return [prompts]
    _require_sequence("prompts", prompts)
    if len(prompts) > 0 and isinstance(prompts[0], int | np.integer):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _plain_ids(token_ids: Sequence[int]) -> tuple[int, ...]:
    """NumPy's integers as Python's; anything else as it is, for the engine to judge."""
    _require_sequence("a prompt", token_ids)
    return tuple(int(i) if isinstance(i, np.integer) else i for i in token_ids)


def _require_sequence(name: str, value: object) -> None:
    if not isinstance(value, Sequence | np.ndarray):
        raise RequestError(f"{name}={shown(value)}: expected a text, token ids, or a list of them")


def _conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation is a sequence of mappings; anything else is a sequence of conversations."""
    if len(messages) > 0 and isinstance(messages[0], Mapping):
        return [messages]  # type: ignore[list-item]
    return list(messages)  # type: ignore[arg-type]


def _chat_options(
    tools: Sequence[Message] | None, add_generation_prompt: bool, now: datetime | None,
    variables: Mapping[str, Any] | None,
) -> dict[str, Any]:  # fmt: skip
    clock = {} if now is None else {"now": now}
    return {**(variables or {}), "tools": tools, "add_generation_prompt": add_generation_prompt, **clock}


def _check_int(name: str, value: object, least: int, most: int | None = None) -> None:
    in_range = type(value) is int and least <= value and (most is None or value <= most)
    if not in_range:
        span = f"an integer of at least {least}" if most is None else f"an integer from {least} to {most}"
        raise UsageError(f"{name}={shown(value)}: expected {span}")

"""LLM: a model, its tokenizer and an engine in one object."""

import logging
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint import FolderCheckpoint, GgufCheckpoint, ModelCheckpoint, resolve
from karat.checkpoint.overrides import NO_OVERRIDES, Overrides, said
from karat.config import Activations, FloatName, embedded_model_path
from karat.engine.choosing.logits_readers import LogitsTarget
from karat.engine.choosing.sampler import SAMPLER_VERSION
from karat.engine.engine import Engine
from karat.engine.model_loading.defaults import end_hint
from karat.engine.model_loading.llm_options import GenerationSource, Options, Quantization
from karat.engine.model_loading.load_plan import plan_load
from karat.engine.model_loading.tokenizer_loading import TokenizerLoading
from karat.engine.model_running import Preparation
from karat.engine.requests.messages import Message
from karat.engine.requests.request_making import (
    Prompt,
    RequestMaker,
    chat_options,
    conversations_in,
    plain_ids,
    prompts_in,
)
from karat.engine.requests.request_updates import PromptProgress
from karat.engine.requests.vllm_arguments import advice_on_method, refuse, settle_constructor
from karat.engine.shared_engine import SharedEngine
from karat.errors import CapacityError, UsageError
from karat.models.opening import open_model, passed_over
from karat.models.registry import read_config
from karat.ops import registry
from karat.ops.contract import contract_of
from karat.outputs import CompletionOutput, RequestOutput, StreamChunk
from karat.receipts.fingerprint import Computing, Fingerprint, Fingerprinting, StoredModel
from karat.request import ReceiptWish, Resume, SamplingParams, shown
from karat.request_record import Request
from karat.text import ChatPrompt, Tokenizer

if TYPE_CHECKING:
    from karat.checkpoint.packed import PackedFile
    from karat.engine.ranks.rank_model import ParallelModel
    from karat.engine.receipts.comparing import Compare
    from karat.engine.receipts.verifying import Answered, ReplayCommand
    from karat.engine.remote.client import AsyncEngine
    from karat.receipts.comparison import Comparison, Parting
    from karat.receipts.receipt import Receipt
    from karat.receipts.verdict import Verdict
    from karat.text.tools.events import ParsedAnswer

MAX_LOGITS_BYTES = 1024**3  # of the array that `LLM.logits` returns
_MUCH = 64 * 1024**2  # bytes of weights: more take long to load, unless they are loaded later and together

_log = logging.getLogger(__name__)


class LLM:
    """A model, its tokenizer and an engine. Several threads may use an LLM; one at a time computes, for all of them.
    `with LLM(...) as llm:` closes it at the end.

    - model: a folder, a GGUF file, org/name (or org/name:Q4_K_M) on the Hugging Face hub, or an open checkpoint. None
      is the model in the package.
    - tokenizer: used instead of the model's own. A path or a name means the tokenizer of that model.
    - dtype: the compute dtype. "auto" is float32 for every stored type of the weights.
    - kv_dtype: the dtype of the KV cache. None is the executor's default.
    - executor: "auto" or a name of karat.ops.registry.
    - device: "cpu", "cuda", "cuda:1" or "cuda-emulated" chooses the executor that computes there (docs/gpu.md). It
      changes no bit. None is that of `executor`, which is "cpu" with "auto".
    - host_layers: with a device other than "cpu", the number of first layers that the CPU computes.
    - max_model_len: the most tokens of prompt and output together. None is the model's own limit.
    - seed: with a request's number, the seed of requests that have none.
    - max_num_seqs, max_num_batched_tokens: the most sequences and tokens of a step.
    - kv_cache_bytes, or num_blocks (of 16 tokens): the size of the KV cache. By default it has room for max_num_seqs
      full contexts, but takes at most 40 % of the available memory. Layers with a window have as many blocks as they
      need for as many contexts.
    - state_cache_bytes: memory for states that are kept for later prompts, of models with recurrent layers
      (docs/serving.md). By default as many as four for each of max_num_seqs, but at most a tenth of the available
      memory. 0 keeps none. The states of running sequences come in addition.
    - enable_prefix_caching: keeps computed blocks, while there is room, for prompts with the same first tokens.
    - generation_config: "auto" takes default sampling from the model's generation_config.json (see
      karat.engine.model_loading.defaults), "none" takes SamplingParams(). End tokens are the model's in both cases.
    - packed_cache: a folder that keeps the matrices as kernels read them (docs/packed.md): they are written at the
      first time, and mapped from then on. Loading takes no time, processes share the memory, and no bit changes.
    - quantize: "q8_0" or "q4_0" quantises matrices while loading, to the same blocks as a converted file.
    - threads: of the native executor. None is one for each physical core, or a rank's share of the cores.
    - guard: runs op by op and ends a request at its first impossible result, with the op's name (karat.ops.guard). It
      is slower and gives the same bits.
    - progress: called with the bytes of the weights loaded so far and of all weights.
    - tensor_parallel_size: the number of processes that share the model, each with its own cores. They end with
      `close`, with this object or with this process.
    - max_step_ms: while streams are open, a step with decoding takes at most about this time, by computing less of
      other prompts. 0 is no bound. None is 200 with the native executor, whose bits do not depend on it, and no bound
      with others.
    - activations: what linear layers on weights in blocks read, with dtype float32: integers of one, two or three
      bytes, "int8", "int16", "int24" (docs/determinism.md). None is "int16"; the reference executor's is dtype.
    - hf_overrides: values for keys of the model's config.json, or of a GGUF file's metadata, that win over the file's;
      None takes a key away.
    - rope_scaling, rope_factor: "yarn" or "linear", for a context so many times as long as the model was trained for.
    - chat_template: the path of a chat template, or its text, instead of the model's own.
    - chat_template_kwargs: variables for each rendering of the chat template; those of a call win over them.

    Other options of the executor (karat.ops.registry.create) are given by their names.

    Arguments of vLLM that cannot change an answer of Karat, such as gpu_memory_utilization, are logged and ignored. Any
    other name is a UsageError that says what replaces it.

    Raises ConfigError, CheckpointError, TokenizerError, HubError, CapacityError, ExecutorError and UsageError.
    """

    def __init__(
        self,
        model: str | Path | ModelCheckpoint | None = None,
        *,
        tokenizer: Tokenizer | str | Path | None = None,
        dtype: FloatName | Literal["auto"] = "auto",
        kv_dtype: FloatName | None = None,
        executor: str = "auto",
        device: str | None = None,
        host_layers: int | None = None,
        max_model_len: int | None = None,
        seed: int = 0,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 512,
        kv_cache_bytes: int | None = None,
        num_blocks: int | None = None,
        state_cache_bytes: int | None = None,
        enable_prefix_caching: bool = True,
        generation_config: GenerationSource = "auto",
        quantize: Quantization | None = None,
        packed_cache: str | Path | None = None,
        threads: int | None = None,
        guard: bool = False,
        progress: Callable[[int, int], None] | None = None,
        tensor_parallel_size: int = 1,
        max_step_ms: int | None = None,
        activations: Activations | None = None,
        hf_overrides: Mapping[str, Any] | None = None,
        rope_scaling: str | None = None,
        rope_factor: float | None = None,
        chat_template: str | Path | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **others: object,
    ) -> None:
        executor_options = {
            "device": device,
            "host_layers": host_layers,
            "threads": threads,
            "activations": activations,
            **registry.take_options(others),
        }
        settle_constructor(others, LLM.__init__)
        if not isinstance(tokenizer, Tokenizer | str | Path | None):
            raise UsageError(
                f"tokenizer={shown(tokenizer)}: expected a folder, a GGUF file, org/name, or a karat.text.Tokenizer"
            )
        options = Options(
            dtype=dtype,
            kv_dtype=kv_dtype,
            executor=executor,
            max_model_len=max_model_len,
            seed=seed,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_cache_bytes=kv_cache_bytes,
            num_blocks=num_blocks,
            state_cache_bytes=state_cache_bytes,
            enable_prefix_caching=enable_prefix_caching,
            generation_config=generation_config,
            quantize=quantize,
            packed_cache=str(packed_cache) if isinstance(packed_cache, Path) else packed_cache,
            guard=guard,
            tensor_parallel_size=tensor_parallel_size,
            max_step_ms=max_step_ms,
            executor_options=executor_options,
        )
        ops = registry.create(executor, options.compute_dtype, executor_options)
        overrides = said(
            hf_overrides=hf_overrides,
            rope_scaling=rope_scaling,
            rope_factor=rope_factor,
            chat_template=chat_template,
            chat_template_kwargs=chat_template_kwargs,
        )
        checkpoint = _opened(model, overrides)
        self.path = checkpoint.path
        self.config = read_config(checkpoint.config).reading(max_model_len)
        if (told := passed_over(checkpoint)) is not None:
            _log.info("%s: %s", checkpoint.path.name, told)
        tokenizer_loading = TokenizerLoading(checkpoint, self.config, tokenizer, generation_config)
        plan = self.plan = plan_load(checkpoint, self.config, ops, options)
        self.max_model_len, self.kv_dtype = plan.sizes.max_model_len, plan.kv_dtype
        self.executor, self.dtype, self.activations = ops.executor, ops.dtype, plan.activations
        self.device = registry.device_of(self.executor)
        self.tensor_parallel_size = tensor_parallel_size

        def loaded(done: int, total: int) -> None:
            if done > _MUCH:
                tokenizer_loading.start()
            tokenizer_loading.raise_fault()  # at once, not after all is loaded
            if progress is not None:
                progress(done, total)

        self._ranks: ParallelModel | None = None
        if tensor_parallel_size > 1:
            tokenizer_loading.result()  # before ranks start: an error leaves no ranks behind
            self._ranks = plan.ranks(loaded)
        self._model = None if self._ranks else plan.model(loaded, meanwhile=tokenizer_loading.start)
        run = plan.runner(self._model) if self._model else self._ranks
        assert run is not None
        self.tokenizer, defaults = tokenizer_loading.result()
        for note in self.tokenizer.notes:
            _log.warning("%s: %s", checkpoint.path.name, note)
        for note in self.tokenizer.remarks:
            _log.info("%s: %s", checkpoint.path.name, note)
        if (hint := end_hint(self.tokenizer, defaults.end_token_ids)) is not None:
            _log.info("%s", hint)
        for name in self.tokenizer.unread_variables():
            _log.warning("%s: the chat template does not mention %s, which has no effect", checkpoint.path.name, name)
        self.end_token_ids = defaults.end_token_ids
        self.default_params = defaults.params
        self.defaults_notice = defaults.notice
        self.engine = Engine(run, self.tokenizer, plan.sizes)
        self._maker = RequestMaker(
            self.tokenizer,
            defaults,
            max_model_len=self.max_model_len,
            seed=seed,
            with_cache_points=plan.sizes.keeps_snapshots,
        )
        prepare, packed = Preparation(quantize, quiet=True), self.packed  # not self: the thread must not keep it alive
        stored = StoredModel(
            config=self.config,
            checkpoint=checkpoint,
            prepare=prepare,
            tokenizer=lambda: tokenizer_loading.result()[0],
            packed=lambda: packed,
        )
        hashing = self._fingerprinting = Fingerprinting(stored)
        self._shared = SharedEngine(self.engine, lambda: hashing.damage)
        hashing.identify(
            Computing(
                sampler=SAMPLER_VERSION,
                executor=registry.numerics_of(self.executor),
                dtype=self.dtype,
                kv_dtype=self.kv_dtype,
                activations=self.activations,
            ),
            is_idle=idleness(self.engine),
        )

    @property
    def packed(self) -> "PackedFile | None":
        """The packed file that holds the matrices, if one does."""
        return None if self._model is None else self._model.packed

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        priority: int | Sequence[int] = 0,
        receipt: ReceiptWish = False,
        **others: object,
    ) -> list[RequestOutput]:
        """Continue one prompt or several. Outputs are in the order of the prompts.

        A prompt is a text (the tokenizer may add a BOS), token ids (taken as they are), a mapping {"prompt": text} or
        {"prompt_token_ids": ids}, or a result of `chat_prompt`. sampling_params are for all prompts, or one for each;
        None is the model's defaults. use_tqdm shows the numbers of finished requests and tokens on stderr; None does so
        on a terminal, for as long as a call of more than a second takes. priority is for all prompts, or one for each:
        of all waiting requests, other threads' included, the smallest enters first.
        With receipt=True each choice that did not fail has a `receipt` (karat.receipts), with "digests" one without
        prompt and answer; weights are hashed beside the first one, which waits for the rest of that in the end.

        Raises RequestError, before any work, for a prompt that is empty or too long, and for parameters that do not
        suit the model; UsageError for any other argument. A later failure ends only its own choice, with finish_reason
        "error".
        """
        refuse("generate", others, LLM.generate)
        self._shared.require_open()
        listed = prompts_in(prompts)
        all_params = self._maker.params_for(len(listed), sampling_params)
        priorities = self._maker.priorities_for(len(listed), priority)
        requests = [
            self._request(prompt, params, priority=rank, receipt=receipt)
            for prompt, params, rank in zip(listed, all_params, priorities, strict=True)
        ]
        return self._outputs(requests, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        tools: Sequence[Message] | None = None,
        tool_choice: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        now: datetime | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        sanitize_control_tokens: bool = False,
        priority: int | Sequence[int] = 0,
        receipt: ReceiptWish = False,
        **others: object,
    ) -> list[RequestOutput]:
        """Answer one conversation, a list of {"role": …, "content": …}, or a list of conversations.

        A content is a text, or a list of parts {"type": "text", "text": …}: the chat template gets the list where it
        loops over it, else one text, joined by line breaks. It makes the prompt; it also receives `tools`, the time
        `now` (None: the clock) and `chat_template_kwargs`. With continue_final_message (and
        add_generation_prompt=False, as in vLLM) the model goes on with the last message. A control token such as
        <|im_end|> that a message spells becomes that token, as in transformers. With sanitize_control_tokens, for
        untrusted text, it stays text (the output's prompt shows both alike, its prompt_token_ids do not).
        sampling_params, use_tqdm, priority and receipt are as in `generate`. tool_choice decides, as over HTTP, which
        tools the model is shown: "auto" and "required" all, "none" none, a name this one alone. What the answer keeps
        to is decided by `tool_params`, of the prompt of `chat_prompt`.

        Raises RequestError for anything but conversations of text and for a tool_choice that names no tool, UsageError
        for tools that the template has no place for, TemplateError if there is no template or if it refuses the
        conversation, and the errors of `generate`.
        """
        refuse("chat", others, LLM.chat)
        self._shared.require_open()
        conversations = conversations_in(messages)
        all_params = self._maker.params_for(len(conversations), sampling_params)
        options = chat_options(
            tools,
            tool_choice,
            add_generation_prompt,
            now,
            chat_template_kwargs,
            sanitize_control_tokens,
            continue_final_message,
        )
        priorities = self._maker.priorities_for(len(conversations), priority)
        requests = [
            self._request(self._maker.chat_prompt(conversation, options), params, priority=rank, receipt=receipt)
            for conversation, params, rank in zip(conversations, all_params, priorities, strict=True)
        ]
        return self._outputs(requests, use_tqdm=use_tqdm)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        on_prompt: Callable[[PromptProgress], object] | None = None,
        **others: object,
    ) -> Iterator[StreamChunk]:
        """Continue one prompt, token by token. This call raises the errors of `generate`.

        Steps are computed as chunks are asked for. Closing or dropping the iterator ends the request and frees its
        blocks. Several streams may be open; a step serves all of them. priority is as in `generate`.

        on_prompt is called after each step until the prompt is computed; its exception ends the request. With on_prompt
        and the native executor, a step without decoding takes at most about half a second.
        """
        refuse("stream", others, LLM.stream)
        self._shared.require_open()
        request = self._request(prompt, self._maker.params_for(1, sampling_params)[0], priority=priority)
        return self._shared.stream(request, on_prompt)

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Message] | None = None,
        tool_choice: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        now: datetime | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        sanitize_control_tokens: bool = False,
        priority: int = 0,
        on_prompt: Callable[[PromptProgress], object] | None = None,
        **others: object,
    ) -> Iterator[StreamChunk]:
        """Answer one conversation as `chat` does, streaming as `stream` does."""
        refuse("stream_chat", others, LLM.stream_chat)
        self._shared.require_open()
        params = self._maker.params_for(1, sampling_params)[0]
        options = chat_options(
            tools,
            tool_choice,
            add_generation_prompt,
            now,
            chat_template_kwargs,
            sanitize_control_tokens,
            continue_final_message,
        )
        request = self._request(self._maker.chat_prompt(messages, options), params, priority=priority)
        return self._shared.stream(request, on_prompt)

    def resume(
        self,
        prompt: Prompt,
        token_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        choice: int = 0,
        receipt: "ReceiptWish" = False,
    ) -> Iterator[StreamChunk]:
        """Go on with an answer after its first tokens, streaming as `stream` does: what an undisturbed run adds.

        prompt and sampling_params are those of the answer, `seed` included unless it is greedy; `choice` is its number
        among n. The chunks have index 0, and only what is new. receipt is as in `generate`: the last chunk has it. It
        is of the whole answer, whose tokens so far are drawn again first. Raises the errors of `generate`, and
        RequestError for tokens after the answer's end, and with a receipt for tokens that the model does not draw.
        """
        self._shared.require_open()
        self._maker.params_for(1, sampling_params)
        resume = Resume(plain_ids(token_ids), choice)
        request = self._request(prompt, replace(sampling_params, n=1), resume=resume, receipt=receipt)
        chunks = self._shared.stream(request)
        return self._with_receipt(chunks, request) if request.receipt else chunks

    def fingerprint(self) -> Fingerprint:
        """What of this model decides its answers. The first call, or receipt, reads all weights once more."""
        return self._fingerprinting.wanted().result()

    def verify(self, receipt: "Receipt", prompt: Prompt | None = None) -> "Verdict":
        """Whether this model answers as the receipt says, by one pass over prompt and answer.

        prompt: that of the request, compared with the receipt's. A receipt that has only digests needs it; its answer
        is generated anew. Raises OtherContractError if the model or its rules are others than the receipt's,
        ReceiptError for a prompt that is missing, and errors of computing.
        """
        from karat.engine.receipts.verifying import verifying

        begun = perf_counter()
        self._shared.require_open()
        ids = None if prompt is None else self._maker.request(prompt, None).prompt_token_ids
        verdict: Verdict = self._result(verifying(receipt, self.fingerprint, self, ids, begun))
        return verdict

    def compare(self, receipt: "Receipt", activations: Activations) -> "Comparison":
        """The first token of a receipt's answer that the model would choose otherwise with other activations.

        The tokens before it are the receipt's, and so is its draw. The weights are those that are loaded; a KV cache
        for this answer is made and dropped. Raises RequestError for activations that cannot be compared (those of
        `comparable`, but for the receipt's own, can), ReceiptError for a receipt that has only digests, was changed, or
        is not what its own activations give, OtherContractError for one of another model, and errors of computing.
        """
        from karat.engine.receipts.comparing import comparison

        begun = perf_counter()
        self._shared.require_open()
        steps = comparison(receipt, activations, self.fingerprint(), self.plan.contracts, self, begun)
        made: Comparison = self._result(steps)
        return made

    @property
    def comparable(self) -> tuple[Activations, ...]:
        """Activations that `compare` can take; none for a model without weights in blocks, for other executors than
        native, and for ranks.
        """
        return tuple(self.plan.contracts)

    def engine_beside(self, activations: Activations, num_tokens: int) -> Engine:
        """An engine over the loaded weights with other activations, for one sequence of so many tokens. Its steps must
        not run beside those of this LLM.
        """
        assert self._model is not None, "ranks have no plan beside their own"
        run, sizes = self.plan.beside(self._model, activations, num_tokens)
        return Engine(run, self.tokenizer, sizes, grammars=self.engine.admission.grammars)

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        tool_choice: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        now: datetime | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        sanitize_control_tokens: bool = False,
        **others: object,
    ) -> ChatPrompt:
        """One conversation as `chat` gives it to the model, to be shown or counted: text and token_ids.

        `generate` and `stream` answer it as `chat` and `stream_chat` do, without rendering it again. With tool_choice
        the model is shown the tools of that choice, which is to be given to `tool_params` too.
        """
        refuse("chat_prompt", others, LLM.chat_prompt)
        options = chat_options(
            tools,
            tool_choice,
            add_generation_prompt,
            now,
            chat_template_kwargs,
            sanitize_control_tokens,
            continue_final_message,
        )
        return self._maker.chat_prompt(messages, options)

    def tool_params(
        self,
        prompt: ChatPrompt,
        tools: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tool_choice: str = "required",
        parallel_tool_calls: bool = True,
    ) -> SamplingParams:
        """Sampling under which the answer to `prompt` (of `chat_prompt`) calls tools, in the model's own format.

        `tools` are in OpenAI's form. tool_choice: "required"; "none", for no calls; the name of a tool, which is called
        once; or "auto", for text that may have calls, or, if the sampling has structured_outputs, for either calls or
        an answer of that form. Calls that must come, and those of tools that are `strict`, keep to the schemas of their
        tools. Without parallel_tool_calls there is one call at most. The same as over HTTP, token for token, if
        `prompt` is of the same tools and tool_choice. Raises RequestError, and UsageError for tools that the chat
        template has no place for.
        """
        from karat.engine.requests.tool_calls import calling

        params = sampling_params or self.default_params_after(len(prompt.token_ids))
        how: dict[str, Any] = {"tool_choice": tool_choice, "parallel_tool_calls": parallel_tool_calls}
        return calling(params, self._maker.dialect, prompt, tools, **how)

    def parse_chat(
        self, output: RequestOutput, tools: Sequence[Message] | None = None, *, calls_alone: bool = False
    ) -> "list[ParsedAnswer]":
        """The answer to a conversation, taken apart: reasoning, text and calls of `tools`, for each choice.

        calls_alone: it is either calls or of a form, in which nothing is a call.
        """
        from karat.engine.requests.tool_calls import parsed

        return parsed(output, self._maker.dialect, self.tokenizer, tools, calls_alone=calls_alone)

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer, which encodes and decodes, and renders conversations."""
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling parameters of calls that give none: the model's own, or SamplingParams()."""
        return self.default_params

    def logits(self, token_ids: Sequence[int]) -> NDArray[np.floating]:
        """The model's unchanged logits [tokens, vocab] after each token, in the compute dtype.

        Row i follows token_ids[: i + 1]. They are computed in chunks. Raises CapacityError if they take more than
        1 GiB.
        """
        ids = self._text_ids(token_ids)
        dtype = np.dtype(self.dtype)
        num_bytes = len(ids) * self.config.vocab_size * dtype.itemsize
        if num_bytes > MAX_LOGITS_BYTES:
            raise CapacityError(
                f"the logits of {len(ids)} tokens would take {num_bytes} bytes; at most {MAX_LOGITS_BYTES} are made at "
                f"once; give at most {MAX_LOGITS_BYTES // (self.config.vocab_size * dtype.itemsize)} tokens, or use "
                "write_logits"
            )
        logits = np.empty((len(ids), self.config.vocab_size), dtype)
        self._shared.write_logits(ids, logits)
        return logits

    def write_logits(self, token_ids: Sequence[int], target: LogitsTarget) -> None:
        """Write the rows of `logits` to `target` in order: an array, or an object that keeps less of each row.

        Rows are valid only while they are written, and some may come twice. Exceptions of `target` pass through.
        """
        self._shared.write_logits(self._text_ids(token_ids), target)

    def check_ranks(self) -> None:
        """Raise RankError if a rank of tensor parallelism has died since the last step. For an idle model."""
        self._shared.require_open()
        if self._ranks is not None:
            self._ranks.check()

    def close(self) -> None:
        """End the ranks of tensor parallelism, if there are any; from now on every use raises UsageError."""
        self._fingerprinting.end()
        self._shared.close(lambda: None if self._ranks is None else self._ranks.close())

    def __enter__(self) -> Self:
        self._shared.require_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def numeric_contract(self) -> int:
        """The last version of docs/determinism.md that changed the bits of such a model with the native executor."""
        return contract_of(self.plan.config, self.plan.types, self.plan.by_columns, self.activations)

    if not TYPE_CHECKING:  # a type checker would take every name for one that is there

        def __getattr__(self, name: str) -> NoReturn:
            advice = advice_on_method(name)
            raise AttributeError(f"LLM has no {name}" + (f"; {advice}" if advice else ""), name=name, obj=self)

    @property
    def chat_end_token_ids(self) -> frozenset[int]:
        """The tokens that end an answer in a conversation: end_token_ids and the one that the template ends it with."""
        return self._maker.chat_end_token_ids

    def default_params_after(self, prompt_len: int, given: Mapping[str, Any] = {}) -> SamplingParams:
        """The default sampling after a prompt, with the fields `given` in place of the model's.

        A default max_tokens is lowered to what the context has room for, a default min_tokens to the max_tokens given.
        Raises CapacityError for a prompt without room for an answer, and RequestError.
        """
        return self._maker.default_params_after(prompt_len, given)

    def _text_ids(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        self._shared.require_open()
        ids = plain_ids(token_ids)
        if len(ids) > self.max_model_len:
            raise CapacityError(f"{len(ids)} tokens do not fit the context of {self.max_model_len}; give fewer")
        return ids

    def _request(self, prompt: Prompt, params: SamplingParams | None, **terms: Any) -> Request:
        request = self._maker.request(prompt, params, **terms)
        self.engine.admission.check(request)
        return request

    def _outputs(self, requests: Sequence[Request], *, use_tqdm: bool | None) -> list[RequestOutput]:
        if not any(request.receipt for request in requests):
            return [gathered.output() for gathered in self._shared.run(requests, show_progress=use_tqdm)]
        from karat.engine.receipts.verifying import receipts_for

        self._fingerprinting.begin()
        ended = self._shared.run(requests, show_progress=use_tqdm)
        found = self.fingerprint()
        pairs = zip(ended, requests, strict=True)
        return [gathered.output(receipts_for(request, found, self.max_model_len)) for gathered, request in pairs]

    def _with_receipt(self, chunks: Generator[StreamChunk, None, None], request: Request) -> Iterator[StreamChunk]:
        from karat.engine.receipts.resuming import alone, given_text, require_own, with_receipt
        from karat.engine.receipts.verifying import receipts_for

        self._fingerprinting.begin()
        if (resume := request.resume) is not None and resume.token_ids:
            require_own(self._shared.replay(alone(request), resume.choice, resume.token_ids).difference)

        def completed(choice: CompletionOutput) -> CompletionOutput:
            text = given_text(request, self.tokenizer, self.engine.admission)
            return receipts_for(request, self.fingerprint(), self.max_model_len, text)(choice)

        return with_receipt(chunks, request, completed)

    def _result(self, steps: Generator[Any, Any, Any]) -> Any:
        """The result of a verification or a comparison."""
        from karat.engine.receipts.verifying import Returned, sent

        asked = sent(steps)
        while not isinstance(asked, Returned):
            asked = sent(steps, self._answered(asked))
        return asked.result

    def _answered(self, asked: "ReplayCommand | Compare") -> "Answered | Parting | None":
        from karat.engine.receipts.comparing import Compare, comparing
        from karat.engine.receipts.verifying import Answered, generated_anew

        if isinstance(asked, Compare):
            return self._shared.between(comparing(self.engine_beside, asked, is_alone=lambda: not self.engine.has_work))
        if asked.token_ids is not None:
            replay = self._shared.replay(asked.request, asked.choice, asked.token_ids)
            return Answered(replay.difference, replay.output)
        (gathered,) = self._shared.run([generated_anew(asked)], show_progress=False)
        return Answered(None, gathered.output().outputs[0])


def idleness(engine: "Engine | AsyncEngine") -> Callable[[], bool]:
    """Whether the engine has nothing to do, for a thread that must not keep it alive."""
    there = weakref.ref(engine)

    def is_idle() -> bool:
        found = there()
        return found is None or not found.has_work

    return is_idle


def _opened(model: str | Path | ModelCheckpoint | None, overrides: Overrides) -> ModelCheckpoint:
    """The open checkpoint of `model`. Its warnings are logged."""
    if isinstance(model, FolderCheckpoint | GgufCheckpoint):
        checkpoint: ModelCheckpoint = model if overrides == NO_OVERRIDES else open_model(model.path, overrides)
    else:
        checkpoint = open_model(embedded_model_path() if model is None else resolve(model), overrides)
    for warning in checkpoint.warnings:
        _log.warning("%s: %s", checkpoint.path.name, warning)
    return checkpoint

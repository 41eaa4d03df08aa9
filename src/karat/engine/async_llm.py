"""AsyncLLM: a model for programs with an event loop, its engine in a process of its own."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Self, TypeVar

from msgspec.structs import replace

from karat.checkpoint import FolderCheckpoint, GgufCheckpoint, ModelCheckpoint, resolve
from karat.checkpoint.overrides import NO_OVERRIDES, Overrides, said
from karat.checkpoint.packed import open_packed
from karat.config import Activations, embedded_model_path
from karat.engine.choosing.sampler import SAMPLER_VERSION
from karat.engine.llm import LLM, idleness
from karat.engine.model_loading.llm_options import Options
from karat.engine.model_loading.tokenizer_loading import TokenizerLoading
from karat.engine.model_running import Preparation
from karat.engine.receipts.comparing import Compare, comparison
from karat.engine.receipts.verifying import ReplayCommand, verifying
from karat.engine.remote.client import AsyncEngine, write_logs
from karat.engine.remote.messages import ComparisonEnded, Open, Replayed
from karat.engine.remote.opening import RequestOpener
from karat.engine.remote.source import EngineSource, OwnProcess
from karat.engine.requests.admission import Admission
from karat.engine.requests.grammar_cache import GrammarCache
from karat.engine.requests.messages import Message
from karat.engine.requests.request_making import Prompt, RequestMaker, chat_options, plain_ids, prompts_in
from karat.engine.requests.request_updates import RequestUpdate
from karat.engine.requests.tool_calls import calling, parsed
from karat.engine.requests.vllm_arguments import settle_constructor
from karat.engine.stats import EngineStats
from karat.errors import KaratError, RequestError, UsageError
from karat.models.opening import open_model
from karat.models.registry import read_config
from karat.ops.registry import device_of, numerics_of, take_options
from karat.outputs import RequestOutput
from karat.receipts.comparison import Comparison
from karat.receipts.fingerprint import Computing, Fingerprint, StoredModel
from karat.receipts.receipt import Receipt
from karat.receipts.verdict import Verdict
from karat.request import ReceiptWish, Resume, SamplingParams, StructuredOutputs, shown
from karat.request_record import Request
from karat.text import ChatPrompt
from karat.text.tools.dialect import Dialect
from karat.text.tools.events import ParsedAnswer

T = TypeVar("T")


class AsyncLLM:
    """A model whose engine computes in a process of its own. Its methods never block the event loop.

    model and options are those of `LLM`, except `seed`: a request without a seed draws one from the system's
    randomness, and its output states it. The tokenizer is given by path or name. At most max_queue answers (a request
    has `n`) wait in addition to those that the engine has places for, each for at most queue_timeout_s seconds (None:
    no limit); otherwise OverloadedError. `source` has the engine run elsewhere, as karat.ray does. The constructor
    returns when the model is loaded, and raises the errors of LLM. `open` does the same without blocking the event
    loop.

    One engine serves all requests, and each gets the tokens that LLM gives it alone. Texts and templates are tokenised
    in threads. If a task that waits for an answer is cancelled, or an iterator is closed or dropped, the request ends
    and its blocks are free after at most two steps. A stream that is not read ends with SlowReaderError when 4,096
    tokens wait.

    If the engine's process, or one of its ranks, dies or hangs, every open and later request raises EngineDiedError
    with the cause, until `restart`; for good, where its packed file is not what was packed. The process ends with
    `close`, and with this process in any case. It does not receive Ctrl-C of the terminal.
    """

    def __init__(
        self,
        model: str | Path | ModelCheckpoint | None = None,
        *,
        max_queue: int = 256,
        queue_timeout_s: float | None = None,
        source: EngineSource | None = None,
        **options: Any,
    ) -> None:
        if type(max_queue) is not int or max_queue < 0:
            raise UsageError(f"max_queue={shown(max_queue)}: expected an integer of at least 0")
        is_number = isinstance(queue_timeout_s, int | float) and not isinstance(queue_timeout_s, bool)
        if queue_timeout_s is not None and not (is_number and queue_timeout_s > 0):
            raise UsageError(f"queue_timeout_s={shown(queue_timeout_s)}: expected a number of seconds above 0, or None")
        self._max_queue = max_queue
        progress: Callable[[int, int], None] | None = options.pop("progress", None)
        opening = opening_of(model, options)
        self.path = Path(opening.path)
        self.model_name = _name_of(model, self.path)
        source = source or OwnProcess()
        process, hashing = source.start(opening), None
        try:
            checkpoint = open_model(self.path, opening.overrides)
            self.config = read_config(checkpoint.config).reading(opening.options.max_model_len)
            tokenizer_loading = TokenizerLoading(
                checkpoint, self.config, opening.tokenizer, opening.options.generation_config
            )
            stored = StoredModel(
                config=self.config,
                checkpoint=checkpoint,
                prepare=Preparation(opening.options.quantize, quiet=True),
                tokenizer=lambda: tokenizer_loading.result()[0],
                packed=lambda: None if ready.packed is None else open_packed(Path(ready.packed)),
            )
            hashing = self._fingerprinting = source.fingerprints(stored)
            tokenizer_loading.then(
                hashing.begin
            )  # beside the engine's process, which loads; not beside the interpreter's lock
            ready = process.ready(progress)
            self.tokenizer, defaults = tokenizer_loading.result()
        except BaseException:
            if hashing is not None:
                hashing.end()
            process.close()
            raise
        write_logs(ready.logs)
        self.max_model_len = ready.sizes.max_model_len
        self.max_num_seqs = ready.sizes.max_num_seqs
        self.vocab_size = ready.sizes.vocab_size
        self.executor, self.dtype, self.kv_dtype = ready.executor, ready.dtype, ready.kv_dtype
        self.activations, self.device = ready.activations, device_of(ready.executor)
        self.ready = replace(ready, logs=[])
        self.tensor_parallel_size = opening.options.tensor_parallel_size
        self.default_params = defaults.params
        self.defaults_notice = defaults.notice
        self.end_token_ids = defaults.end_token_ids
        self._maker = RequestMaker(
            self.tokenizer,
            defaults,
            max_model_len=self.max_model_len,
            seed=None,
            with_cache_points=ready.sizes.keeps_snapshots,
        )
        # What the engine would refuse is refused here, before it is queued.
        self.admission = Admission(ready.sizes, GrammarCache.of(self.tokenizer, self.vocab_size))
        self._dialect: Dialect | None = None
        self._engine = AsyncEngine(
            partial(source.start, opening),
            process,
            EngineStats(
                num_blocks=sum(ready.sizes.group_blocks),
                state_bytes=ready.sizes.all_state_bytes,
                max_snapshots=ready.sizes.max_snapshots,
            ),
            lambda: hashing.damage,
            max_queue=max_queue,
            max_num_seqs=self.max_num_seqs,
        )
        self._opener = RequestOpener(
            self._engine,
            self.admission,
            self.tokenizer,
            fingerprinting=self._fingerprinting,
            queue_timeout_s=queue_timeout_s,
        )
        self._fingerprinting.identify(
            Computing(
                sampler=SAMPLER_VERSION,
                executor=numerics_of(self.executor),
                dtype=self.dtype,
                activations=self.activations,
                kv_dtype=self.kv_dtype,
            ),
            is_idle=idleness(self._engine),
        )

    @classmethod
    async def open(
        cls,
        model: str | Path | ModelCheckpoint | None = None,
        *,
        max_queue: int = 256,
        queue_timeout_s: float | None = None,
        source: EngineSource | None = None,
        **options: Any,
    ) -> Self:
        """The constructor, run in a thread.

        If this is cancelled, the engine's process ends as soon as it has loaded.
        """
        make = partial(cls, model, max_queue=max_queue, queue_timeout_s=queue_timeout_s, source=source, **options)
        return await asyncio.to_thread(make)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template, which `chat` and `render` need."""
        return self.tokenizer.template_source is not None

    @property
    def chat_end_token_ids(self) -> frozenset[int]:
        """The tokens that end an answer in a conversation: end_token_ids and the one that the template ends it with."""
        return self._maker.chat_end_token_ids

    @property
    def process_id(self) -> int:
        """The process id of the engine's present process."""
        return self._engine.process.process_id

    @property
    def healthy(self) -> bool:
        """Whether requests can be made: the engine is neither closed nor dead."""
        return self._engine.failure is None and not self._engine.closed

    @property
    def failure(self) -> KaratError | None:
        """Why the engine died; None while it lives."""
        return self._engine.failure

    @property
    def system_fingerprint(self) -> str | None:
        """The model's fingerprint in short, None until its weights are hashed, soon after they are loaded."""
        known = self._fingerprinting.known
        return None if known is None else known.short

    async def fingerprint(self) -> Fingerprint:
        """What of this model decides its answers. Waits until its weights are hashed."""
        return await self._opener.fingerprint()

    async def verify(self, receipt: Receipt, prompt: Prompt | None = None) -> Verdict:
        """Whether this model answers as the receipt says, as `LLM.verify`. Running requests come before it.

        Raises OverloadedError if 16 receipts are verified already.
        """
        begun = perf_counter()
        self._engine.attach()
        found = await self.fingerprint()
        ids = None
        if prompt is not None:
            ids = (await self._opener.in_thread(self._maker.request, prompt, None)).prompt_token_ids
        verdict: Verdict = await self._opener.result(verifying(receipt, lambda: found, self, ids, begun))
        return verdict

    async def compare(self, receipt: Receipt, activations: Activations) -> Comparison:
        """The first token that the model would choose otherwise with other activations, as `LLM.compare`.

        It is computed between the steps of running requests. Raises OverloadedError if 16 receipts are replayed
        already.
        """
        begun = perf_counter()
        self._engine.attach()
        found = await self.fingerprint()
        steps = comparison(receipt, activations, found, self.ready.contracts, self, begun)
        made: Comparison = await self._opener.result(steps)
        return made

    @property
    def comparable(self) -> tuple[Activations, ...]:
        """Activations that `compare` can take, as `LLM.comparable`."""
        return tuple(self.ready.contracts)

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        salt: str | None = None,
        prompt_progress: bool = False,
        receipt: ReceiptWish = False,
        resume: Resume | None = None,
    ) -> AsyncGenerator[RequestUpdate, None]:
        """Continue one prompt. Yields an update for each step of the engine that has one; the last has the output.

        Prompts and params are those of `LLM.generate`. request_id names the request in outputs and `abort`; no other
        open request may have it (None: a new name). A smaller priority is served first. Prompts of different `salt`
        share no blocks of the cache. With prompt_progress the first update comes when the request is accepted, and one
        with each step of the prompt. receipt is as in `LLM.generate`, for the output; the request waits until the
        weights are hashed. resume is an answer's beginning, to go on with; with a receipt, which is of the whole
        answer, its tokens are drawn again first.

        The first step of the iteration raises RequestError or CapacityError for a request that can never be served, and
        OverloadedError if the queue is full.
        """
        making = self._making(
            prompt,
            params,
            request_id,
            priority=priority,
            salt=salt,
            tells_progress=prompt_progress,
            receipt=receipt,
            resume=resume,
        )
        async with self._opener.opened(*making) as opened:
            while True:
                update = await opened.next()
                yield update
                if update.output is not None:
                    return

    async def request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        salt: str | None = None,
        prompt_progress: bool = False,
        receipt: ReceiptWish = False,
        resume: Resume | None = None,
        is_watched: bool = True,
    ) -> Request:
        """All that is asked for, for `follow`. Arguments are as in `stream`. RequestError for what makes no request.

        If it is not watched, updates come with the first token and with the end of a choice alone, and steps for such
        requests alone take as long as they take, as in `LLM.generate`.
        """
        self._engine.attach()
        *_, make = self._making(
            prompt,
            params,
            request_id,
            priority=priority,
            salt=salt,
            tells_progress=prompt_progress,
            receipt=receipt,
            resume=resume,
            is_watched=is_watched,
        )
        return make() if isinstance(prompt, ChatPrompt) else await self._opener.in_thread(make)

    async def follow(self, request: Request, see: Callable[[RequestUpdate], None]) -> RequestOutput:
        """Compute a request, and call `see` with each update, as `stream` yields them. Returns the output in the end.

        The event loop calls `see` as the update comes, without waking up a task: this is the cheapest way to a token.
        `see` must not block. Its exception ends the request and is raised here.
        """
        name, num_answers = request.request_id, request.params.n
        async with self._opener.opened(name, num_answers, request.receipt, lambda: request, see) as opened:
            return await opened.output()

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        salt: str | None = None,
        receipt: ReceiptWish = False,
    ) -> RequestOutput | list[RequestOutput]:
        """The output of one prompt, or the outputs of a list of prompts in order. Arguments are as in `stream`.

        As many prompts of a list are under way as the engine has places for and as may wait. The first error ends all.
        """
        listed = prompts_in(prompts)
        all_params = self._maker.params_for(len(listed), params)
        options: dict[str, Any] = {"priority": priority, "salt": salt, "receipt": receipt}
        if len(listed) == 1 and listed[0] is prompts:
            return await self._output(listed[0], all_params[0], request_id=request_id, **options)
        most_answers = max([(params or self.default_params).n for params in all_params], default=1)
        num_places = self.max_num_seqs + min(self._max_queue, self.max_num_seqs)
        places = asyncio.Semaphore(max(1, num_places // most_answers))

        async def output(number: int) -> RequestOutput:
            name = None if request_id is None else f"{request_id}-{number}"
            async with places:
                return await self._output(listed[number], all_params[number], request_id=name, **options)

        return await all_of(output(number) for number in range(len(listed)))

    async def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Message] | None = None,
        tool_choice: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        now: datetime | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        sanitize_control_tokens: bool = False,
        request_id: str | None = None,
        priority: int = 0,
        salt: str | None = None,
        receipt: ReceiptWish = False,
    ) -> RequestOutput:
        """Answer one conversation. Its arguments are as in `LLM.chat`, the others as in `stream`."""
        prompt = await self.render(
            messages,
            tools=tools,
            tool_choice=tool_choice,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            now=now,
            chat_template_kwargs=chat_template_kwargs,
            sanitize_control_tokens=sanitize_control_tokens,
        )
        return await self._output(prompt, params, request_id=request_id, priority=priority, salt=salt, receipt=receipt)

    async def render(
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
    ) -> ChatPrompt:
        """One conversation as `LLM.chat_prompt` renders it: text and token ids, which `stream` and `generate` take."""
        self._engine.attach()
        options = chat_options(
            tools,
            tool_choice,
            add_generation_prompt,
            now,
            chat_template_kwargs,
            sanitize_control_tokens,
            continue_final_message,
        )
        return await self._opener.in_thread(self._maker.chat_prompt, messages, options)

    async def dialect(self) -> Dialect:
        """How the model's chat template tells of tools, writes calls and reasons."""
        self._engine.attach()
        if self._dialect is None:
            self._dialect = await self._opener.in_thread(lambda: self._maker.dialect)
        return self._dialect

    async def tool_params(
        self,
        prompt: ChatPrompt,
        tools: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tool_choice: str = "required",
        parallel_tool_calls: bool = True,
    ) -> SamplingParams:
        """As `LLM.tool_params`, for a prompt of `render`."""
        params = sampling_params or self._maker.default_params_after(len(prompt.token_ids))
        how: dict[str, Any] = {"tool_choice": tool_choice, "parallel_tool_calls": parallel_tool_calls}
        return calling(params, await self.dialect(), prompt, tools, **how)

    async def parse_chat(
        self, output: RequestOutput, tools: Sequence[Message] | None = None, *, calls_alone: bool = False
    ) -> list[ParsedAnswer]:
        """As `LLM.parse_chat`."""
        return parsed(output, await self.dialect(), self.tokenizer, tools, calls_alone=calls_alone)

    async def compile_form(self, form: StructuredOutputs, end_token_ids: Collection[int] = ()) -> None:
        """Returns when a form of answers is compiled; requests with it then begin at once, while it is kept.

        RequestError for one that is refused, that no answer begins which may end with `end_token_ids`, or that takes
        too long; OverloadedError where those of others do. Requests that come without it wait here themselves.
        """
        self._engine.attach()
        (await self.admission.grammars.compiled(form)).begin(end_token_ids)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text as a prompt. CapacityError for a text that no context can hold."""
        self._engine.attach()
        encode = partial(self.tokenizer.encode, add_special_tokens=add_special_tokens, max_tokens=self.max_model_len)
        return await self._opener.in_thread(encode, text)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids. RequestError for a value that is no token id."""
        self._engine.attach()

        def decode() -> str:
            ids = plain_ids(token_ids)
            for token_id in ids:
                if type(token_id) is not int or not 0 <= token_id < self.vocab_size:
                    raise RequestError(
                        f"{shown(token_id)} is no token id; expected integers from 0 to {self.vocab_size - 1}"
                    )
            return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

        return await self._opener.in_thread(decode)

    async def replay(self, command: ReplayCommand | Compare) -> Replayed | ComparisonEnded:
        """What the engine finds, for a `source` elsewhere: verifications and comparisons are sent as such commands."""
        return await self._opener.replay(command)

    async def abort(self, request_id: str) -> None:
        """End a request after the step in progress; its last update says "abort". No effect if it has ended."""
        self._engine.attach()
        self._engine.abort(request_id)

    async def stats(self) -> EngineStats:
        """The counters of the engine's last step. It does not wait for a step."""
        return self._engine.stats

    async def restart(self) -> None:
        """Load the model again after the engine died. No effect while it lives. Open requests have ended already.

        If the engine died twice within a minute, this call and every later one raise EngineDiedError. Errors of the
        constructor pass through.
        """
        await self._engine.restart()

    async def close(self) -> None:
        """End the engine's process. Open requests and every later use raise UsageError."""
        self._engine.end_requests()
        await asyncio.to_thread(self.shutdown)

    def shutdown(self) -> None:
        """`close` without an event loop. It must not be called from another thread while an event loop runs."""
        self._engine.end_requests()
        self._fingerprinting.end()
        self._opener.close()
        self._engine.process.close()

    async def __aenter__(self) -> Self:
        self._engine.attach()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _output(
        self, prompt: Prompt, params: SamplingParams | None, request_id: str | None, **terms: Any
    ) -> RequestOutput:
        making = self._making(prompt, params, request_id, **terms)
        async with self._opener.opened(*making, lambda update: None) as opened:
            return await opened.output()

    def _making(
        self, prompt: Prompt, params: SamplingParams | None, name: str | None, *, receipt: ReceiptWish, **terms: Any
    ) -> tuple[str, int, ReceiptWish, Callable[[], Request]]:
        """A request's name, its number of answers, its wish for receipts, and what makes it, which may take long.

        `terms` are further fields of it.
        """
        (own,) = self._maker.params_for(1, params)
        name = secrets.token_hex(8) if name is None else name
        make = partial(self._maker.request, prompt, own, request_id=name, receipt=receipt, **terms)
        return name, (own or self.default_params).n, receipt, make


def opening_of(model: str | Path | ModelCheckpoint | None, options: dict[str, Any]) -> Open:
    """The first message to the engine's process, of all `options`, which are taken out. A model of the hub is fetched.

    UsageError for options that LLM, or AsyncLLM, does not have.
    """
    tokenizer = options.pop("tokenizer", None)
    own = {name: options.pop(name) for name in Options.__dataclass_fields__ if name in options}
    if isinstance(folder := own.get("packed_cache"), Path):
        own["packed_cache"] = str(folder)
    own["executor_options"] = take_options(options)
    overrides = said(**{name: options.pop(name) for name in Overrides.__dataclass_fields__ if name in options})
    settle_constructor(options, LLM.__init__)
    if "seed" in own:
        raise UsageError("AsyncLLM has no seed: requests come in no fixed order; give each its own in SamplingParams")
    if not isinstance(tokenizer, str | Path | None):
        raise UsageError(f"tokenizer={shown(tokenizer)}: expected a folder, a GGUF file or org/name")
    checked = Options(**own)
    if isinstance(model, FolderCheckpoint | GgufCheckpoint):
        path = model.path
        overrides = model.overrides if overrides == NO_OVERRIDES else overrides
    else:
        path = embedded_model_path() if model is None else resolve(model)
    tokenizer_path = None if tokenizer is None else str(resolve(tokenizer).absolute())
    return Open(str(path.absolute()), tokenizer_path, checked, overrides)


def _name_of(model: object, path: Path) -> str:
    """The name of the model for a server: as given, or the last part of a path."""
    if model is None:
        return "karat-embedded"
    if isinstance(model, str) and not Path(model).exists():
        return model
    return path.stem if path.suffix == ".gguf" else path.name


async def all_of(outputs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results. The first error, or a cancellation, ends the others."""
    tasks = [asyncio.ensure_future(output) for output in outputs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

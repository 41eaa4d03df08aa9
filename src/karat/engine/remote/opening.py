"""RequestOpener: the way of AsyncLLM's requests from what a caller gives to an open request of the engine."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

import msgspec

from karat.engine.choosing.choice import Choice
from karat.engine.receipts.comparing import Compare
from karat.engine.receipts.verifying import (
    Answered,
    ReceiptWish,
    ReplayCommand,
    Returned,
    check_wish,
    sent,
    with_receipts,
)
from karat.engine.remote.client import AsyncEngine
from karat.engine.remote.messages import AddRequest, ComparisonEnded
from karat.engine.remote.open_request import OpenRequest
from karat.engine.remote.process import encoded
from karat.engine.requests.admission import Admission
from karat.engine.requests.request_making import Prompt, RequestMaker
from karat.engine.requests.request_updates import RequestUpdate
from karat.engine.scheduling.sequence import Sequence
from karat.errors import OverloadedError, RequestError, unpacked
from karat.outputs import CompletionOutput, RequestOutput
from karat.receipts.comparison import Parting
from karat.receipts.fingerprint import Fingerprint, Fingerprinting
from karat.request import MAX_COUNT, MAX_SEED, Request, Resume, SamplingParams, shown
from karat.text import ChatPrompt, Tokenizer

Result = TypeVar("Result")

_NUM_THREADS = 2  # for templates and tokenizers


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTerms:
    """What a client may say of how a request is served: arguments of `AsyncLLM.stream`."""

    priority: int = 0
    salt: str | None = None
    receipt: ReceiptWish = False
    resume: Resume | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions(RequestTerms):
    """How a request is computed and reported: the arguments of `AsyncLLM.stream` besides prompt and params."""

    name: str | None = None
    tells_progress: bool = False
    shares: bool = True


class RequestOpener:
    """Makes requests in threads, has each wait for its place and for the form of its answer, and opens it.

    A request ends with OverloadedError if it has waited for queue_timeout_s seconds (None: no limit).
    """

    def __init__(
        self,
        engine: AsyncEngine,
        intake: RequestMaker,
        admission: Admission,
        tokenizer: Tokenizer,
        *,
        fingerprinting: Fingerprinting,
        queue_timeout_s: float | None,
    ) -> None:
        self.queue_timeout_s = queue_timeout_s
        self._engine = engine
        self._maker = intake
        self._admission = admission
        self._tokenizer = tokenizer
        self._fingerprinting = fingerprinting
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "karat-text")
        self._numbers = count()

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The result of a function of texts, which must not block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *arguments))

    async def fingerprint(self) -> Fingerprint:
        """What of the model decides its answers, once its weights are hashed."""
        return await asyncio.shield(asyncio.wrap_future(self._fingerprinting.wanted()))

    def close(self) -> None:
        """Drop what waits for a thread."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def opened(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        options: RequestOptions,
        see: Callable[[RequestUpdate], None] | None = None,
    ) -> AsyncGenerator[OpenRequest, None]:
        """A request of the engine, which ends with the context."""
        check_wish(options.receipt)
        complete = None
        if options.receipt is not False:
            found = await self.fingerprint()

            def with_own(output: RequestOutput, request: Request) -> RequestOutput:
                given_text = "" if request.resume is None else self._given_text(request)
                context = self._admission.config.max_model_len
                return with_receipts(output, request, found, context, options.receipt, given_text)

            async def complete(output: RequestOutput, request: Request) -> RequestOutput:
                return await self.in_thread(with_own, output, request)

        add, message = await self._admitted(prompt, params, options)
        opened = self._engine.add(add, message, options.name, see, complete)
        timer = None
        if self.queue_timeout_s is not None:
            timer = asyncio.get_running_loop().call_later(self.queue_timeout_s, self._end_waiting, opened)
        try:
            yield opened
        finally:
            if timer is not None:
                timer.cancel()
            self._engine.forget(opened)

    async def result(self, steps: Generator[Any, Any, Any]) -> Any:
        """The result of a verification or a comparison (karat.engine.receipts.verifying, comparing)."""
        asked = await self.in_thread(sent, steps)
        while not isinstance(asked, Returned):
            asked = await self.in_thread(sent, steps, await self._answered(asked))
        return asked.result

    async def _answered(self, asked: ReplayCommand | Compare) -> Answered | Parting | None:
        if isinstance(asked, ReplayCommand) and asked.token_ids is None:
            return Answered(None, await self._generated(asked.request, asked.choice))
        request = replace(asked.request, request_id=str(next(self._numbers)))
        command = msgspec.structs.replace(asked, request=request)
        done = await self._engine.replay(command, await self.in_thread(encoded, command))
        if done.refused is not None:
            raise unpacked(*done.refused)
        if isinstance(done, ComparisonEnded):
            return done.parting
        assert done.output is not None
        return Answered(done.difference, done.output)

    async def _generated(self, request: Request, choice: int) -> CompletionOutput:
        """One choice of a request, generated, after all requests that others make."""
        ids = request.prompt_token_ids
        is_chat = request.end_token_ids == self._maker.chat_end_token_ids
        prompt: Prompt = ChatPrompt("", ids) if is_chat else ids
        options = RequestOptions(priority=MAX_COUNT, resume=Resume((), choice), shares=False)
        async with self.opened(prompt, replace(request.params, seed=request.seed), options, lambda _: None) as opened:
            return (await opened.output()).outputs[0]

    async def _admitted(
        self, prompt: Prompt, params: SamplingParams | None, options: RequestOptions
    ) -> tuple[AddRequest, bytes]:
        """The checked request and its encoded message. The request holds a place in the queue from the start."""
        self._engine.attach()
        (own,) = self._maker.params_for(1, params)
        salt, resume = options.salt, options.resume
        if salt is not None and not isinstance(salt, str):
            raise RequestError(f"salt={shown(salt)}: expected a text, or None", param="salt")
        number = str(next(self._numbers))

        def make() -> tuple[AddRequest, bytes]:
            made = self._maker.request(prompt, own, options.priority)
            if made.params.seed is None and resume is not None and made.params.temperature > 0:
                raise RequestError("resume without a seed: expected the one that the answer was drawn with; give it")
            seed = secrets.randbelow(MAX_SEED + 1) if made.params.seed is None else made.seed
            request = replace(made, request_id=number, seed=seed, salt=salt, shares=options.shares, resume=resume)
            self._admission.check_limits(request)
            wanted = replace(request, prompt=None)  # the text stays here: ids are what is computed
            return AddRequest(request, options.tells_progress), encoded(AddRequest(wanted, options.tells_progress))

        with self._engine.place(options.name, (own or self._maker.defaults.params).n):
            add, message = await self.in_thread(make)
            if (form := add.request.params.structured_outputs) is not None:
                (await self._admission.grammars.compiled(form)).begin(())
            if resume is not None and resume.token_ids and options.receipt is not False:
                await self._require_own(add.request, resume)
            return add, message

    async def _require_own(self, request: Request, resume: Resume) -> None:
        """RequestError unless the model draws the answer's beginning by itself: a receipt says that it drew all."""
        alone = replace(request, resume=None, prompt=None)
        answered = await self._answered(ReplayCommand(alone, resume.choice, resume.token_ids))
        assert isinstance(answered, Answered)
        if answered.difference is not None:
            raise RequestError(
                f"resume: {answered.difference}; a receipt is of an answer that the model drew whole: give the tokens "
                "that it had, or ask for no receipt",
                param="resume",
            )

    def _given_text(self, request: Request) -> str:
        """The text of the beginning of an answer that is resumed."""
        prompt, max_tokens = request.prompt_token_ids, self._admission.check_limits(request)
        sequence = Sequence(0, list(prompt), len(prompt), len(prompt) + max_tokens)
        return Choice(request, 0, sequence, self._tokenizer, max_tokens, self._admission.grammar(request)).given_text

    def _end_waiting(self, opened: OpenRequest) -> None:
        if not opened.has_begun and not opened.has_ended:
            opened.fail(
                OverloadedError(
                    f"the request has waited for {self.queue_timeout_s:g} s (queue_timeout_s); try again later"
                )
            )
            self._engine.forget(opened)

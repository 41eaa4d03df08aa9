"""RequestOpener: the way of AsyncLLM's requests to the engine's process: checked, sent, and open until they end."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, TypeVar

from msgspec.structs import replace

from karat.engine.receipts.comparing import Compare
from karat.engine.receipts.resuming import alone, given_text, require_own
from karat.engine.receipts.verifying import Answered, ReplayCommand, Returned, generated_anew, receipts_for, sent
from karat.engine.remote.client import AsyncEngine
from karat.engine.remote.messages import ComparisonEnded, Replayed
from karat.engine.remote.open_request import OpenRequest
from karat.engine.remote.process import encoded
from karat.engine.remote.source import Fingerprints
from karat.engine.requests.admission import Admission
from karat.engine.requests.request_updates import Gathered, RequestUpdate
from karat.errors import OverloadedError, unpacked
from karat.outputs import RequestOutput
from karat.receipts.comparison import Parting
from karat.receipts.fingerprint import Fingerprint
from karat.request import ReceiptWish, Resume
from karat.request_record import Request
from karat.text import Tokenizer

Result = TypeVar("Result")

_NUM_THREADS = 2  # for templates and tokenizers


class RequestOpener:
    """Checks requests in threads, has each wait for its place and for the form of its answer, and opens it.

    A request ends with OverloadedError if it has waited for queue_timeout_s seconds (None: no limit).
    """

    def __init__(
        self,
        engine: AsyncEngine,
        admission: Admission,
        tokenizer: Tokenizer,
        *,
        fingerprinting: Fingerprints,
        queue_timeout_s: float | None,
    ) -> None:
        self.queue_timeout_s = queue_timeout_s
        self._engine = engine
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
        name: str,
        num_answers: int,
        receipt: ReceiptWish,
        make: Callable[[], Request],
        see: Callable[[RequestUpdate], None] | None = None,
    ) -> AsyncGenerator[OpenRequest, None]:
        """A request of the engine, which ends with the context. `make`, called in a thread, gives the request of that
        name, with so many answers and this wish for receipts.
        """
        found = None if receipt is False else await self.fingerprint()
        self._engine.attach()
        with self._engine.place(name, num_answers):
            request, number, message = await self._admitted(make)

        def with_receipts(gathered: Gathered) -> RequestOutput:
            assert found is not None
            text = given_text(request, self._tokenizer, self._admission)
            return gathered.output(receipts_for(request, found, self._admission.config.max_model_len, text))

        complete = None if found is None else partial(self.in_thread, with_receipts)
        opened = self._engine.add(request, number, message, see, complete)
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

    async def replay(self, asked: ReplayCommand | Compare) -> Replayed | ComparisonEnded:
        """What the engine found, or why it refused."""
        command = replace(asked, request=replace(asked.request, request_id=str(next(self._numbers))))
        return await self._engine.replay(command, await self.in_thread(encoded, command))

    async def _answered(self, asked: ReplayCommand | Compare) -> Answered | Parting | None:
        if isinstance(asked, ReplayCommand) and asked.token_ids is None:
            anew = generated_anew(asked)
            async with self.opened(anew.request_id, 1, False, lambda: anew, lambda _: None) as opened:
                return Answered(None, (await opened.output()).outputs[0])
        done = await self.replay(asked)
        if done.refused is not None:
            raise unpacked(*done.refused)
        if isinstance(done, ComparisonEnded):
            return done.parting
        assert done.output is not None
        return Answered(done.difference, done.output)

    async def _admitted(self, make: Callable[[], Request]) -> tuple[Request, str, bytes]:
        """The checked request, its number and its message."""
        number = str(next(self._numbers))

        def checked() -> tuple[Request, bytes]:
            request = make()
            self._admission.check_limits(request)
            return request, encoded(replace(request, request_id=number, prompt=None))  # ids are what is computed

        request, message = await self.in_thread(checked)
        if (form := request.params.structured_outputs) is not None:
            (await self._admission.grammars.compiled(form)).begin(())
        resume = request.resume
        if resume is not None and resume.token_ids and request.receipt is not False:
            await self._require_own(request, resume)
        return request, number, message

    async def _require_own(self, request: Request, resume: Resume) -> None:
        answered = await self._answered(ReplayCommand(alone(request), resume.choice, resume.token_ids))
        assert isinstance(answered, Answered)
        require_own(answered.difference)

    def _end_waiting(self, opened: OpenRequest) -> None:
        if not opened.has_begun and not opened.has_ended:
            opened.fail(
                OverloadedError(
                    f"the request has waited for {self.queue_timeout_s:g} s (queue_timeout_s); try again later"
                )
            )
            self._engine.forget(opened)

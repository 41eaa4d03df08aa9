"""OpenRequest: an open request of AsyncLLM: its updates, shown as they come or kept until read, and its output."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from karat.engine.requests.request_updates import Gathered, PromptProgress, RequestUpdate
from karat.errors import SlowReaderError
from karat.outputs import RequestOutput
from karat.request_record import Request


class OpenRequest:
    """The event loop brings updates. `see` gets each update at once; without it, one reader awaits `next`.

    `complete` makes the output, with what the engine does not know. It runs where the caller waits, in `next` or
    `output`, which raise its exceptions: the last update is seen after it.

    At most `most_kept` tokens wait to be read. `has_begun`: the engine computes it. `has_ended`: no more updates come.
    """

    def __init__(
        self,
        request: Request,
        number: str,
        *,
        most_kept: int,
        see: Callable[[RequestUpdate], None] | None = None,
        complete: Callable[[Gathered], Awaitable[RequestOutput]] | None = None,
    ) -> None:
        self.request = request
        self.number = number  # by which the engine knows it
        self.has_begun = False
        self.has_ended = False
        self._most_kept = most_kept
        self._kept: deque[RequestUpdate] = deque()
        self._num_kept_tokens = 0
        self._gathered = Gathered(request)
        self._see = see
        self._complete = complete
        self._last: RequestUpdate | None = None  # that `see` is to have, or had
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        if request.tells_progress:
            self._keep(RequestUpdate(request.request_id, (), progress=PromptProgress(len(request.prompt_token_ids))))

    def bring(self, update: RequestUpdate) -> None:
        """Keep an update of the engine. If too many tokens wait, SlowReaderError replaces them."""
        if self.has_ended:
            return
        self.has_begun |= update.progress is not None
        self._gathered.add(update)
        self.has_ended = update.ended
        progress = update.progress if self.request.tells_progress else None
        if update.chunks or progress:
            output = self._gathered.output() if update.ended and self._complete is None else None
            self._keep(replace(update, request_id=self.request.request_id, output=output, progress=progress))
        if not self.has_ended and self._num_kept_tokens > self._most_kept:
            self.fail(
                SlowReaderError(
                    f"{self._num_kept_tokens} tokens of request {self.request.request_id} wait to be read, of at most "
                    f"{self._most_kept}; it was ended; read the answer as it comes, or ask for fewer tokens"
                )
            )

    def fail(self, error: Exception) -> None:
        """End with this error at once. News that wait are dropped."""
        self.has_ended = True
        self._kept.clear()
        self._error = error
        self._wake()

    async def next(self) -> RequestUpdate:
        """The next update, in order; the last has the output. Raises the error that ended the request."""
        while not self._kept:
            await self._stirred()
        update = self._kept.popleft()
        self._num_kept_tokens -= sum(len(chunk.token_ids) for chunk in update.chunks)
        return await self._completed(update)

    async def output(self) -> RequestOutput:
        """The output, once `see` has had the last update. Raises the error that ended the request, or that of `see`."""
        while self._last is None:
            await self._stirred()
        last = self._last
        if self._complete is not None and self._see is not None:
            last = await self._completed(last)
            self._see(last)
        assert last.output is not None
        return last.output

    async def _completed(self, update: RequestUpdate) -> RequestUpdate:
        if not update.ended or self._complete is None:
            return update
        return replace(update, output=await self._complete(self._gathered))

    def _keep(self, update: RequestUpdate) -> None:
        if self._see is None:
            self._kept.append(update)
            self._num_kept_tokens += sum(len(chunk.token_ids) for chunk in update.chunks)
            self._wake()
            return
        if not update.ended or self._complete is None:
            try:
                self._see(update)
            except Exception as fault:  # noqa: BLE001 - raised by `output`, where the caller waits
                self.fail(fault)
                return
        if update.ended:
            self._last = update
            self._wake()

    async def _stirred(self) -> None:
        """Returns after `_wake`. Raises the error that ended the request."""
        if self._error is not None:
            raise self._error
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

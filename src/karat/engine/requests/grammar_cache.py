"""GrammarCache: forms of answers, compiled by threads beside whoever asks, within a limit of time."""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING

from karat.errors import OverloadedError, RequestError
from karat.request import StructuredOutputs

if TYPE_CHECKING:
    from karat.text.grammar import Grammar
    from karat.text.tokenizer import Tokenizer

COMPILE_S = 5.0  # for one form: the counts of work in karat.text.grammar hold those that were tried to 0.1 s
COMPILE_THREADS = 2
MAX_KEPT = 64  # compiled forms

Compile = Callable[[StructuredOutputs], "Grammar"]


class GrammarCache:
    """Compiles forms of answers in COMPILE_THREADS threads, and keeps the last MAX_KEPT. Threads may share it.

    A form that is asked for while it is compiled is not compiled twice. No thread lives without work. One that is at
    work when its form has passed the limit goes on, within the counts of work of the compiler, and what it makes is
    kept: only the end of the interpreter waits for it, as it must not end beside native code.
    """

    def __init__(self, open_compiler: Callable[[], Compile], limit_s: float = COMPILE_S) -> None:
        """open_compiler: called once, by the thread of the first form. RequestError of what it gives refuses a form."""
        self._open_compiler = open_compiler
        self._limit_s = limit_s
        self._compiler: Compile | None = None
        self._opening = Lock()
        self._lock = Lock()  # of all below; held for moments
        self._kept: OrderedDict[StructuredOutputs, Grammar] = OrderedDict()
        self._jobs: dict[StructuredOutputs, _Job] = {}  # those asked for and not compiled, in order
        self._num_threads = 0

    @classmethod
    def of(cls, tokenizer: "Tokenizer", vocab_size: int) -> "GrammarCache":
        def open_compiler() -> Compile:
            from karat.text.grammar import GrammarCompiler  # loads a library that few requests need

            return GrammarCompiler(tokenizer, vocab_size).compile

        return cls(open_compiler)

    def ask(self, form: StructuredOutputs) -> "PendingGrammar":
        """Have a form compiled, unless it is already. It waits for nothing. `leave` what it gives."""
        with self._lock:
            if (grammar := self._kept.get(form)) is not None:
                self._kept.move_to_end(form)
                job = _Job(form)
                job.future.set_result(grammar)
                return PendingGrammar(self, job, self._limit_s)
            job = self._jobs.setdefault(form, _Job(form))
            job.num_asking += 1
            if self._num_threads < COMPILE_THREADS and not job.is_taken:
                thread = Thread(target=self._work, name="karat-forms")
                self._num_threads += 1
                try:
                    thread.start()
                except RuntimeError as error:
                    self._num_threads -= 1
                    if not self._num_threads:
                        del self._jobs[form]
                        raise OverloadedError(f"no thread for a form of answers ({error}); try again later") from error
            return PendingGrammar(self, job, self._limit_s)

    def compile(self, form: StructuredOutputs) -> "Grammar":
        """The compiled form. Waits for it, as long as the limit says; raises as `PendingGrammar.grammar`."""
        asked = self.ask(form)
        try:
            return asked.wait()
        finally:
            asked.leave()

    async def compiled(self, form: StructuredOutputs) -> "Grammar":
        """As `compile`, without blocking the event loop."""
        asked = self.ask(form)
        try:
            return await asked.wait_async()
        finally:
            asked.leave()

    def leave(self, job: "_Job") -> None:
        """One less asks for it: a form that nobody asks for any more is not begun."""
        with self._lock:
            job.num_asking -= 1
            if job.num_asking == 0 and not job.is_taken and self._jobs.get(job.form) is job:
                del self._jobs[job.form]

    def _work(self) -> None:
        while (job := self._next()) is not None:
            grammar: Grammar | None = None
            fault: BaseException | None = None
            try:
                grammar = self._compile(job)
            except BaseException as error:  # noqa: BLE001 - raised by whoever asks for the grammar
                fault = error
            with self._lock:
                del self._jobs[job.form]
                if grammar is not None:
                    self._kept[job.form] = grammar
                    if len(self._kept) > MAX_KEPT:
                        self._kept.popitem(last=False)
            if fault is not None:
                job.future.set_exception(fault)
            else:
                assert grammar is not None
                job.future.set_result(grammar)

    def _next(self) -> "_Job | None":
        """The job that came first of those that no thread has taken; None ends the thread."""
        with self._lock:
            job = next((job for job in self._jobs.values() if not job.is_taken), None)
            if job is None:
                self._num_threads -= 1
            else:
                job.is_taken = True
            return job

    def _compile(self, job: "_Job") -> "Grammar":
        with self._opening:
            if self._compiler is None:
                self._compiler = self._open_compiler()
        job.begun = monotonic()
        return self._compiler(job.form)


class _Job:
    """A form to compile: whether a thread has taken it, when compiling it began, and how many wait for it."""

    def __init__(self, form: StructuredOutputs) -> None:
        self.form = form
        self.future: Future[Grammar] = Future()
        self.is_taken = False
        self.begun: float | None = None
        self.num_asking = 0


class PendingGrammar:
    """A form that one caller of `GrammarCache.ask` waits for. The caller calls `leave` in the end, once."""

    def __init__(self, grammars: GrammarCache, job: _Job, limit_s: float) -> None:
        self._grammars, self._job, self._limit_s = grammars, job, limit_s
        self._since = monotonic()

    @property
    def grammar(self) -> "Grammar | None":
        """The compiled form; None while it is compiled.

        RequestError for one that is refused, or is compiled for longer than the limit; OverloadedError where others
        were compiled as long, and it has not begun.
        """
        if self._job.future.done():
            return self._job.future.result()
        if self._left_s() > 0:
            return None
        if self._job.begun is None:
            raise OverloadedError(
                f"forms of answers of other requests have been compiled for {self._limit_s:g} s; try again later"
            )
        form = self._job.form
        name = next(name for name in StructuredOutputs.__dataclass_fields__ if getattr(form, name) is not None)
        raise RequestError(
            f"structured_outputs: {name} was not compiled within {self._limit_s:g} s; expected a simpler form; "
            "take out what repeats or nests most",
            param="structured_outputs",
        )

    def wait(self) -> "Grammar":
        """`grammar`, once it is known."""
        while (grammar := self.grammar) is None:
            with suppress(TimeoutError):
                self._job.future.exception(max(0.0, self._left_s()))
        return grammar

    async def wait_async(self) -> "Grammar":
        """`grammar`, once it is known, without blocking the event loop."""
        import asyncio  # its caller has it; others who use forms do without

        loop, is_known = asyncio.get_running_loop(), asyncio.Event()

        def tell(_: object) -> None:
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(is_known.set)

        self._job.future.add_done_callback(tell)
        while (grammar := self.grammar) is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(is_known.wait(), max(0.0, self._left_s()))
        return grammar

    def leave(self) -> None:
        """This caller waits no more."""
        self._grammars.leave(self._job)

    def _left_s(self) -> float:
        """Of the limit, which counts from when compiling began, and before that from when the form was asked for."""
        since = self._since if self._job.begun is None else self._job.begun
        return since + self._limit_s - monotonic()

"""Answering: the routes that generate, from the request's body to the answer, whatever the protocol."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from karat.engine.async_llm import AsyncLLM, all_of
from karat.engine.requests.request_updates import RequestUpdate
from karat.errors import KaratError, RequestError
from karat.outputs import CompletionOutput, RequestOutput, StreamChunk
from karat.request_record import Request as EngineRequest
from karat.server.answers.preparing import Prepared, prepare, prepare_texts
from karat.server.answers.subject import Heading, Subject
from karat.server.asking.asked import AnswerForm, ChatRequest, TextRequest
from karat.server.asking.terms import RECEIPT_HEADER, seeded
from karat.server.errors import ApiError, failure_of, of_karat
from karat.server.keeper import Keeper
from karat.server.metrics import Metrics
from karat.server.protocol import Counting, EventWriter, Protocol
from karat.server.responses import Events, JsonBytes, read_with, until_left
from karat.server.settings import ServerSettings

Endpoint = Callable[[Request], Awaitable[ASGIApp]]


class Answering:
    """Endpoints of starlette."""

    def __init__(self, keeper: Keeper, settings: ServerSettings, metrics: Metrics) -> None:
        self._keeper = keeper
        self._settings = settings
        self._metrics = metrics

    def answers(self, protocol: Protocol) -> Endpoint:
        """The route that answers by a protocol, whole or as events."""

        async def endpoint(request: Request) -> ASGIApp:
            asked = await read_with(request, self._settings.limits, protocol.asked)
            llm = await self._keeper.loaded(request)
            subject = await until_left(request, self._subject(request, protocol.id_prefix, asked, llm))
            headers = {"karat-seed": str(subject.seed), **_headers(subject.without_effect)}
            if asked.form.stream:
                return self._events(subject, llm, protocol.events(subject), headers)
            outputs = await until_left(request, self._follow(subject, llm, subject.tally.see))
            return _json(protocol.whole(subject, *outputs), headers)

        return endpoint

    def counts(self, counting: Counting) -> Endpoint:
        """The route that counts the tokens of a prompt, which nobody answers."""

        async def endpoint(request: Request) -> ASGIApp:
            asked = await read_with(request, self._settings.limits, counting.asked)
            llm = await self._keeper.loaded(request)
            self._model_name(asked.form.model)
            with _naming(asked.form):
                made = await until_left(request, prepare(asked, llm))
            return _json(counting.answer(made.prompt_lens[0]), _headers(made.without_effect))

        return endpoint

    async def _subject(
        self, request: Request, id_prefix: str, asked: ChatRequest | TextRequest, llm: AsyncLLM
    ) -> Subject:
        answer_id, model = f"{id_prefix}-{secrets.token_hex(12)}", self._model_name(asked.form.model)
        with _naming(asked.form):
            made = await (prepare(asked, llm) if isinstance(asked, ChatRequest) else prepare_texts(asked, llm))
            requests = await self._requests(request, answer_id, asked, made, llm)
            await _until_ready(requests[0], llm, asked)
        is_own = asked.given.get("structured_outputs") == made.given.get("structured_outputs")
        return Subject(
            Heading(answer_id, int(time.time()), model, llm.system_fingerprint),
            asked.form,
            requests,
            llm.tokenizer,
            self._metrics.tally(made.prompt_lens),
            made.prompt_texts,
            self._settings.signer,
            made.answer_format,
            made.without_effect,
            asked.form.structure_field if is_own else "tools",
            asked.echo,
        )

    async def _requests(
        self, request: Request, answer_id: str, asked: ChatRequest | TextRequest, made: Prepared, llm: AsyncLLM
    ) -> tuple[EngineRequest, ...]:
        """What the engine is to compute, of one seed."""
        terms = asked.terms.of_sender(request.headers.get(RECEIPT_HEADER), request.scope.get("karat.tenant"))
        given, requests = seeded(made.given, terms), []
        for number, (prompt, num_tokens) in enumerate(zip(made.prompts, made.prompt_lens, strict=True)):
            usual = self._settings.default_max_tokens
            params = llm.admission.params_after(num_tokens, llm.default_params, given, usual=usual)
            each = await llm.request(
                prompt,
                params,
                request_id=f"{answer_id}-{number}",
                priority=terms.priority,
                salt=terms.salt,
                prompt_progress=asked.form.progress and asked.form.stream,
                receipt=terms.receipt,
                resume=terms.resume,
                is_watched=self._settings.is_watched,
            )
            llm.admission.check_lengths(params, num_tokens, each.end_token_ids)  # refused before a stream begins
            requests.append(each)
        return tuple(requests)

    async def _follow(
        self, subject: Subject, llm: AsyncLLM, see: Callable[[int, RequestUpdate], None]
    ) -> list[RequestOutput]:
        how = "gone"

        def seen(number: int, update: RequestUpdate) -> None:
            # A choice may fail after its last token: only its output says that its receipt could not be made.
            _require_no_error(update.chunks if update.output is None else update.output.outputs, subject)
            see(number, update)

        try:
            with _naming(subject.form):
                outputs = await _follow_all(llm, subject.requests, seen)
            how = "ok"
            return outputs
        except Exception:
            how = "error"
            raise
        finally:
            self._metrics.ended(subject.tally, how)

    def _events(self, subject: Subject, llm: AsyncLLM, events: EventWriter, headers: Mapping[str, str]) -> Events:
        async def make(write: Callable[[bytes], None]) -> bytes:
            def see(number: int, update: RequestUpdate) -> None:
                subject.tally.see(number, update)
                if batch := events.of(number, update):
                    write(batch)

            await self._follow(subject, llm, see)
            return events.end()

        return Events(
            make,
            headers,
            ping_s=self._settings.ping_s,
            write_s=self._settings.limits.write_s,
            ping=events.ping,
            error_event=events.error_event,
        )

    def _model_name(self, asked: str | None) -> str:
        """The model's name for the answer. 404 for a model that is not served."""
        names = self._settings.model_names
        if not asked:
            return names[0]
        if asked not in names and (asked := asked.removesuffix(".gguf")) not in names:
            text = f"there is no model {asked!r} here; served is {', '.join(names)} (--served-model-name)"
            raise ApiError(404, text, param="model", code="model_not_found")
        return asked


def _headers(without_effect: Sequence[str]) -> dict[str, str]:
    return {"karat-without-effect": ", ".join(without_effect)} if without_effect else {}


def _json(answer: msgspec.Struct, headers: Mapping[str, str]) -> JsonBytes:
    return JsonBytes(msgspec.json.encode(answer), headers=headers)


def _require_no_error(choices: Sequence[CompletionOutput | StreamChunk], subject: Subject) -> None:
    """ApiError for a choice that ended in an error, which ends the whole request."""
    for choice in choices:
        if choice.finish_reason == "error":
            raise failure_of(choice, subject.structure_field)


@contextmanager
def _naming(form: AnswerForm) -> Iterator[None]:
    """Errors of Karat name the fields that were sent."""
    try:
        yield
    except KaratError as error:
        raise of_karat(error, form.names) from error


async def _until_ready(request: EngineRequest, llm: AsyncLLM, asked: ChatRequest | TextRequest) -> None:
    """Wait for what an answer needs that may take long, before its stream begins: a refusal then has its status.

    That is the fingerprint, if receipts are wished for, and the compiled form, which is that of all prompts. Other
    answers never wait. 400 for a form that cannot be compiled, with the name of the field that gives it: its own, or
    tools.
    """
    if request.receipt is not False:
        await llm.fingerprint()
    given, form = asked.given.get("structured_outputs"), request.params.structured_outputs
    is_own = form is not None and replace(form, begun=None) == given
    places = asked.tools.places() if isinstance(asked, ChatRequest) else {}
    for name, each in ((asked.form.structure_field, form if is_own else given), ("tools", None if is_own else form)):
        if each is not None:
            try:
                await llm.compile_form(each, request.end_token_ids)
            except RequestError as error:
                raise of_karat(error, {**places, "structured_outputs": name}) from error


async def _follow_all(
    llm: AsyncLLM, requests: Sequence[EngineRequest], see: Callable[[int, RequestUpdate], None]
) -> list[RequestOutput]:
    """The outputs of all requests. `see` gets each one's number and update, as in `AsyncLLM.follow`.

    The first error, or a cancellation, ends all.
    """
    most_answers = max(request.params.n for request in requests)
    places = asyncio.Semaphore(max(1, llm.max_num_seqs // most_answers))  # so that one request does not fill the queue

    async def one(number: int) -> RequestOutput:
        async with places:
            return await llm.follow(requests[number], lambda update: see(number, update))

    return [await one(0)] if len(requests) == 1 else await all_of(map(one, range(len(requests))))

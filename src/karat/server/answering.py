"""Answering: the routes that generate, from the request's body to the answer."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from karat.engine.async_llm import AsyncLLM
from karat.engine.updates import RequestUpdate
from karat.errors import KaratError, RequestError
from karat.outputs import CompletionOutput, RequestOutput, StreamChunk
from karat.server.answers.preparing import prepare
from karat.server.answers.subject import Heading, Subject
from karat.server.anthropic.answers import message
from karat.server.anthropic.events import PING, MessageEvents, error_event
from karat.server.anthropic.requests import read_message
from karat.server.anthropic.schema import MessageTokens
from karat.server.asking.asked import AnswerForm, Ask, ChatRequest, TextRequest, Work
from karat.server.asking.karat_field import RECEIPT_HEADER, seeded
from karat.server.bodies import Body, read_body
from karat.server.errors import ApiError, failure_of, of_karat
from karat.server.fields import CHAT, COUNT, INPUT_TOKENS, MESSAGES, RESPONSES, TEXT, fields_of
from karat.server.keeper import Keeper
from karat.server.metrics import Metrics
from karat.server.news import follow_all
from karat.server.openai.answers import chat_completion, text_completion
from karat.server.openai.events import ChatEvents, TextEvents
from karat.server.openai.requests import read_chat, read_text
from karat.server.openai.response_answers import response
from karat.server.openai.response_events import ResponseEvents
from karat.server.openai.response_requests import read_response
from karat.server.openai.response_schema import InputTokens
from karat.server.responses import Events, JsonBytes, read_with, until_left
from karat.server.settings import Settings

_Written = ChatEvents | TextEvents | MessageEvents | ResponseEvents
_FIELDS = {route: fields_of(route) for route in (CHAT, TEXT)}


class Answering:
    """Endpoints of starlette."""

    def __init__(self, keeper: Keeper, settings: Settings, metrics: Metrics) -> None:
        self._keeper = keeper
        self._settings = settings
        self._metrics = metrics

    async def chat(self, request: Request) -> ASGIApp:
        body, asked = await read_with(request, self._settings.limits, _read_chat)
        llm = await self._keeper.loaded(request)
        subject = await until_left(request, self._chat_subject(request, asked, llm, "chatcmpl"))
        headers = _headers(body.without_effect, subject)
        if asked.form.stream:
            return self._events(subject, llm, ChatEvents(subject), headers)
        (output,) = await until_left(request, self._outputs(subject, llm))
        return _json(chat_completion(subject, output), headers)

    async def text(self, request: Request) -> ASGIApp:
        body, asked = await read_with(request, self._settings.limits, _read_text)
        llm = await self._keeper.loaded(request)
        subject = await until_left(request, self._text_subject(request, asked, llm))
        headers = _headers(body.without_effect, subject)
        if asked.form.stream:
            return self._events(subject, llm, TextEvents(subject), headers)
        outputs = await until_left(request, self._outputs(subject, llm))
        return _json(text_completion(subject, outputs), headers)

    async def message(self, request: Request) -> ASGIApp:
        """Anthropic's: one answer to a conversation."""
        asked = await read_with(request, self._settings.limits, lambda content: read_message(content, MESSAGES))
        llm = await self._keeper.loaded(request)
        subject = await until_left(request, self._chat_subject(request, asked.chat, llm, "msg"))
        headers = _headers(asked.without_effect, subject)
        if asked.chat.form.stream:
            return self._events(subject, llm, MessageEvents(subject), headers, ping=PING, error_event=error_event)
        (output,) = await until_left(request, self._outputs(subject, llm))
        return _json(message(subject, output), headers)

    async def count(self, request: Request) -> ASGIApp:
        """Anthropic's: the number of tokens of the prompt that `message` would make."""
        asked = await read_with(request, self._settings.limits, lambda content: read_message(content, COUNT))
        llm = await self._keeper.loaded(request)
        self.model_name(asked.chat.form.model)
        with _naming(asked.chat.form):
            made = await until_left(request, prepare(asked.chat, llm))
        names = (*asked.without_effect, *made.without_effect)
        return _json(MessageTokens(len(made.prompt.token_ids)), _headers(names))

    async def response(self, request: Request) -> ASGIApp:
        """OpenAI's newer form of `chat`, of which nothing is kept."""
        asked = await read_with(request, self._settings.limits, lambda content: read_response(content, RESPONSES))
        llm = await self._keeper.loaded(request)
        subject = await until_left(request, self._chat_subject(request, asked.chat, llm, "resp"))
        headers = _headers(asked.without_effect, subject)
        if asked.chat.form.stream:
            events = ResponseEvents(subject, asked.echo)
            return self._events(subject, llm, events, headers, error_event=events.error_event)
        (output,) = await until_left(request, self._outputs(subject, llm))
        return _json(response(subject, asked.echo, output), headers)

    async def input_tokens(self, request: Request) -> ASGIApp:
        """The number of tokens of the prompt that `response` would make."""
        asked = await read_with(request, self._settings.limits, lambda content: read_response(content, INPUT_TOKENS))
        llm = await self._keeper.loaded(request)
        self.model_name(asked.chat.form.model)
        with _naming(asked.chat.form):
            made = await until_left(request, prepare(asked.chat, llm))
        names = (*asked.without_effect, *made.without_effect)
        return _json(InputTokens(len(made.prompt.token_ids)), _headers(names))

    async def _chat_subject(self, request: Request, asked: ChatRequest, llm: AsyncLLM, prefix: str) -> Subject:
        model = self.model_name(asked.form.model)
        with _naming(asked.form):
            made = await prepare(asked, llm)
            work = self._work(request, asked, made.given, llm, [made.prompt])
            await _until_ready(work, llm, asked)
        told = {"talk": made.talk, "without_effect": made.without_effect}
        return self._subject(prefix, model, asked, work, llm, **told)

    async def _text_subject(self, request: Request, asked: TextRequest, llm: AsyncLLM) -> Subject:
        """The prompts of a completion. Control tokens that a text spells become those tokens."""
        model, prompts, echoed = self.model_name(asked.form.model), [], []
        texts = [prompt if isinstance(prompt, str) else None for prompt in asked.prompts]
        with _naming(asked.form):
            for prompt in asked.prompts:
                if isinstance(prompt, str):
                    prompts.append(tuple(await llm.tokenize(prompt, add_special_tokens=asked.add_special_tokens)))
                else:
                    prompts.append(prompt)
                if asked.form.echo:
                    echoed.append(prompt if isinstance(prompt, str) else await llm.detokenize(prompt))
            work = self._work(request, asked, asked.given, llm, prompts, texts)
            await _until_ready(work, llm, asked)
        return self._subject("cmpl", model, asked, work, llm, echoed=echoed)

    def _work(
        self,
        request: Request,
        asked: ChatRequest | TextRequest,
        given: Mapping[str, Any],
        llm: AsyncLLM,
        prompts: list[Any],
        texts: Sequence[str | None] = (None,),
    ) -> Work:
        usual = self._settings.default_max_tokens
        wishes = asked.wishes.with_header(request.headers.get(RECEIPT_HEADER))
        given = seeded(given, wishes)
        asks = []
        for prompt, text in zip(prompts, texts, strict=True):
            num_tokens = len(prompt) if isinstance(prompt, tuple) else len(prompt.token_ids)
            params = llm.admission.params_after(num_tokens, llm.default_params, given, usual=usual)
            end_ids = llm.end_token_ids if isinstance(prompt, tuple) else llm.chat_end_token_ids
            llm.admission.check_lengths(params, num_tokens, end_ids)  # refused before a stream begins
            asks.append(Ask(prompt, params, text))
        tenant = request.scope.get("karat.tenant")
        salt = asked.cache_salt if tenant is None else f"{tenant}:{asked.cache_salt or ''}"
        return Work(tuple(asks), given["seed"], asked.priority, salt, wishes.receipt, wishes.resume)

    def _subject(
        self, prefix: str, model: str, asked: ChatRequest | TextRequest, work: Work, llm: AsyncLLM, **facts: Any
    ) -> Subject:
        heading = Heading(f"{prefix}-{secrets.token_hex(12)}", int(time.time()), model, llm.system_fingerprint)
        tally = self._metrics.tally([len(ask.token_ids) for ask in work.asks])
        is_own = asked.given.get("structured_outputs") == work.asks[0].params.structured_outputs
        return Subject(
            heading,
            asked.form,
            work,
            llm.tokenizer,
            tally,
            signer=self._settings.signer,
            structure_field=asked.form.structure_field if is_own else "tools",
            **facts,
        )

    async def _outputs(self, subject: Subject, llm: AsyncLLM) -> list[RequestOutput]:
        return await self._follow(subject, llm, subject.tally.see, progress=False)

    async def _follow(
        self, subject: Subject, llm: AsyncLLM, see: Callable[[int, RequestUpdate], None], *, progress: bool
    ) -> list[RequestOutput]:
        how = "gone"

        def seen(number: int, update: RequestUpdate) -> None:
            # A choice may fail after its last token: only its output says that its receipt could not be made.
            _require_no_error(update.chunks if update.output is None else update.output.outputs, subject)
            see(number, update)

        try:
            with _naming(subject.form):
                outputs = await follow_all(llm, subject.work, subject.heading.id, seen, progress=progress)
            how = "ok"
            return outputs
        except Exception:
            how = "error"
            raise
        finally:
            self._metrics.ended(subject.tally, how)

    def _events(
        self, subject: Subject, llm: AsyncLLM, events: _Written, headers: Mapping[str, str], **manner: Any
    ) -> Events:
        async def make(write: Callable[[bytes], None]) -> bytes:
            def see(number: int, update: RequestUpdate) -> None:
                subject.tally.see(number, update)
                if batch := events.of(number, update):
                    write(batch)

            await self._follow(subject, llm, see, progress=subject.form.progress)
            return events.end()

        limits = self._settings.limits
        return Events(make, headers, ping_s=self._settings.ping_s, write_s=limits.write_s, **manner)

    def model_name(self, asked: str | None) -> str:
        """The model's name for the answer. 404 for a model that is not served."""
        names = self._settings.model_names
        if asked is None:
            return names[0]
        if asked not in names:
            text = f"there is no model {asked!r} here; served is {', '.join(names)}"
            raise ApiError(404, text, param="model", code="model_not_found")
        return asked


def _read_chat(content: bytes) -> tuple[Body, ChatRequest]:
    body = read_body(content, _FIELDS[CHAT])
    return body, read_chat(body)


def _read_text(content: bytes) -> tuple[Body, TextRequest]:
    body = read_body(content, _FIELDS[TEXT])
    return body, read_text(body)


def _headers(without_effect: Sequence[str], subject: Subject | None = None) -> dict[str, str]:
    headers = {} if subject is None else {"karat-seed": str(subject.work.seed)}
    names = (*without_effect, *(subject.without_effect if subject is not None else ()))
    if names:
        headers["karat-without-effect"] = ", ".join(names)
    return headers


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


async def _until_ready(work: Work, llm: AsyncLLM, asked: ChatRequest | TextRequest) -> None:
    """Wait for what an answer needs that may take long, before its stream begins: a refusal then has its status.

    That is the fingerprint, if receipts are wished for, and the compiled form. Other answers never wait. 400 for a form
    that cannot be compiled, with the name of the field that gives it: its own, or tools.
    """
    if work.receipt is not False:
        await llm.fingerprint()
    given, form = asked.given.get("structured_outputs"), work.asks[0].params.structured_outputs  # that of all
    end_ids = llm.chat_end_token_ids if isinstance(asked, ChatRequest) else llm.end_token_ids
    for name, each in ((asked.form.structure_field, given), ("tools", None if form == given else form)):
        if each is not None:
            try:
                await llm.compile_form(each, end_ids)
            except RequestError as error:
                raise of_karat(error, {"structured_outputs": name}) from error

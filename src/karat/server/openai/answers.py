"""From outputs of the engine to OpenAI's whole answers."""

from collections.abc import Collection

from msgspec import UNSET, UnsetType

from karat.outputs import CompletionOutput, RequestOutput, StreamChunk
from karat.server import schema
from karat.server.answers.parts import PartsReader
from karat.server.answers.subject import Subject, explained, karat_of, reason_of
from karat.server.openai.custom_tools import text_of
from karat.server.openai.logprobs import of_prompt, writer_of
from karat.text.tools.events import ParsedAnswer


def chat_completion(subject: Subject, output: RequestOutput) -> schema.ChatCompletion:
    """The whole answer to a conversation. ApiError if a choice ended with an error."""
    (request,) = subject.requests
    heading, form, top = subject.heading, subject.form, request.params.logprobs
    choices = []
    for choice in output.outputs:
        logprobs = None
        if top is not None and choice.logprobs is not None:
            logprobs = writer_of(subject).chat(choice.token_ids, choice.logprobs, top)
        reader = subject.reader()
        parsed = reader.whole(choice)
        subject.tally.num_reasoning += reader.num_reasoning
        choices.append(
            schema.ChatChoice(
                choice.index,
                message_of(parsed, reader, subject.echo),
                logprobs,
                reason_of(choice, has_calls=reader.has_calls),
                choice.stop_reason,
                list(choice.token_ids) if form.token_ids else UNSET,
                beside(subject, choice, reader.resumed, reader),
            )
        )
    return schema.ChatCompletion(
        heading.id,
        heading.created,
        heading.model,
        choices,
        subject.tally.usage(),
        subject.tally.timings(),
        karat_of(subject, output),
        heading.fingerprint,
        prompt_logprobs=of_prompt(output.prompt_logprobs) if output.prompt_logprobs is not None else UNSET,
        prompt_token_ids=list(output.prompt_token_ids) if form.token_ids else UNSET,
    )


def message_of(parsed: ParsedAnswer, reader: PartsReader, customs: Collection[str]) -> schema.Message:
    """A message of OpenAI's, with ids of its calls. `customs` names the custom tools."""
    message = schema.Message("assistant", parsed.text if parsed.text or not parsed.calls else None)
    if parsed.reasoning:
        message.reasoning_content = message.reasoning = parsed.reasoning
    if parsed.calls:
        message.tool_calls = [
            schema.CustomCall(reader.call_id(index), schema.CalledCustom(call.name, text_of(call.arguments)))
            if call.name in customs
            else schema.FunctionToolCall(reader.call_id(index), schema.CalledFunction(call.name, call.arguments))
            for index, call in enumerate(parsed.calls)
        ]
    return message


def text_completion(subject: Subject, *outputs: RequestOutput) -> schema.TextCompletion:
    """The whole answer to texts. ApiError if a choice ended with an error."""
    heading, tally = subject.heading, subject.tally
    choices: list[schema.TextChoice] = []
    for number, output in enumerate(outputs):
        first = len(choices)
        choices += [_text_choice(subject, number, first + c.index, output, c) for c in output.outputs]
    if subject.form.no_answer:
        tally.num_tokens = 0
    return schema.TextCompletion(
        heading.id,
        heading.created,
        heading.model,
        choices,
        heading.fingerprint,
        usage=tally.usage(),
        timings=tally.timings(),
        karat=karat_of(subject, *outputs),
    )


def _text_choice(
    subject: Subject, number: int, index: int, output: RequestOutput, choice: CompletionOutput
) -> schema.TextChoice:
    form, params = subject.form, subject.requests[number].params
    reason = reason_of(choice)
    text, ids, found = choice.text, choice.token_ids, choice.logprobs
    if form.no_answer:
        text, ids, found, reason = "", (), () if found is not None else None, "length"
    logprobs = None
    if params.logprobs is not None and found is not None:
        if form.echo and output.prompt_logprobs is not None:
            every = (*output.prompt_logprobs, *found)
            logprobs = writer_of(subject).text((*output.prompt_token_ids, *ids), every, params.logprobs, 0)
        else:
            logprobs = writer_of(subject).text(ids, found, params.logprobs, 0)
    asked = form.prompt_logprobs and output.prompt_logprobs is not None
    return schema.TextChoice(
        index,
        (subject.prompt_texts[number] if form.echo else "") + text,
        logprobs,
        reason,
        None if form.no_answer else choice.stop_reason,
        of_prompt(output.prompt_logprobs or ()) if asked else UNSET,
        list(ids) if form.token_ids else UNSET,
        list(output.prompt_token_ids) if form.token_ids else UNSET,
        UNSET if form.no_answer else explained(choice),
    )


def beside(
    subject: Subject, choice: CompletionOutput | StreamChunk, resumed: ParsedAnswer | None, reader: PartsReader
) -> schema.BesideChat | UnsetType:
    """Karat's own field beside a message: how its tokens were drawn, and what an answer that is resumed began with."""
    if not choice.explanations and resumed is None:
        return UNSET
    begun = UNSET if resumed is None else message_of(resumed, reader, subject.echo)
    return schema.BesideChat(choice.explanations or UNSET, begun)

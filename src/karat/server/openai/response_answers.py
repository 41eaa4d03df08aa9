"""From outputs of the engine to answers of /v1/responses."""

import time
from itertools import count

from msgspec import UNSET

from karat.outputs import RequestOutput
from karat.server.answers.subject import Subject, karat_of, reason_of
from karat.server.openai.response_items import Items
from karat.server.openai.response_schema import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseUsage,
)
from karat.server.schema import FinishReason


def response(subject: Subject, output: RequestOutput) -> Response:
    """The whole answer. ApiError if it ended with an error."""
    (choice,) = output.outputs
    reader = subject.reader()
    items = Items(subject.heading.id, reader, count().__next__, subject.echo.meanings)
    for part in reader.parts(choice):
        items.add(part)
    subject.tally.num_reasoning = reader.num_reasoning
    made = ended(subject, items, reason_of(choice))
    made.karat = karat_of(subject, output)
    made.karat.explain = choice.explanations or UNSET
    return made


def begun(subject: Subject) -> Response:
    """The answer before its first token."""
    (request,) = subject.requests
    heading, echo = subject.heading, subject.echo
    return Response(
        id=heading.id,
        created_at=heading.created,
        model=heading.model,
        status="in_progress",
        output=[],
        instructions=echo.instructions,
        metadata=dict(echo.metadata),
        temperature=request.params.temperature,
        top_p=request.params.top_p,
        presence_penalty=request.params.presence_penalty,
        frequency_penalty=request.params.frequency_penalty,
        max_output_tokens=echo.max_output_tokens,
        text=echo.text,
        parallel_tool_calls=echo.parallel_tool_calls,
        tool_choice=echo.tool_choice,
        tools=list(echo.tools),
        karat=karat_of(subject),
    )


def ended(subject: Subject, items: Items, reason: FinishReason) -> Response:
    """The answer with its items, whole or cut at its length. The last item must be closed by now, or is closed here."""
    made, tally = begun(subject), subject.tally
    made.status = "incomplete" if reason == "length" else "completed"
    made.incomplete_details = IncompleteDetails() if reason == "length" else None
    made.completed_at = None if reason == "length" else int(time.time())
    items.end(made.status)
    made.output = items.items
    num_prompt = sum(tally.prompt_lens)
    made.usage = ResponseUsage(
        num_prompt,
        tally.num_tokens,
        num_prompt + tally.num_tokens,
        InputTokensDetails(sum(tally.num_cached)),
        OutputTokensDetails(tally.num_reasoning),
    )
    made.timings = tally.timings()
    return made

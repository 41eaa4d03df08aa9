"""From outputs of the engine to answers of /v1/responses."""

from msgspec import UNSET

from karat.request import RequestOutput
from karat.server.openai.answers import Subject, karat_of, reason_of
from karat.server.openai.response_requests import Echo
from karat.server.openai.response_schema import (
    IncompleteDetails,
    InputTokensDetails,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    Response,
    ResponseUsage,
    Status,
)
from karat.server.schema import FinishReason


def response(subject: Subject, echo: Echo, output: RequestOutput) -> Response:
    """The whole answer. ApiError if it ended with an error."""
    (choice,) = output.outputs
    made = ended(subject, echo, choice.text, reason_of(choice))
    made.karat = karat_of(subject, output)
    made.karat.explain = choice.explanations or UNSET
    return made


def begun(subject: Subject, echo: Echo) -> Response:
    """The answer before its first token."""
    (ask,) = subject.work.asks
    heading = subject.heading
    return Response(
        id=heading.id,
        created_at=heading.created,
        model=heading.model,
        status="in_progress",
        output=[],
        instructions=echo.instructions,
        metadata=dict(echo.metadata),
        temperature=ask.params.temperature,
        top_p=ask.params.top_p,
        max_output_tokens=echo.max_output_tokens,
        text=echo.text,
        karat=karat_of(subject),
    )


def ended(subject: Subject, echo: Echo, text: str, reason: FinishReason) -> Response:
    """The answer with its text, whole or cut at its length."""
    made, tally = begun(subject, echo), subject.tally
    made.status = "incomplete" if reason == "length" else "completed"
    made.incomplete_details = IncompleteDetails() if reason == "length" else None
    made.output = [item(subject, made.status, text)]
    num_prompt = sum(tally.prompt_lens)
    made.usage = ResponseUsage(
        num_prompt,
        tally.num_tokens,
        num_prompt + tally.num_tokens,
        InputTokensDetails(sum(tally.num_cached)),
        OutputTokensDetails(),
    )
    made.timings = tally.timings()
    return made


def item(subject: Subject, status: Status, text: str | None = None) -> OutputMessage:
    """The message of an answer, without content where there is no text yet."""
    content = [] if text is None else [OutputText(text)]
    return OutputMessage(item_id(subject), content, status)


def item_id(subject: Subject) -> str:
    return f"msg-{subject.heading.id.partition('-')[2]}"

"""Receipts of answers that are resumed: each is of the whole answer, so its beginning is drawn again first."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing

from msgspec.structs import replace

from karat.engine.choosing.choice import Choice
from karat.engine.requests.admission import Admission
from karat.engine.requests.request_updates import Gathered, RequestUpdate
from karat.engine.scheduling.sequence import Sequence
from karat.errors import RequestError
from karat.outputs import CompletionOutput, StreamChunk
from karat.receipts.verdict import Difference
from karat.request_record import Request
from karat.text import Tokenizer


def alone(request: Request) -> Request:
    """The request whose answer is drawn from its beginning."""
    return replace(request, resume=None, prompt=None)


def require_own(difference: Difference | None) -> None:
    """RequestError unless the model draws the answer's beginning by itself: a receipt says that it drew all."""
    if difference is not None:
        raise RequestError(
            f"resume: {difference}; a receipt is of an answer that the model drew whole: give the tokens that it had, "
            "or ask for no receipt",
            param="resume",
        )


def given_text(request: Request, tokenizer: Tokenizer, admission: Admission) -> str:
    """The text of the beginning of an answer that is resumed; empty for any other."""
    if request.resume is None:
        return ""
    prompt, max_tokens = request.prompt_token_ids, admission.check_limits(request)
    sequence = Sequence(0, list(prompt), len(prompt), len(prompt) + max_tokens)
    return Choice(request, 0, sequence, tokenizer, max_tokens, admission.grammar(request)).given_text


def with_receipt(
    chunks: Generator[StreamChunk, None, None],
    request: Request,
    completed: Callable[[CompletionOutput], CompletionOutput],
) -> Iterator[StreamChunk]:
    """The chunks of a request of one choice, the last one with the receipt that `completed` makes of all."""
    gathered = Gathered(request)
    with closing(chunks):
        for chunk in chunks:
            gathered.add(RequestUpdate(request.request_id, (chunk,)))
            if chunk.finish_reason is None:
                yield chunk
                continue
            (made,) = gathered.output(completed).outputs
            yield replace(
                chunk,
                receipt=made.receipt,
                finish_reason=made.finish_reason,
                stop_reason=made.stop_reason,
                error=made.error,
                error_type=made.error_type,
            )

"""Subject: the facts of an answer besides the outputs, and what every protocol writes of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from msgspec import UNSET, UnsetType

from karat.outputs import CompletionOutput, RequestOutput, StreamChunk
from karat.receipts.signature import Signer
from karat.request_record import Request
from karat.server import schema
from karat.server.answers.parts import PLAIN_TEXT, AnswerFormat, PartsReader
from karat.server.answers.tally import UpdateTally
from karat.server.asking.asked import AnswerForm
from karat.server.errors import ApiError, failure_of
from karat.server.schema import FinishReason
from karat.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Heading:
    """The fields that are the same in all events of an answer."""

    id: str
    created: int
    model: str
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """The facts of an answer besides the outputs. `prompt_texts`: those to come first. `signer`: of receipts.

    `answer_format` takes texts apart, and `without_effect` names what the model cannot heed or does not get.
    `structure_field` is the field that the form of the answer comes from. `echo` is as in ChatRequest.
    """

    heading: Heading
    form: AnswerForm
    requests: tuple[Request, ...]
    tokenizer: Tokenizer
    tally: UpdateTally
    prompt_texts: Sequence[str] = ()
    signer: Signer | None = None
    answer_format: AnswerFormat = PLAIN_TEXT
    without_effect: tuple[str, ...] = ()
    structure_field: str = "structured_outputs"
    echo: Any = None

    def reader(self) -> PartsReader:
        """Takes one choice apart."""
        return self.answer_format.reader(self.tokenizer, self.requests[0].resume)

    @property
    def seed(self) -> int:
        """The seed of all its requests."""
        return self.requests[0].seed


def karat_of(subject: Subject, *outputs: RequestOutput) -> schema.Karat:
    """Karat's own field of an answer with these outputs; of its beginning, without any."""
    receipts = [choice.receipt for output in outputs for choice in output.outputs if choice.receipt is not None]
    if subject.signer is not None:
        receipts = list(map(subject.signer.sign, receipts))
    made = schema.Karat(subject.seed, system_fingerprint=subject.heading.fingerprint)
    if receipts:
        made.receipt = receipts[0] if len(receipts) == 1 else receipts
    return made


def explained(choice: CompletionOutput | StreamChunk) -> schema.Explained | UnsetType:
    """How the tokens were drawn, if that was asked for and there are any."""
    return schema.Explained(choice.explanations) if choice.explanations else UNSET


def reason_of(choice: CompletionOutput | StreamChunk, *, has_calls: bool = False) -> FinishReason:
    """The finish reason of a choice, "tool_calls" where it stopped and has calls. ApiError for an error or an abort."""
    if choice.finish_reason == "error":
        raise failure_of(choice)
    if choice.finish_reason == "abort":
        raise ApiError(503, "the server ended this request before its end; send it again", code="aborted")
    if has_calls and choice.finish_reason == "stop":
        return "tool_calls"
    return cast(FinishReason, choice.finish_reason)

"""From outputs of the engine to Anthropic's whole answers."""

from msgspec import UNSET

from karat.request import CompletionOutput, RequestOutput, StreamChunk
from karat.server.anthropic.schema import AnthropicMessage, Ending, MessageUsage, TextBlock
from karat.server.openai.answers import Subject, karat_of, reason_of
from karat.server.tally import Tally


def message(subject: Subject, output: RequestOutput) -> AnthropicMessage:
    """The whole answer. ApiError if it ended with an error."""
    (choice,) = output.outputs
    ending, karat = ending_of(choice), karat_of(subject, output)
    karat.explain = choice.explanations or UNSET
    return AnthropicMessage(
        subject.heading.id,
        subject.heading.model,
        [TextBlock(choice.text)],
        ending.stop_reason,
        ending.stop_sequence,
        usage_of(subject.tally),
        karat,
        subject.tally.timings(),
    )


def ending_of(choice: CompletionOutput | StreamChunk) -> Ending:
    """Why the choice ended. An end by a token, the model's or one of stop_token_ids, is the end of the turn."""
    if reason_of(choice) == "length":
        return Ending("max_tokens", None)
    if isinstance(choice.stop_reason, str):
        return Ending("stop_sequence", choice.stop_reason)
    return Ending("end_turn", None)


def usage_of(tally: Tally) -> MessageUsage:
    """The tokens so far. Those of the prompt that were cached are counted apart, as the protocol has it."""
    num_cached = sum(tally.num_cached)
    return MessageUsage(sum(tally.prompt_lens) - num_cached, tally.num_tokens, num_cached)

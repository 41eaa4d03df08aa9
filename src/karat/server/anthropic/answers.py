"""From outputs of the engine to Anthropic's whole answers."""

from typing import Any

from msgspec import UNSET

from karat.outputs import CompletionOutput, RequestOutput, StreamChunk
from karat.server.answers.subject import Subject, karat_of, reason_of
from karat.server.answers.tally import UpdateTally
from karat.server.anthropic.blocks import Blocks
from karat.server.anthropic.schema import AnthropicMessage, DeltaUsage, Ending, MessageUsage, OutputDetails


def message(subject: Subject, output: RequestOutput) -> AnthropicMessage:
    """The whole answer. ApiError if it ended with an error."""
    (choice,) = output.outputs
    reader, karat = subject.reader(), karat_of(subject, output)
    karat.explain = choice.explanations or UNSET
    blocks = Blocks(reader)
    for part in reader.parts(choice):
        blocks.add(part)
    blocks.end()
    subject.tally.num_reasoning = reader.num_reasoning
    ending = ending_of(choice, has_calls=reader.has_calls)
    return AnthropicMessage(
        subject.heading.id,
        subject.heading.model,
        blocks.content,
        ending.stop_reason,
        ending.stop_sequence,
        usage_of(subject.tally),
        karat,
        subject.tally.timings(),
    )


def ending_of(choice: CompletionOutput | StreamChunk, *, has_calls: bool) -> Ending:
    """Why the choice ended. An end by a token, the model's or one of stop_token_ids, is the end of the turn."""
    if reason_of(choice) == "length":
        return Ending("max_tokens", None)
    if isinstance(choice.stop_reason, str):
        return Ending("stop_sequence", choice.stop_reason)
    return Ending("tool_use" if has_calls else "end_turn", None)


def usage_of(tally: UpdateTally) -> MessageUsage:
    """The tokens so far. Those of the prompt that were cached are counted apart, as the protocol has it."""
    return MessageUsage(**_counts(tally))


def usage_before(tally: UpdateTally) -> MessageUsage:
    """The same before the first token, whether or not it came with the prompt's last step."""
    return MessageUsage(**{**_counts(tally), "output_tokens": 0})


def delta_usage_of(tally: UpdateTally) -> DeltaUsage:
    """The same for the last event of a stream, which has fewer fields."""
    return DeltaUsage(**_counts(tally))


def _counts(tally: UpdateTally) -> dict[str, Any]:
    num_cached = sum(tally.num_cached)
    return {
        "input_tokens": sum(tally.prompt_lens) - num_cached,
        "output_tokens": tally.num_tokens,
        "cache_read_input_tokens": num_cached,
        "output_tokens_details": OutputDetails(tally.num_reasoning),
    }

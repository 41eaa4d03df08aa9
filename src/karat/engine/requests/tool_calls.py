"""Tools for callers of LLM: sampling that makes calls, and answers taken apart."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from karat.errors import RequestError
from karat.outputs import CompletionOutput, RequestOutput
from karat.request import SamplingParams, shown
from karat.text import ChatPrompt, Tokenizer
from karat.text.tools.calling import Calling, Mode, Offer, names_shown
from karat.text.tools.dialect import Dialect
from karat.text.tools.events import ParsedAnswer
from karat.text.tools.parser import AnswerParser


def calling(
    params: SamplingParams,
    dialect: Dialect,
    prompt: ChatPrompt,
    tools: Sequence[Mapping[str, Any]],
    *,
    tool_choice: str,
    parallel_tool_calls: bool,
) -> SamplingParams:
    """`params` for an answer that calls tools, as `Calling` has it; their form is that of answers that are no calls.

    UsageError for a template without tools or in no known form, RequestError for other tools.
    """
    mode = _mode(tool_choice)
    chosen = Calling.chosen([_offer(tool) for tool in tools], mode, parallel=parallel_tool_calls)
    if mode != "none":
        if not chosen.offers:
            raise RequestError(f"tool_choice={shown(tool_choice)} with no tools; give some", param="tool_choice")
        dialect.require_tools(read=True)
    elif params.structured_outputs is not None and not dialect.in_channels:
        return params  # all of the answer has the form
    form = chosen.structured(dialect, prompt.text, params.structured_outputs)
    shows_special = chosen.shows_marks(dialect) or not params.skip_special_tokens
    return replace(params, structured_outputs=form, skip_special_tokens=not shows_special)


def tools_shown(tools: Sequence[Mapping[str, Any]], tool_choice: str) -> list[Mapping[str, Any]] | None:
    """The tools that the model is shown, None where there are none. RequestError for a wrong choice."""
    mode, offers = _mode(tool_choice), [_offer(tool) for tool in tools]
    Calling.chosen(offers, mode, parallel=True)
    names = names_shown([offer.name for offer in offers], mode)
    return [tool for tool, offer in zip(tools, offers, strict=True) if offer.name in names] or None


def parsed(
    output: RequestOutput,
    dialect: Dialect,
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    calls_alone: bool = False,
) -> list[ParsedAnswer]:
    """Reasoning, text and calls of each choice of a conversation's answer, as AnswerParser finds them."""
    known = {offer.name: offer.parameters for offer in map(_offer, tools or ())}
    is_open = output.prompt is not None and dialect.opens_reasoning(output.prompt)
    return [
        AnswerParser(
            dialect.tags,
            is_open=is_open,
            form=dialect.reads(bool(known)),
            tools=known,
            calls_alone=calls_alone,
            begun=dialect.begun(output.prompt or ""),
        ).parse(_text(choice, dialect, tokenizer))
        for choice in output.outputs
    ]


def _text(choice: CompletionOutput, dialect: Dialect, tokenizer: Tokenizer) -> str:
    """The text of a choice. Where it may lack marks that are special tokens, it is made again, up to its end token."""
    if not dialect.hides_marks or isinstance(choice.stop_reason, str):
        return choice.text
    ids = choice.token_ids
    if ids and choice.finish_reason == "stop" and ids[-1] == choice.stop_reason:
        ids = ids[:-1]
    return tokenizer.decode(ids, skip_special_tokens=False)


def _mode(tool_choice: str) -> Mode | tuple[str]:
    return tool_choice if tool_choice in get_args(Mode) else (tool_choice,)  # type: ignore[return-value]


def _offer(tool: Mapping[str, Any]) -> Offer:
    """A tool in OpenAI's form, with or without the key `function`."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    given = function if isinstance(function, Mapping) else {}
    name, parameters, strict = given.get("name"), given.get("parameters"), given.get("strict")
    if not isinstance(name, str) or not isinstance(parameters, Mapping | None) or not isinstance(strict, bool | None):
        raise RequestError(
            f"a tool={shown(tool)}: expected {{'type': 'function', 'function': {{'name': …, 'parameters': a schema}}}}"
        )
    return Offer(name, None if parameters is None else dict(parameters), bool(strict))

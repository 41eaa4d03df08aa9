"""Tools for callers of LLM: sampling that makes calls, and answers taken apart."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from karat.errors import RequestError
from karat.outputs import CompletionOutput, RequestOutput
from karat.request import SamplingParams, shown
from karat.text import ChatPrompt, Tokenizer
from karat.text.tools.calling import Calling, Offer
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

    RequestError for a template without tools or in no known form, and for other tools.
    """
    mode: Any = tool_choice if tool_choice in ("auto", "required") else (tool_choice,)
    chosen = Calling.chosen([_offer(tool) for tool in tools], mode, parallel=parallel_tool_calls)
    if not chosen.offers:
        raise RequestError(f"tool_choice={shown(tool_choice)} with no tools; give some", param="tool_choice")
    if not dialect.knows_tools or dialect.form is None:
        raise RequestError(
            "tools: the model's chat template tells of none in a form that Karat reads; use another model",
            param="tools",
        )
    form = chosen.structured(dialect, prompt.text, params.structured_outputs)
    shows_special = chosen.shows_marks(dialect) or not params.skip_special_tokens
    return replace(params, structured_outputs=form, skip_special_tokens=not shows_special)


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

"""Tools for callers of LLM: sampling that makes calls, and answers taken apart."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from karat.errors import RequestError
from karat.outputs import CompletionOutput, RequestOutput
from karat.request import SamplingParams, StructuredOutputs, shown
from karat.text import ChatPrompt, Tokenizer
from karat.text.tools.dialect import Dialect
from karat.text.tools.events import ParsedAnswer
from karat.text.tools.grammar import CallGrammar, Tool
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
    """`params` with a form of the answer that has calls.

    RequestError for a template without tools or in no known form, for other tools, and for a form given already.
    """
    found = [_tool(tool) for tool in tools]
    if tool_choice not in ("auto", "required"):
        found = [tool for tool in found if tool.name == tool_choice]
    if not found:
        expected = "auto, required, or the name of one of tools"
        raise RequestError(f"tool_choice={shown(tool_choice)} with {len(tools)} tools; expected {expected}")
    if not dialect.knows_tools or dialect.form is None:
        raise RequestError(
            "tools: the model's chat template tells of none in a form that Karat reads; use another model"
        )
    if params.structured_outputs is not None:
        raise RequestError("structured_outputs: calls have a form of their own; expected none; leave it out")
    asked = CallGrammar.of(
        dialect,
        found,
        must_call=tool_choice != "auto",
        single=not parallel_tool_calls,
        is_open=dialect.opens_reasoning(prompt.text),
    )
    form = StructuredOutputs(tool_calls=asked.encoded())
    return replace(params, structured_outputs=form, skip_special_tokens=not dialect.hides_marks)


def parsed(
    output: RequestOutput, dialect: Dialect, tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]] | None
) -> list[ParsedAnswer]:
    """Reasoning, text and calls of each choice of a conversation's answer."""
    names = [_tool(tool).name for tool in tools or ()]
    is_open = output.prompt is not None and dialect.opens_reasoning(output.prompt)
    return [
        AnswerParser(dialect.tags, is_open=is_open, form=dialect.form if names else None, tools=names).parse(
            _text(choice, dialect, tokenizer)
        )
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


def _tool(tool: Mapping[str, Any]) -> Tool:
    """A tool in OpenAI's form, with or without the key `function`."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    parameters = function.get("parameters") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not isinstance(parameters, Mapping | None):
        raise RequestError(
            f"a tool={shown(tool)}: expected {{'type': 'function', 'function': {{'name': …, 'parameters': a schema}}}}"
        )
    return Tool(name, {"properties": {}} if parameters is None else dict(parameters))

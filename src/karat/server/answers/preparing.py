"""prepare: from a conversation to the prompt, and to how its answer is sampled and taken apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from karat.engine.async_llm import AsyncLLM
from karat.server.answers.parts import NO_TALK, Talk
from karat.server.asking.asked import ChatRequest
from karat.server.asking.variables import with_efforts
from karat.text.chat_prompt import ChatPrompt
from karat.text.tools.dialect import Dialect


@dataclass(frozen=True, slots=True)
class Prepared:
    """A conversation ready to be answered. `given` are fields of SamplingParams.

    `without_effect` names what this model cannot heed and what it drops.
    """

    prompt: ChatPrompt
    talk: Talk
    given: Mapping[str, Any]
    without_effect: tuple[str, ...]


async def prepare(asked: ChatRequest, llm: AsyncLLM) -> Prepared:
    """Render a conversation with its tools. Control tokens that contents spell stay text.

    ApiError 400 for tools that the model's template has no place for.
    """
    dialect, tools = await llm.dialect(), asked.tools
    tools.check(dialect)
    variables, unheeded = with_efforts(asked.variables, asked.efforts, dialect)
    prompt = await llm.render(
        asked.messages,
        tools=tools.rendered(),
        add_generation_prompt=variables.pop("add_generation_prompt"),
        continue_final_message=asked.continues,
        chat_template_kwargs=variables or None,
        sanitize_control_tokens=True,
    )
    given = dict(asked.given)
    unused: tuple[str, ...] = ()
    calling, answer = tools.calling, given.get("structured_outputs")
    if answer is not None and not calling.offers:
        talk = NO_TALK  # all of the answer has the form
    else:
        if answer is not None and calling.must_call:
            unused, answer = (asked.form.structure_field,), None  # no call has the form
        end = _ending(prompt.text, asked, dialect)
        given["structured_outputs"] = tools.structured(dialect, end, answer)
        talk = Talk(
            dialect.tags,
            dialect.opens_reasoning(end),
            dialect.form if calling.offers else None,
            calling.schemas,
            shows_special=calling.shows_marks(dialect),
            calls_alone=answer is not None,
        )
        if talk.shows_special:
            given["skip_special_tokens"] = False
    return Prepared(prompt, talk, given, (*asked.unused, *unheeded, *unused, *tools.dropped))


def _ending(prompt: str, asked: ChatRequest, dialect: Dialect) -> str:
    """A prompt that shows by its end whether it ends inside the reasoning: a message that goes on may be there."""
    if not asked.continues or dialect.tags is None:
        return prompt
    opening, closing = dialect.tags
    content = asked.messages[-1]["content"]
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    return prompt + opening if texts and texts[-1].rfind(opening) > texts[-1].rfind(closing) else prompt

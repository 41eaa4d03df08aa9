"""prepare: from what is asked to prompts, and to how their answers are sampled and taken apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from karat.engine.async_llm import AsyncLLM
from karat.engine.requests.passed import Passed
from karat.engine.requests.request_making import Prompt
from karat.server.answers.parts import PLAIN_TEXT, AnswerFormat
from karat.server.asking.asked import ChatRequest, TextRequest
from karat.server.asking.variables import with_efforts
from karat.text.tools.dialect import Dialect


@dataclass(frozen=True, slots=True)
class Prepared:
    """Prompts ready to be answered, and their numbers of tokens.

    `given` are fields of SamplingParams. `without_effect` names what this model cannot heed and what it drops.
    `prompt_texts` come before the answers.
    """

    prompts: Sequence[Prompt]
    prompt_lens: Sequence[int]
    given: Mapping[str, Any]
    without_effect: tuple[str, ...]
    answer_format: AnswerFormat = PLAIN_TEXT
    prompt_texts: Sequence[str] = ()


async def prepare(asked: ChatRequest, llm: AsyncLLM) -> Prepared:
    """Render a conversation with its tools. Control tokens that contents spell stay text.

    ApiError 400 for tools that the model's template has no place for.
    """
    dialect, tools = await llm.dialect(), asked.tools
    tools.check(dialect)
    variables, unheeded = with_efforts(asked.variables, asked.efforts, dialect)
    prompt = await llm.render(asked.messages, **asked.rendering(variables))
    given = dict(asked.given)
    unused: tuple[str, ...] = ()
    calling, answer = tools.calling, given.get("structured_outputs")
    if answer is not None and not calling.offers and not dialect.in_channels:
        answer_format = PLAIN_TEXT  # all of the answer has the form
    else:
        if answer is not None and calling.must_call:
            unused, answer = (asked.form.structure_field,), None  # no call has the form
        end = _ending(prompt.text, asked, dialect)
        given["structured_outputs"] = tools.structured(dialect, end, answer)
        answer_format = AnswerFormat(
            dialect.tags,
            dialect.opens_reasoning(end),
            dialect.reads(bool(calling.offers)),
            calling.schemas,
            shows_special=calling.shows_marks(dialect),
            calls_alone=answer is not None,
            begun=dialect.begun(end),
        )
        if answer_format.shows_special:
            given["skip_special_tokens"] = False
    names = (*asked.unused, *_unread(asked, llm), *unheeded, *unused, *tools.dropped)
    return Prepared([prompt], [len(prompt.token_ids)], given, names, answer_format)


def _unread(asked: ChatRequest, llm: AsyncLLM) -> tuple[str, ...]:
    """The names for the header of variables that no template mentions."""
    passed, names = Passed(), set(asked.variables) - {"add_generation_prompt"}
    for name in llm.tokenizer.unread_variables(names) if names else ():
        passed.key("chat_template_kwargs", name)
    return tuple(sorted(passed.names))


async def prepare_texts(asked: TextRequest, llm: AsyncLLM) -> Prepared:
    """Tokenise texts. Control tokens that a text spells become those tokens."""
    prompts: list[Prompt] = []
    ids: list[Sequence[int]] = []
    texts: list[str] = []  # where they are wanted
    for prompt in asked.prompts:
        if isinstance(prompt, str):
            ids.append(await llm.tokenize(prompt, add_special_tokens=asked.add_special_tokens))
            prompts.append({"prompt_token_ids": ids[-1], "prompt": prompt})
        else:
            ids.append(prompt)
            prompts.append(prompt)
        if asked.form.echo:
            texts.append(prompt if isinstance(prompt, str) else await llm.detokenize(prompt))
    return Prepared(prompts, list(map(len, ids)), asked.given, asked.unused, prompt_texts=texts)


def _ending(prompt: str, asked: ChatRequest, dialect: Dialect) -> str:
    """A prompt that shows by its end whether it ends inside the reasoning: a message that goes on may be there."""
    if not asked.continues or dialect.tags is None:
        return prompt
    opening, closing = dialect.tags
    content = asked.messages[-1]["content"]
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    return prompt + opening if texts and texts[-1].rfind(opening) > texts[-1].rfind(closing) else prompt

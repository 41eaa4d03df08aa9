"""Where a conversation's next prompt leaves this one, for released templates and what clients send next."""

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from karat.errors import TemplateError
from karat.text import ChatPrompt, Tokenizer
from karat.text.cache_point import cache_point
from tests.support.drawn import some
from tests.text.conversations import assistant, system, user
from tests.text.test_chat_template import read_templates
from tests.text.tools.models import byte_tokenizer

NOW = {"now": datetime(2026, 11, 27)}
THOUGHT = "I add them, and find the sum. " * 3
STRIPPING = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}
{%- if add_generation_prompt %}<assistant><think>{% endif %}"""
KEEPING_CALLS = """{% set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}<{{ m.role }}>
{%- if m.reasoning_content and loop.index0 > ns.last %}({{ m.reasoning_content }}){% endif %}{{ m.content }}
{%- endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


def turns() -> list[dict[str, Any]]:
    """Question, answer, question, answer, and so on."""
    told = [system("Be kind.")]
    for number in range(4):
        told += [user(f"And {number} + {number}?"), assistant(f"It is {2 * number}.")]
    return told


def made(tokenizer: Tokenizer, messages: list[dict[str, Any]], **variables: Any) -> tuple[ChatPrompt, int | None]:
    prompt = tokenizer.chat_prompt(messages, **NOW, **variables)
    return prompt, cache_point(tokenizer, prompt, messages, {**NOW, **variables})


def num_common(one: ChatPrompt, other: ChatPrompt) -> int:
    pairs = enumerate(zip(one.token_ids, other.token_ids, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one.token_ids), len(other.token_ids)))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("sanitize", [False, True])
@pytest.mark.parametrize("with_reasoning", [False, True])
def test_released_templates(data_dir: Path, with_reasoning: bool, sanitize: bool) -> None:
    """The next prompt has all tokens up to the cache point, and hardly more where the answer comes without reasoning.

    Some templates write there that there is none.
    """
    num_found = 0
    for source in some(list(read_templates(data_dir).values()), 12, of="cache points"):
        tokenizer = byte_tokenizer(source)
        told = turns()
        if with_reasoning:
            told = [{**m, "reasoning_content": THOUGHT} if m["role"] == "assistant" else m for m in told]
        before: tuple[ChatPrompt, int | None] | None = None
        for length in range(2, len(told) + 1, 2):
            with suppress(TemplateError):
                now = made(tokenizer, told[:length], sanitize_control_tokens=sanitize)
                if before is not None and before[1] is not None:
                    common = num_common(before[0], now[0])
                    assert before[1] <= common and (with_reasoning or before[1] >= common - len("<think></think>\n")), (
                        source
                    )
                    num_found += 1
                before = now
    assert num_found > 20


def test_what_opens_the_reasoning_is_behind_it() -> None:
    tokenizer = byte_tokenizer(STRIPPING)
    messages = [user("Hi"), assistant("Hello."), user("And?")]
    prompt, point = made(tokenizer, messages)
    assert prompt.text == "<user>Hi<assistant>Hello.<user>And?<assistant><think>"
    assert tokenizer.decode(prompt.token_ids[:point]) == "<user>Hi<assistant>Hello.<user>And?<assistant>"


def test_a_message_that_goes_on_is_before_it() -> None:
    tokenizer = byte_tokenizer(STRIPPING)
    messages = [user("Hi"), assistant("Hello")]
    prompt, point = made(tokenizer, messages, continue_final_message=True, add_generation_prompt=False)
    assert prompt.text == "<user>Hi<assistant>Hello" and point == len(prompt.token_ids)


def test_calls_since_the_last_question_are_behind_it() -> None:
    """A template that keeps their reasoning until the next question comes."""
    tokenizer = byte_tokenizer(KEEPING_CALLS)
    called = [{**assistant("call"), "reasoning_content": "Hm."}, {"role": "tool", "content": "4"}]
    prompt, point = made(tokenizer, [user("2 + 2?"), *called, *called])
    assert prompt.text.startswith("<user>2 + 2?<assistant>(Hm.)call<tool>4<assistant>(")
    assert tokenizer.decode(prompt.token_ids[:point]) == "<user>2 + 2?<assistant>"


def test_a_template_that_can_write_no_next_turn_has_none() -> None:
    tokenizer = byte_tokenizer(
        "{% if messages | length > 1 %}{{ raise_exception('one') }}{% endif %}{{ messages[0].content }}"
    )
    assert made(tokenizer, [user("Hi")])[1] is None

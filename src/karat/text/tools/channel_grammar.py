"""Grammars of answers that are rows of messages (`Channels`)."""

import re
from collections.abc import Callable
from typing import Literal

from karat.text.tools.format import ROLE, START, Channels

_MARKED = re.escape(START + ROLE)
_TEXT = rf"/(?s:.*)/ & ~(/(?s:.*){_MARKED}(?s:.*)/)"  # a text that spells the mark of a message would be read as one


def messages(
    channels: Channels,
    last: Literal["calls", "answer", "either"],
    begun: str,
    *,
    speaks: bool,
    answer: str,
    is_special: bool,
    terms: Callable[[str], str],
) -> dict[str, str]:
    """The rules around `calls`. The `last` message is a call, the answer, or either; before it come any of reasoning.

    `begun` is the header of the message that the prompt has opened, whole, or empty. `speaks`: texts may come before
    the last message. `answer` is a term for the form of the answer; "" for any text. `is_special`: the marks are no
    text.
    """
    next_one, end = terms(START + ROLE), channels.message_end
    rules = {
        "TEXT": _TEXT,
        "text": "TEXT",
        **channels.rules(speaks, bool(answer), terms),
        "before": "thought over",
        "final": "last answer",
        "answer": answer or "text",
        "rest": {"calls": "before* calls", "answer": "before* final", "either": "before* (calls | final)"}[last],
        "start": "rest",
    }
    if is_special:
        rules["over"] = f"TEXT {terms(end)} {next_one}"
    else:
        rules |= {"closed[lazy]": f"TEXT {terms(end)}", "over": f"closed {next_one}"}
        rules["TEXT"] += f" & ~(/(?s:.*){re.escape(end)}(?s:.*)/)"
    if begun:
        rules["start"] = "answer" if channels.is_answer(begun) and last != "calls" else "over rest"
    return rules

"""Grammars of answers of messages in channels (`karat.text.tools.harmony`)."""

import json
import re
from collections.abc import Callable
from typing import Literal

from karat.text.tools.harmony import (
    ANSWER,
    ASIDE,
    CHANNEL,
    CONSTRAIN,
    END,
    MESSAGE,
    ROLE,
    START,
    THOUGHT,
    TOOLS,
    channel_of,
)

_MARKED = re.escape(START + ROLE)
_TEXT = rf"/(?s:.*)/ & ~(/(?s:.*){_MARKED}(?s:.*)/)"  # a text that spells the mark of a message would be read as one


def head(tool: str, terms: Callable[[str], str]) -> str:
    """What stands before the arguments of a call. Models name the tool on either side of the channel."""
    to = json.dumps(f" to={TOOLS}{tool}")
    channel, message = terms(CHANNEL), terms(MESSAGE)
    return f"({to} {channel} thinking kind | {channel} thinking {to} kind) {message}"


def messages(
    last: Literal["calls", "answer", "either"],
    begun: str,
    *,
    speaks: bool,
    answer: str,
    is_special: bool,
    terms: Callable[[str], str],
) -> dict[str, str]:
    """The rules around `calls`. The `last` message is a call, the answer, or either; before it come any of analysis.

    `begun` is the header of the message that the prompt has opened, whole, or empty. `speaks`: texts may come before
    the last message. `answer` is a term for the form of the answer; "" for any text. `is_special`: the marks are no
    text.
    """
    channel, message, next_one = terms(CHANNEL), terms(MESSAGE), terms(START + ROLE)
    rules = {
        "TEXT": _TEXT,
        "text": "TEXT",
        "thinking": f'"{THOUGHT}" | "{ASIDE}"',
        "kind": f'"" | " json" | " "? {terms(CONSTRAIN)} "json"',
        "before": f"{channel} {'thinking' if speaks else json.dumps(THOUGHT)} {message} over",
        "final": f'{channel} "{ANSWER}" {"kind" if answer else ""} {message} answer',
        "answer": answer or "text",
        "rest": {"calls": "before* calls", "answer": "before* final", "either": "before* (calls | final)"}[last],
        "start": "rest",
    }
    if is_special:
        rules["over"] = f"TEXT {terms(END)} {next_one}"
    else:
        rules |= {"closed[lazy]": f"TEXT {terms(END)}", "over": f"closed {next_one}"}
        rules["TEXT"] += f" & ~(/(?s:.*){re.escape(END)}(?s:.*)/)"
    if begun:
        is_answer = channel_of(begun) not in (THOUGHT, ASIDE)
        rules["start"] = "answer" if is_answer and last != "calls" else "over rest"
    return rules

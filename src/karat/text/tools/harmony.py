"""Harmony: gpt-oss' answers are messages, each in a channel; calls are messages to a tool."""

import re

from karat.text.tools.format import CallShape, Reading, Sink, ToolFormat, json_object, space

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
ROLE, TOOLS = "assistant", "functions."
THOUGHT, ASIDE, ANSWER = "analysis", "commentary", "final"  # the channels
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*([^\s<]*)")
_RECIPIENT = re.compile(r"(?:^|[\s>])to=([^\s<]+)")


def channel_of(header: str) -> str:
    """The channel that a message's header names, which ends with <|message|>; empty if it names none."""
    found = _CHANNEL.findall(header)
    return found[-1] if found else ""


def recipient_of(header: str) -> str:
    """Whom a message is for: a tool. Empty where the header, in neither of its places, names one."""
    found = _RECIPIENT.search(header)
    return found[1] if found else ""


def _read(header: str, sink: Sink) -> Reading[None]:
    """The arguments of the call that a header begins."""
    char = yield from space()
    sink.begin(recipient_of(header).removeprefix(TOOLS))
    yield from json_object(char, sink)
    sink.end()


HARMONY = ToolFormat(
    "harmony",
    _read,
    CallShape(
        opening="",
        before=f" to={TOOLS}",
        between=f"{CHANNEL}{ASIDE} {CONSTRAIN}json{MESSAGE}",
        after="",
        separator=f"{CALL}{START}{ROLE}",
    ),
    marks=(START + ROLE,),
    hints=(f"{START}{ROLE}{CHANNEL}{ANSWER}{MESSAGE}",),
    in_channels=True,
    turn_ends=(CALL, RETURN),
    message_ends=(END,),
    efforts=("low", "medium", "high"),
)

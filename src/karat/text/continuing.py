"""A conversation whose last message the model goes on with, rendered as transformers does (continue_final_message)."""

from collections.abc import Mapping, Sequence
from typing import Any

from karat.errors import TemplateError

_TAG = "KARAT_GOES_ON_HERE "  # its space shows whether the template trims contents


def tagged(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with a tag at the end of the last text. TemplateError where the last message has none."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if isinstance(content, str):
        return [*messages[:-1], {**last, "content": content + _TAG}]
    parts = list(content) if isinstance(content, list | tuple) else []
    for place in range(len(parts) - 1, -1, -1):
        if isinstance(parts[place], Mapping) and isinstance(parts[place].get("text"), str):
            parts[place] = {**parts[place], "text": parts[place]["text"] + _TAG}
            return [*messages[:-1], {**last, "content": parts}]
    raise TemplateError(
        "continue_final_message: the last message has no text to go on with; expected a content; give one, an empty "
        "text say, or leave the option out",
        param="continue_final_message",
    )


def begun(messages: Sequence[Mapping[str, Any]], rendered: str) -> str:
    """The text of the last message, as it stands at the end of `rendered`."""
    content = messages[-1]["content"]
    text = content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)
    return text if rendered.endswith(text) else text.strip()


def cut(rendered: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """What the template made of `tagged(messages)`, up to the tag.

    A template that trims contents has trimmed the tag's space: the text before it is trimmed as well. TemplateError for
    a template that leaves out some of the last message.
    """
    content = messages[-1]["content"]
    if not isinstance(content, str):
        content = next(part["text"] for part in reversed(content) if isinstance(part.get("text"), str))
    at = rendered.rfind(_TAG.strip())
    if at < 0 or content.strip() not in rendered:
        raise TemplateError(
            "continue_final_message: the model's chat template does not write the last message as it is; expected a "
            "content that it does not change; take reasoning and the like out of it",
            param="continue_final_message",
        )
    return rendered[:at] if rendered.startswith(_TAG, at) else rendered[:at].rstrip()

"""cache_point: how many tokens of a conversation's prompt its next prompt will begin with, too.

Templates write past turns otherwise than the last one: they strip its reasoning, or what opened it. So the next prompt
leaves this one before its end:

    now     …<|user|>And 3 + 3?<|assistant|><think>
    next    …<|user|>And 3 + 3?<|assistant|>6<|user|>…
                                            ↑ the cache point

It is found by rendering what may come next: an answer without its reasoning, as most clients send it, or with it.
Nothing but speed depends on it: where it is, a state is kept (karat.engine.scheduling.state_places).
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from karat.errors import TemplateError
from karat.text.chat_prompt import REASONING, ChatPrompt
from karat.text.tokenizer import Tokenizer

_SAID = "KARAT"  # what no prompt goes on with
_ANSWERS = (
    ({"role": "assistant", "content": _SAID},),
    ({"role": "assistant", "content": _SAID, REASONING[0]: _SAID},),
)


def cache_point(
    tokenizer: Tokenizer, prompt: ChatPrompt, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> int | None:
    """The cache point of `prompt`, in tokens; None if the template cannot write a next turn.

    The prompt was made of `messages` and `variables` by Tokenizer.chat_prompt, with a `now` that stands still. Where
    control tokens were kept as text, the number may be off by those after the cache point.
    """
    told = {name: value for name, value in variables.items() if name not in ("sanitize_control_tokens", "max_tokens")}
    told |= {"add_generation_prompt": True, "continue_final_message": False}
    text, following = prompt.text, list[str]()
    for more in _ANSWERS if messages[-1].get("role") != "assistant" else ((),):
        try:
            following.append(tokenizer.render_chat([*messages, *more, {"role": "user", "content": _SAID}], **told))
        except TemplateError:
            return None

    def leaves(last: int) -> bool:
        return not all(other.startswith(text[: last + 1]) for other in following)

    rest = text[bisect_left(range(len(text)), True, key=leaves) :]
    return len(prompt.token_ids) - len(tokenizer.encode(rest, add_special_tokens=False))

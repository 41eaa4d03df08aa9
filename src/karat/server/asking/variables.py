"""What a request sets of the chat template: its variables, and how much the model is to reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from karat.engine.requests.passed import stated
from karat.request import shown
from karat.server.errors import invalid
from karat.text.tools.dialect import LEVELS, Dialect

# What the template is called with, which its variables may not replace.
_RESERVED = frozenset(
    "messages tools documents add_generation_prompt now sanitize_control_tokens max_tokens self "
    "chat_template tokenize continue_final_message".split()
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a model is to reason, by the field `name`: "none", "on", or a level of the model's own.

    `switches`: it also asks whether the model reasons at all.
    """

    name: str
    level: str
    switches: bool = True


def read_variables(values: Mapping[str, Any], *, continues: bool = False) -> dict[str, Any]:
    """The variables of the chat template besides the messages."""
    variables = dict(values.get("chat_template_kwargs", {}))
    for name in variables:
        if name in _RESERVED or not name.isidentifier():
            raise invalid(
                "chat_template_kwargs",
                f"chat_template_kwargs has {shown(name)}, which is no variable to set; take it out",
            )
    opens = values.get("add_generation_prompt", not continues)
    return variables | {"add_generation_prompt": opens}


def switched(values: Mapping[str, Any]) -> tuple[Effort, ...]:
    """What the field enable_thinking asks for."""
    if "enable_thinking" not in values:
        return ()
    return (Effort("enable_thinking", "on" if values["enable_thinking"] else "none"),)


def thought(thinking: Mapping[str, Any] | None) -> tuple[tuple[Effort, ...], tuple[str, ...]]:
    """Whether the model is to reason, by Anthropic's field `thinking`, and the names of keys that have no effect."""
    thinking = stated(thinking or {})
    if not thinking:
        return (), ()
    kind, unknown = thinking.get("type"), thinking.keys() - {"type", "budget_tokens", "display"}
    if kind not in ("enabled", "adaptive", "disabled") or unknown:
        raise invalid("thinking", f"thinking={shown(thinking)}: expected type enabled, adaptive or disabled")
    names = tuple(f"thinking.{name}" for name in ("budget_tokens", "display") if name in thinking)
    if kind == "adaptive":
        return (), names
    return (Effort("thinking", "on" if kind == "enabled" else "none"),), names


def with_efforts(
    variables: Mapping[str, Any], efforts: Sequence[Effort], dialect: Dialect
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The template's variables, and the names of fields that this model cannot heed. Given variables stay.

    Clients send an effort to every model, so none is refused. The first of several decides about its variable.
    """
    made: dict[str, Any] = {}
    unheeded = []
    levels = dialect.form.efforts if dialect.form is not None else ()
    by_level = next((name for name in LEVELS if name in dialect.variables), None)
    for effort in efforts:
        wants = effort.level != "none"
        value: object
        is_level = effort.level in levels if levels else effort.level != "on"
        if by_level is not None and is_level:
            name, value = by_level, effort.level
        elif "enable_thinking" in dialect.variables and effort.switches:
            name, value = "enable_thinking", wants
        elif effort.switches and wants == dialect.reasons and (not levels or effort.level == "on"):
            continue  # the model does so anyway
        else:
            unheeded.append(effort.name)
            continue
        if made.setdefault(name, value) != value:
            unheeded.append(effort.name)
    return made | dict(variables), tuple(unheeded)

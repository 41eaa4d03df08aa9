"""Overrides: what the user says of a model, which wins over what its files say."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from karat.checkpoint.files import open_regular
from karat.checkpoint.wording import listed, shown
from karat.errors import ConfigError, TemplateError, UsageError

MAX_TEMPLATE_BYTES = 1 << 20
_ROPE = ("rope_scaling", "rope_parameters")
_OF_TEMPLATES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_SCALINGS = ("linear", "yarn")
_JINJA = re.compile(r"\{[{%#]")
# Templates by llama.cpp's short names.
_BUILT_IN = {
    "chatml": (
        "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """The user's word. Raises UsageError for what makes no sense for any model.

    hf_overrides: keys of config.json (also where the model is a GGUF file) or of a GGUF file's metadata, with values.
    null takes a key away. A dot leads into rope_scaling or rope_parameters.
    rope_scaling, rope_factor: "yarn" or "linear", and how many times as far as it was trained for the model reads.
    chat_template: the source of the chat template. chat_template_kwargs: variables for each rendering of it.
    """

    hf_overrides: dict[str, Any] = field(default_factory=dict)
    rope_scaling: str | None = None
    rope_factor: float | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("hf_overrides", "chat_template_kwargs"):
            value = getattr(self, name)
            if not isinstance(value, dict) or not all(isinstance(key, str) and key for key in value):
                raise UsageError(f"{name}={shown(value)}: expected a mapping of names to values")
        if taken := sorted(self.chat_template_kwargs.keys() & _OF_TEMPLATES):
            raise UsageError(f"{taken[0]} is given to the chat template by each conversation; expected other variables")
        if (self.rope_scaling is None) != (self.rope_factor is None):
            raise UsageError(
                "rope_scaling and rope_factor belong together, like yarn and 4 (--rope-scaling yarn --rope-factor 4); "
                "give both or none"
            )
        if self.rope_scaling is not None and self.rope_scaling not in _SCALINGS:
            raise UsageError(f"rope_scaling={shown(self.rope_scaling)}: expected {' or '.join(_SCALINGS)}")
        if (number := self.rope_factor) is not None:
            if isinstance(number, bool) or not isinstance(number, int | float) or not 1 < number <= 1024:
                raise UsageError(f"rope_factor={shown(number)}: expected a number above 1, at most 1024")
            if _is_named(self.hf_overrides, _ROPE):
                raise UsageError("rope_factor and an override of RoPE's parameters both scale RoPE; give one of them")

    @property
    def changes_model(self) -> bool:
        """Whether the model itself is another than its files say."""
        return bool(self.hf_overrides) or self.rope_scaling is not None

    def described(self) -> dict[str, Any]:
        """What was said, for people: the name of each thing and its value."""
        told = dict(self.hf_overrides)
        if self.rope_scaling is not None:
            told |= {"rope_scaling": self.rope_scaling, "rope_factor": self.rope_factor}
        if self.chat_template is not None:
            told["chat_template"] = f"{len(self.chat_template)} characters"
        return told | ({"chat_template_kwargs": self.chat_template_kwargs} if self.chat_template_kwargs else {})

    def remarks(self, config: Mapping[str, Any]) -> list[str]:
        """What to tell when the model is loaded, whose config.json is `config` with these overrides."""
        told = []
        if self.hf_overrides:
            pairs = [f"{key}={shown(value)}" for key, value in self.hf_overrides.items()]
            told.append(f"instead of what the files say: {listed(pairs)}")
        if self.rope_scaling is not None and self.rope_factor is not None:
            longest = config["max_position_embeddings"]
            told.append(
                f"RoPE is scaled by {self.rope_scaling}, factor {self.rope_factor:g}: the model reads up to {longest} "
                f"tokens and was trained for {int(longest / self.rope_factor)}; answers to short texts change, too"
            )
        return told

    def of_config(self, config: Mapping[str, Any], others: Collection[str] = ()) -> dict[str, Any]:
        """The config.json with the user's values; `others` are names that were settled already (a file's metadata).

        UsageError for a key that is taken away and is not there.
        """
        result = dict(config)
        for key, value in self.hf_overrides.items():
            if key in others:
                continue
            outer, _, inner = key.partition(".")
            if inner and outer in _ROPE:
                result[outer] = _with(result.get(outer) or {}, inner, value, key)
            else:
                result = _with(result, key, value, key)
        if _is_named(self.hf_overrides, (*_ROPE, "rope_theta")):
            result = _one_rope(config, result, self.hf_overrides)
        return self._extended(result)

    def _extended(self, config: dict[str, Any]) -> dict[str, Any]:
        """The config.json with a context that is `rope_factor` times as long."""
        if self.rope_scaling is None or self.rope_factor is None:
            return config
        name = next((name for name in reversed(_ROPE) if config.get(name)), _ROPE[0])
        given, trained = config.get(name) or {}, config.get("max_position_embeddings")
        kind = given.get("rope_type", given.get("type", "default")) if isinstance(given, dict) else given
        if kind != "default":
            raise UsageError(
                f"rope_scaling={self.rope_scaling}: the model has RoPE of the kind {shown(kind)} already; state the "
                f"whole of it by an override of {name}"
            )
        if type(trained) is not int or trained < 1:
            raise ConfigError(f"max_position_embeddings={shown(trained)}: expected a positive integer")
        scaling = {**given, "rope_type": self.rope_scaling, "factor": float(self.rope_factor)}
        scaling |= {"original_max_position_embeddings": trained} if self.rope_scaling == "yarn" else {}
        return {**config, name: scaling, "max_position_embeddings": int(trained * self.rope_factor)}


NO_OVERRIDES = Overrides()


def said(
    *,
    hf_overrides: Mapping[str, Any] | None = None,
    rope_scaling: str | None = None,
    rope_factor: float | None = None,
    chat_template: str | Path | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Overrides:
    """The overrides with these values, where None says nothing. Reads the file of the chat template.

    A text with {{, {% or {# is a template, any other the path of one; `chatml` is built in. Raises UsageError, and
    TemplateError for the file.
    """
    for name, value in (("hf_overrides", hf_overrides), ("chat_template_kwargs", chat_template_kwargs)):
        if not isinstance(value, Mapping | None):
            raise UsageError(f"{name}={shown(value)}: expected a mapping of names to values")
    if not isinstance(chat_template, str | Path | None):
        raise UsageError(f"chat_template={shown(chat_template)}: expected the path of a template, or its text")
    if isinstance(chat_template, Path) or (chat_template is not None and not _JINJA.search(chat_template)):
        chat_template = _read_template(Path(chat_template))
    return Overrides(
        hf_overrides=dict(hf_overrides or {}),
        rope_scaling=rope_scaling,
        rope_factor=rope_factor,
        chat_template=chat_template,
        chat_template_kwargs=dict(chat_template_kwargs or {}),
    )


def without_texts(overrides: Overrides) -> Overrides:
    """What of them changes the model itself: all that a rank needs."""
    return replace(overrides, chat_template=None, chat_template_kwargs={})


def _read_template(path: Path) -> str:
    if not path.suffix and not path.expanduser().exists():
        if str(path) in _BUILT_IN:
            return _BUILT_IN[str(path)]
        raise TemplateError(
            f"{path}: there is no such file, and built in under a name is only {', '.join(_BUILT_IN)}; give a file or "
            "the text of a template, or leave it out for the model's own"
        )
    file, size = open_regular(path.expanduser(), TemplateError)
    with file:
        if size > MAX_TEMPLATE_BYTES:
            raise TemplateError(f"{path}: has {size} bytes; expected a chat template of at most {MAX_TEMPLATE_BYTES}")
        try:
            return file.read(MAX_TEMPLATE_BYTES).decode()
        except UnicodeDecodeError as fault:
            raise TemplateError(f"{path}: is not UTF-8; expected a chat template") from fault


def _is_named(keys: Collection[str], names: Collection[str]) -> bool:
    return any(key.partition(".")[0] in names for key in keys)


def _with(values: object, key: str, value: object, said_as: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise UsageError(f"override {said_as}: {shown(values)} has no keys; expected an object there")
    if value is not None:
        return {**values, key: value}
    if key not in values:
        raise UsageError(f"override {said_as}=null: the model has no such key that could be taken away")
    return {name: kept for name, kept in values.items() if name != key}


def _one_rope(before: Mapping[str, Any], after: dict[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """The user's RoPE alone, where a config.json may state it in three places. The base stays unless it is said."""
    result = dict(after)
    named = next((name for name in _ROPE if _is_named(keys, (name,))), None)
    other = {"rope_scaling": "rope_parameters", "rope_parameters": "rope_scaling"}.get(named or "")
    if other is not None:
        result.pop(other, None)
    places = [rope for name in _ROPE if isinstance(rope := before.get(name), dict)]
    theta = next((rope["rope_theta"] for rope in places if "rope_theta" in rope), before.get("rope_theta"))
    inner = result.get(named) if named is not None else None
    if isinstance(inner, dict) and inner.get("rope_theta") is not None:
        result["rope_theta"] = theta = inner["rope_theta"]
    elif "rope_theta" in keys:
        theta = after.get("rope_theta")
    for name in _ROPE:
        if isinstance(rope := result.get(name), dict) and "rope_theta" in rope:
            result[name] = {**rope, "rope_theta": theta}
    if theta is not None:
        result["rope_theta"] = theta
    return result

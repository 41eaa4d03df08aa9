"""Composite: a folder with several models in it, of which Karat runs the text model.

Its text part is presented as the folder of a text model is:

    in the folder                                                      the text model has
    config.json: text_config: {…}, vision_config: {…}, …               the keys of text_config
    model.language_model.layers.…  or  language_model.model.layers.…   model.layers.…
    lm_head.weight                 or  language_model.lm_head.weight   lm_head.weight
    model.vision_tower.…           or  vision_tower.…                  nothing: unused, as of "vision"
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from karat.checkpoint.unused import OtherPart, Unused, set_aside
from karat.checkpoint.weights import Weight
from karat.checkpoint.wording import shown
from karat.errors import CheckpointError, ConfigError

_PREFIXES: Mapping[str, str] = {"model.language_model.": "model.", "language_model.": ""}
_HEAD = "lm_head.weight"
_TEXT = "text_config"
_TIE = "tie_word_embeddings"
_DTYPES = ("dtype", "torch_dtype")
# What the whole says of these wins over what its text part says, as in transformers.
_OF_THE_WHOLE = ("bos_token_id", "eos_token_id")


@dataclass(frozen=True, slots=True)
class TextPart:
    """The config.json and the weights of a text model, and the tensors of the other parts."""

    config: dict[str, Any]
    weights: Mapping[str, Weight]
    unused: Unused


@dataclass(frozen=True, slots=True, kw_only=True)
class Composite:
    """A kind of folder with several models in it.

    model_type, architecture: its names in config.json.
    texts: the model types that its text part may have; the first where the file states none.
    parts: how the names of the other parts' tensors begin, with or without `model.` before it -> the part.
    keys: keys of config.json that belong to the other parts.
    stated: of each of these its text part must state one, as their default is another than in a text model.
    """

    model_type: str
    architecture: str
    texts: tuple[str, ...]
    parts: Mapping[str, OtherPart]
    keys: frozenset[str]
    stated: tuple[tuple[str, ...], ...] = ()

    def text_part(self, config: Mapping[str, Any], weights: Mapping[str, Weight]) -> TextPart:
        """The text model in a folder with this config.json and these weights (by their stored names).

        Keys of the whole that are not declared to be another part's stay beside the text part's, so that each is judged
        as in a text model. Raises ConfigError for a text part that is missing or of another kind, CheckpointError for
        two tensors of one name.
        """
        text = config.get(_TEXT)
        if not isinstance(text, dict):
            raise ConfigError(
                f"config.json: {_TEXT}={shown(text)}: expected an object that says what the text model is"
            )
        model_type = text.get("model_type", self.texts[0])
        if model_type not in self.texts:
            raise ConfigError(
                f"config.json: {_TEXT}.model_type={shown(model_type)} is not supported in a model of the type "
                f"{self.model_type}; Karat has {', '.join(self.texts)} there"
            )
        architectures = config.get("architectures")
        if architectures not in (None, [], [self.architecture]):
            raise ConfigError(
                f"architectures={shown(architectures)} is not supported for model_type={self.model_type!r}: "
                f"expected [{self.architecture!r}]"
            )
        for keys in self.stated:
            if all(text.get(key) is None for key in keys):
                raise ConfigError(
                    f"config.json: {_TEXT} has no {' or '.join(keys)}, whose default in a {self.model_type} is another "
                    f"than in a {model_type}: state it"
                )
        used, unused = set_aside(weights, self._part_of)
        named = _named(used)
        hidden = {_TEXT, _TIE, "model_type", "architectures", *self.keys}
        if any(text.get(key) is not None for key in _DTYPES):
            hidden.update(_DTYPES)
        of_whole = {key: value for key, value in config.items() if key not in hidden}
        result = of_whole | text | {key: value for key in _OF_THE_WHOLE if (value := config.get(key)) is not None}
        result |= {"model_type": model_type, _TIE: _is_tied(config, text, named)}
        return TextPart(result, named, unused)

    def _part_of(self, name: str) -> OtherPart | None:
        bare = name.removeprefix("model.")
        return next((part for prefix, part in self.parts.items() if bare.startswith(prefix)), None)


def _named(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """The weights by the names that a text model's folder has for them."""
    named: dict[str, Weight] = {}
    for stored, weight in weights.items():
        prefix = next((prefix for prefix in _PREFIXES if stored.startswith(prefix)), "")
        name = _PREFIXES.get(prefix, "") + stored.removeprefix(prefix)
        if name in named:
            raise CheckpointError(
                f"{weight.file}: {shown(stored)} and another tensor are both {shown(name)} of the text model; expected "
                "one: download the model again"
            )
        named[name] = weight if name == stored else replace(weight, name=name)
    return named


def _is_tied(config: Mapping[str, Any], text: Mapping[str, Any], weights: Mapping[str, Weight]) -> object:
    """Whether the head is the embedding. A head in the file is the model's, whatever is stated.

    So it is in transformers, which ties by default and writes that into config.json even where the file has a head.
    """
    if _HEAD in weights:
        return False
    stated = (value for value in (config.get(_TIE), text.get(_TIE)) if value is not None)
    return next(stated, True)

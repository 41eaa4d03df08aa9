"""The tokens that end a text, from the configs and the tokenizer of a model together."""

from collections.abc import Mapping

from karat.config import ModelConfig
from karat.errors import ConfigError
from karat.request import shown


def stated_end_ids(
    generation_config: Mapping[str, object] | None, config: ModelConfig, own: int | None, where: str
) -> tuple[int, ...]:
    """The ids of tokens that end a text, each once.

    First `own`, the tokenizer's eos_token; then those of generation_config.json (`where`) in their order or, if it has
    none, those of config.json. Ids may be outside the vocabulary. Raises ConfigError for values of a wrong type.
    """
    stated = _read_ids((generation_config or {}).get("eos_token_id"), where) or config.eos_token_ids
    return tuple(dict.fromkeys((*(() if own is None else (own,)), *stated)))


def _read_ids(value: object, where: str) -> tuple[int, ...]:
    """One id, a list of ids, or nothing."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if type(token_id) is not int or token_id < 0:
            raise ConfigError(f"{where}: eos_token_id={shown(value)}: expected a token id or a list of token ids")
    return tuple(ids)

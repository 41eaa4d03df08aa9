"""The tokens that end a text: what the configs and the tokenizer of a model say of them together."""

from collections.abc import Mapping

from karat.config import ModelConfig
from karat.errors import ConfigError
from karat.request import shown


def stated_end_ids(
    generation_config: Mapping[str, object] | None, config: ModelConfig, own: int | None, where: str
) -> tuple[int, ...]:
    """Each id once: `own`, the tokenizer's eos_token, first; then those of generation_config.json (`where`) or,
    where it names none, those of config.json, in their order.

    Some may lie outside the vocabulary. ConfigError for values of the wrong kind.
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

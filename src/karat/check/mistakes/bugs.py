"""Every bug that the diagnosis names, and what proposes mistakes of a layer. Both stand in the file of their part."""

from collections.abc import Mapping

from karat.check.mistakes import (
    attention,
    block,
    cache,
    embedding,
    experts,
    linear,
    loading,
    narrow,
    norm,
    quantised,
    recurrence,
    result,
    rope,
)
from karat.check.mistakes.catalogue import Bug

_OF_TEXT: Mapping[str, Bug] = {  # karat.check.text finds them
    "bos": Bug("the beginning-of-sequence token is missing or doubled", "add it exactly as tokenizer_config.json says"),
    "template": Bug(
        "the conversation is rendered otherwise", "use the model's chat template with the generation prompt"
    ),
    "special-tokens": Bug(
        "special tokens are split into ordinary pieces", "look special tokens up before splitting text"
    ),
    "eos": Bug(
        "a text does not end at the model's end tokens",
        "stop at every id of eos_token_id and generation_config.json, and at no other",
    ),
    "token-range": Bug(
        "the tokenizer has ids that the embedding has no rows for",
        "take the tokenizer that belongs to these weights, or add the rows",
    ),
    "greedy": Bug(
        "with temperature 0, a token that was not the likeliest was taken",
        "take the argmax of the raw logits, the lowest id of equals",
    ),
}
_OF_ATTENTION = (attention, cache, rope)  # of layers that have it; all in the order in which they propose
_OF_LAYERS = (norm, block, experts, recurrence)
_PARTS = (*_OF_ATTENTION, *_OF_LAYERS, linear, quantised, loading, embedding, narrow, result)
BUGS: Mapping[str, Bug] = {name: bug for part in _PARTS for name, bug in part.BUGS.items()} | dict(_OF_TEXT)
OF_ATTENTION = tuple(generate for part in _OF_ATTENTION for generate in part.OF_ATTENTION)
OF_LAYER = tuple(generate for part in _OF_LAYERS for generate in part.OF_LAYER)

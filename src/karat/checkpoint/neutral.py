"""Keys of config.json and GGUF files that Karat does not know, with values that say that there is no such thing.

Null, an empty text, list or object, false and zero say so, and 1 of a number to multiply by. Exceptions are names whose
false or zero takes away what every model here has, such as use_rope, and scales of attention, of which 1 is no default.
"""

import re

_NUMBER = re.compile(r"(?:^|[_.])(?:factor|scale|scaling|multiplier|mult|step)s?(?:$|[_.])")
_OF_SCORES = re.compile(r"attn|attention|softmax|score|query|(?:^|[_.])(?:q|k|qk|kq|kqv)(?:$|[_.])")
_SWITCH = re.compile(r"(?:use|is|has|with|apply|do|enable|add)_")
_HERE = re.compile(
    r"(?:rope|rotary(?:_(?:emb|embeddings?))?|position_embeddings?|causal(?:_mask|_attention)?|self_attention|attention|"
    r"rms_?norm|(?:pre|input|post_attention|final)_?(?:layer)?_?norm|norm|residual|softmax|silu|swish|swiglu|glu|"
    r"gated?(?:_mlp)?|mlp|ffn|lm_head)"
)
_ROTARY_SIZE = re.compile(r"(?:rope|rotary)_(?:dims?|dimension|ndims|pct|percent|fraction|partial.*)")


def says_nothing(name: str, value: object) -> bool:
    """Whether a key of this name, which nobody knows, can change no result. `value` is one of JSON."""
    name = name.lower()
    if value is None or (isinstance(value, str | list | tuple | dict) and not value):
        return True
    if not isinstance(value, bool | int | float):
        return False
    if value == 0:
        bare = _SWITCH.sub("", name, count=1) if _SWITCH.match(name) else name
        return not _HERE.fullmatch(bare) and not _ROTARY_SIZE.fullmatch(name)
    return value == 1 and value is not True and bool(_NUMBER.search(name)) and not _OF_SCORES.search(name)

"""All model families. A new one is one file beside this one and one line below."""

from collections.abc import Mapping
from typing import Any

from karat.models import llama, mistral, qwen2, qwen3
from karat.models.family import Family

FAMILIES: Mapping[str, Family[Any]] = {
    family.model_type: family
    for family in (
        llama.FAMILY,
        mistral.FAMILY,
        qwen2.FAMILY,
        qwen3.FAMILY,
    )
}

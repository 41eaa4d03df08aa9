"""All model families, and the folders with a text model of one in them. A new one is one file and one line below."""

from collections.abc import Mapping
from typing import Any

from karat.checkpoint.composite import Composite
from karat.models import (
    exaone4,
    gemma2,
    gemma3,
    gemma3_text,
    gemma4,
    gemma4_text,
    gemma4_unified,
    gemma4_unified_text,
    gpt_oss,
    granite,
    lfm2,
    lfm2_moe,
    llama,
    ministral3,
    mistral,
    mistral3,
    mixtral,
    muse_glimmer,
    muse_glimmer_text,
    olmo2,
    olmo3,
    olmoe,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_5_moe_text,
    qwen3_5_text,
    qwen3_moe,
    qwen3_next,
    seed_oss,
    smollm3,
    voxtral,
)
from karat.models.family import Family

FAMILIES: Mapping[str, Family[Any]] = {
    family.model_type: family
    for family in (
        exaone4.FAMILY,
        gemma2.FAMILY,
        gemma3_text.FAMILY,
        gemma4_text.FAMILY,
        gemma4_unified_text.FAMILY,
        gpt_oss.FAMILY,
        granite.FAMILY,
        lfm2.FAMILY,
        lfm2_moe.FAMILY,
        llama.FAMILY,
        ministral3.FAMILY,
        mistral.FAMILY,
        mixtral.FAMILY,
        muse_glimmer_text.FAMILY,
        olmo2.FAMILY,
        olmo3.FAMILY,
        olmoe.FAMILY,
        phi3.FAMILY,
        qwen2.FAMILY,
        qwen2_moe.FAMILY,
        qwen3.FAMILY,
        qwen3_5_moe_text.FAMILY,
        qwen3_5_text.FAMILY,
        qwen3_moe.FAMILY,
        qwen3_next.FAMILY,
        seed_oss.FAMILY,
        smollm3.FAMILY,
    )
}
COMPOSITES: Mapping[str, Composite] = {
    composite.model_type: composite
    for composite in (
        gemma3.COMPOSITE,
        gemma4.COMPOSITE,
        gemma4_unified.COMPOSITE,
        mistral3.COMPOSITE,
        muse_glimmer.COMPOSITE,
        qwen3_5.COMPOSITE,
        qwen3_5_moe.COMPOSITE,
        voxtral.COMPOSITE,
    )
}

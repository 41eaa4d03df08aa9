"""Qwen3.5 and 3.6 with experts as they are released: the text model beside a vision encoder and prediction."""

from dataclasses import replace

from karat.models import qwen3_5, qwen3_5_moe_text

COMPOSITE = replace(
    qwen3_5.COMPOSITE,
    model_type="qwen3_5_moe",
    architecture="Qwen3_5MoeForConditionalGeneration",
    texts=(qwen3_5_moe_text.FAMILY.model_type,),
)

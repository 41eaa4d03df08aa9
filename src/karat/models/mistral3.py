"""Mistral Small 3.1 and 3.2, Magistral Small, Ministral 3: a Mistral beside a vision encoder (Pixtral)."""

from karat.checkpoint.composite import Composite
from karat.checkpoint.unused import VISION
from karat.models import ministral3, mistral

COMPOSITE = Composite(
    model_type="mistral3",
    architecture="Mistral3ForConditionalGeneration",
    texts=(mistral.FAMILY.model_type, ministral3.FAMILY.model_type),
    parts={"vision_tower.": VISION, "multi_modal_projector.": VISION},
    keys=frozenset(
        """
        image_token_id image_token_index multimodal_projector_bias projector_hidden_act spatial_merge_size
        vision_config vision_feature_layer
        """.split()
    ),
)

"""Gemma 3 of 4B and more as it is released: the text model beside a vision encoder."""

from karat.checkpoint.composite import Composite
from karat.checkpoint.unused import VISION
from karat.models import gemma3_text

COMPOSITE = Composite(
    model_type="gemma3",
    architecture="Gemma3ForConditionalGeneration",
    texts=(gemma3_text.FAMILY.model_type,),
    parts={"vision_tower.": VISION, "multi_modal_projector.": VISION},
    keys=frozenset(
        """
        boi_token_id boi_token_index eoi_token_id eoi_token_index image_token_id image_token_index mm_tokens_per_image
        vision_config
        """.split()
    ),
)

"""Qwen3.5, 3.6 and 3.8 as they are released: the text model beside a vision encoder and multi-token prediction."""

from karat.checkpoint.composite import Composite
from karat.checkpoint.unused import PREDICTION, VISION
from karat.models import qwen3_5_text

COMPOSITE = Composite(
    model_type="qwen3_5",
    architecture="Qwen3_5ForConditionalGeneration",
    texts=(qwen3_5_text.FAMILY.model_type,),
    parts={"visual.": VISION, "mtp.": PREDICTION},
    keys=frozenset(
        """
        image_token_id video_token_id vision_config vision_end_token_id vision_start_token_id
        """.split()
    ),
)

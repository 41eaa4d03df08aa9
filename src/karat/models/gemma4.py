"""Gemma 4 as it is released, but for 12B: the text model beside encoders of images and, in E2B and E4B, of sound."""

from karat.checkpoint.composite import Composite
from karat.checkpoint.unused import AUDIO, VISION
from karat.models import gemma4_text

KEYS = frozenset(
    """
    audio_config audio_token_id boa_token_id boi_token_id eoa_token_id eoa_token_index eoi_token_id image_token_id
    video_token_id vision_config vision_soft_tokens_per_image
    """.split()
)
COMPOSITE = Composite(
    model_type="gemma4",
    architecture="Gemma4ForConditionalGeneration",
    texts=(gemma4_text.FAMILY.model_type,),
    parts={"vision_tower.": VISION, "embed_vision.": VISION, "audio_tower.": AUDIO, "embed_audio.": AUDIO},
    keys=KEYS,
)

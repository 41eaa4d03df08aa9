"""Gemma 4 12B as it is released: the text model beside what makes its input of images and of sound."""

from karat.checkpoint.composite import Composite
from karat.checkpoint.unused import AUDIO, VISION
from karat.models import gemma4_unified_text
from karat.models.gemma4 import KEYS

COMPOSITE = Composite(
    model_type="gemma4_unified",
    architecture="Gemma4UnifiedForConditionalGeneration",
    texts=(gemma4_unified_text.FAMILY.model_type,),
    parts={"vision_embedder.": VISION, "embed_vision.": VISION, "embed_audio.": AUDIO},
    keys=KEYS,
)

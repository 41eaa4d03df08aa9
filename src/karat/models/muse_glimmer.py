"""Muse Glimmer as it is released: the text model beside a vision encoder."""

from karat.checkpoint.composite import Composite
from karat.checkpoint.unused import VISION
from karat.models import muse_glimmer_text

COMPOSITE = Composite(
    model_type="muse_glimmer",
    architecture="MuseGlimmerForConditionalGeneration",
    texts=(muse_glimmer_text.FAMILY.model_type,),
    parts={"vision_tower.": VISION, "vision_adapter.": VISION, "vision_projection.": VISION},
    keys=frozenset(
        """
        image_token_id out_hidden_size projector_hidden_act projector_hidden_size video_token_id vision_config
        """.split()
    ),
)

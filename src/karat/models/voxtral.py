"""Voxtral Mini and Small (2025): a Llama beside an audio encoder (Whisper's)."""

from karat.checkpoint.composite import Composite
from karat.checkpoint.unused import AUDIO
from karat.models import llama

COMPOSITE = Composite(
    model_type="voxtral",
    architecture="VoxtralForConditionalGeneration",
    texts=(llama.FAMILY.model_type,),
    parts={"audio_tower.": AUDIO, "multi_modal_projector.": AUDIO},
    keys=frozenset({"audio_config", "audio_token_id", "projector_hidden_act"}),
    stated=(("head_dim",), ("num_key_value_heads",), ("rope_theta", "rope_parameters")),
)

"""The text model of Muse Glimmer with the ends of the whole: transformers has it beside an encoder of images alone."""

from typing import Any, ClassVar

import torch
from transformers import AutoModelForCausalLM, MuseGlimmerTextConfig
from transformers.models.muse_glimmer import modeling_muse_glimmer as theirs


class MuseGlimmerForCausalLM(theirs.MuseGlimmerPreTrainedModel):  # type: ignore[misc]
    """Computes what `MuseGlimmerForConditionalGeneration` makes of a text. `scaled` passes on what it is given: the
    head's result, multiplied, before the cap."""

    config: MuseGlimmerTextConfig
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: MuseGlimmerTextConfig) -> None:
        super().__init__(config)
        self.model = theirs.MuseGlimmerTextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.scaled = torch.nn.Identity()
        self.post_init()

    def forward(
        self, input_ids: torch.Tensor, cache: Any = None, **options: Any
    ) -> theirs.MuseGlimmerCausalLMOutputWithPast:
        options.pop("logits_to_keep", None)
        out = self.model(input_ids, cache=cache, **options)
        logits = self.scaled(self.lm_head(out.last_hidden_state) * self.config.output_multiplier)
        if cap := self.config.final_logit_softcapping:
            logits = torch.tanh(logits / cap) * cap
        return theirs.MuseGlimmerCausalLMOutputWithPast(logits=logits, cache=out.cache, attentions=out.attentions)


def register() -> None:
    """Lets transformers make this class of a text model's configuration, as it does of other families'."""
    AutoModelForCausalLM.register(MuseGlimmerTextConfig, MuseGlimmerForCausalLM, exist_ok=True)

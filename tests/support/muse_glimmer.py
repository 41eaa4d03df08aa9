"""The text model of Muse Glimmer alone, with the ends of the whole: transformers has it beside an encoder of images."""

from typing import Any, ClassVar

import torch
from transformers import MuseGlimmerTextConfig
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.muse_glimmer import modeling_muse_glimmer as theirs


class MuseGlimmerForCausalLM(theirs.MuseGlimmerPreTrainedModel):  # type: ignore[misc]
    config: MuseGlimmerTextConfig
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: MuseGlimmerTextConfig) -> None:
        super().__init__(config)
        self.model = theirs.MuseGlimmerTextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **options: Any) -> CausalLMOutputWithPast:
        options.pop("logits_to_keep", None)
        out = self.model(input_ids, **options)
        logits = self.lm_head(out.last_hidden_state) * self.config.output_multiplier
        if cap := self.config.final_logit_softcapping:
            logits = torch.tanh(logits / cap) * cap
        return CausalLMOutputWithPast(logits=logits, past_key_values=out.cache, attentions=out.attentions)

"""A transformers model run a layer at a time: its own forward, with the weights of a module read just before it runs.

Files are read by the safetensors library, not by Karat's reader (karat.check.record.hf_files). The two sides share the
code that compares them, and which rows of a tensor that files join are which (karat.checkpoint.joins).
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from karat.check.record.hf import Recorder
from karat.check.record.hf_files import HfFiles
from karat.check.record.hf_gemma4 import inputs_of
from karat.check.record.hf_modules import name_in, refuse_other_modules, require_text_model, scales_itself
from karat.check.trace.format import Array
from karat.check.trace.selection import EVERYTHING


def run_layerwise(
    folder: Path, ids: Sequence[int], logit_rows: Sequence[int], on_part: Callable[[dict[str, Array]], None]
) -> None:
    """transformers' float32 run over `ids`. `on_part` gets the arrays of the embedding, of each layer, of the end.

    Raises ExecutorError for modules that no supported family has, CheckpointError for a missing tensor.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True).get_text_config()
    config._experts_implementation = "eager"  # grouped products take no matrix of odd size
    require_text_model(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
        ).eval()
    refuse_other_modules(model)
    base = model.model
    rotary = name_in(base, "rotary_emb")
    setattr(base, rotary, type(getattr(base, rotary))(model.config))  # frequencies are computed, not loaded
    inputs = inputs_of(base)
    for embedding in (base.embed_tokens, *inputs.values()):
        if scales_itself(embedding):  # by a number of the config's, which no file has
            embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    files, recorder = HfFiles(folder, shapes), Recorder(EVERYTHING)
    total = recorder.end = len(ids)

    def load(module: Any, prefix: str) -> None:
        # A copy lies where torch puts a weight, on which the bits of a product depend; in a file tensors lie anywhere.
        module.load_state_dict(
            {name: files.tensor(f"{prefix}.{name}").to(torch.float32, copy=True) for name in module.state_dict()},
            assign=True,
        )

    with torch.no_grad(), ExitStack() as stack:

        def before(module: Any, prefix: str) -> None:
            stack.callback(module.register_forward_pre_hook(lambda m, _args: load(m, prefix)).remove)

        def after(module: Any, then: Callable[[], None]) -> None:
            def hook(done: Any, _args: Any, _out: Any) -> None:
                done.to("meta")
                then()

            stack.callback(module.register_forward_hook(hook).remove)

        def hand_over() -> None:
            on_part(recorder.take(total))

        before(base.embed_tokens, "model.embed_tokens")
        for name, module in inputs.items():
            before(module, f"model.{name}")
        norm = name_in(base, "norm")
        before(getattr(base, norm), f"model.{norm}")
        before(model.lm_head, "lm_head" if "lm_head.weight" in files.names else "model.embed_tokens")
        for index, layer in enumerate(base.layers):
            before(layer, f"model.layers.{index}")
        stack.enter_context(recorder.on(model))
        # These hooks run after the recorder's: a module's weights are dropped once its results are recorded.
        for module in base.layers:
            after(module, hand_over)
        for module in (base.embed_tokens, *inputs.values(), getattr(base, norm), model.lm_head):
            after(module, lambda: None)
        first = base.layers[0].register_forward_pre_hook(lambda _m, _args: hand_over())
        stack.callback(first.remove)  # the embedding's part ends with what the first layer reads
        model(torch.tensor([list(ids)]), use_cache=False)
    end = recorder.take(total)
    rows = list(logit_rows)
    on_part({name: array[rows] if len(array) == total else array for name, array in end.items()})

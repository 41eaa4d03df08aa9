"""Traces of transformers models, through hooks: what a model really computed, right or faulty.

Nothing is computed a second time. Module outputs and inputs come from forward hooks, what functions of the model's
source file compute from these functions (karat.check.record.hf_attention, hf_delta_nets, hf_short_convs).
"""

import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from karat.check.record import hf_gemma4
from karat.check.record.executors import Steps
from karat.check.record.hf_attention import Attentions
from karat.check.record.hf_delta_nets import DeltaNets
from karat.check.record.hf_files import HfFiles
from karat.check.record.hf_modules import (
    by_token,
    has_gate,
    is_gated,
    made_of_rows,
    mixer_of,
    mixers_of,
    other_modules,
    part_of,
    part_or_none,
    reader_of_residual,
    refuse_other_modules,
    require_text_model,
)
from karat.check.record.hf_observers import rows_seen
from karat.check.record.hf_short_convs import ShortConvs
from karat.check.trace.format import MASKED, Array, Trace, make_info
from karat.check.trace.selection import EVERYTHING, Selection, padded
from karat.config import FloatName
from karat.errors import ExecutorError

_DTYPES: dict[torch.dtype, FloatName] = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
_MIXERS = {
    "self_attn": "q_proj k_proj v_proj q_norm k_norm o_proj".split(),
    "linear_attn": "in_proj_qkv in_proj_z in_proj_b in_proj_a in_proj_ba out_proj".split(),
    "conv": "in_proj out_proj".split(),
}
_LAYER_OUTPUTS = (
    "input_layernorm post_attention_layernorm pre_feedforward_layernorm mlp.gate_proj mlp.up_proj mlp.down_proj "
    "post_feedforward_layernorm"
).split()
_OPTIONAL = frozenset(
    "q_norm k_norm input_layernorm pre_feedforward_layernorm post_feedforward_layernorm "
    "in_proj_qkv in_proj_z in_proj_b in_proj_a in_proj_ba".split()
)
# Results that are recorded as the input of the module that reads them.
_LAYER_INPUTS = {
    "self_attn.o_proj": "self_attn.attention",
    "linear_attn.out_proj": "linear_attn.norm",
    "conv.out_proj": "conv.gated",
    "mlp.down_proj": "mlp.act",
}
_GATED_INPUTS = _LAYER_INPUTS | {"self_attn.o_proj": "self_attn.gated"}
_GATED_BY_Q_INPUTS = _GATED_INPUTS | {"self_attn.q_norm": "self_attn.q"}  # where q_proj has the gate's rows


def load_hf(path: str, dtype: FloatName | None = None) -> Any:
    """A transformers model with eager attention, in `dtype` (float32 by default). Never runs code from the folder.

    Of a folder with several models in it, the text model. CheckpointError where the files lack a tensor, which
    transformers would draw at random; those that they join to one are its rows.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()
    wanted = {name: kind for kind, name in _DTYPES.items()}[dtype or "float32"]
    config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    config._experts_implementation = "eager"  # grouped products take no matrix of odd size
    require_text_model(config.get_text_config())
    kind = AutoModelForCausalLM if config.get_text_config() is config else AutoModelForImageTextToText
    model, loaded = kind.from_pretrained(
        path,
        config=config,
        dtype=wanted,
        attn_implementation="eager",
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
    )
    if missing := loaded["missing_keys"]:
        _fill(model, missing, Path(path))
    model.eval()
    return model if kind is AutoModelForCausalLM else text_part(model)


def _fill(model: Any, names: Collection[str], folder: Path) -> None:
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    files = HfFiles(folder, shapes)
    model.load_state_dict({name: files.tensor(name) for name in names}, strict=False)


def text_part(model: Any) -> Any:
    """The text model in a transformers model of several parts, with the same modules in it."""
    from transformers import AutoModelForCausalLM

    require_text_model(model.config.get_text_config())
    with torch.device("meta"):
        text = AutoModelForCausalLM.from_config(model.config.get_text_config(), attn_implementation="eager")
    text.model, text.lm_head = model.model.language_model, model.lm_head
    return text.eval()


def word_for_cache(model: Any) -> str:
    """What a transformers model calls its cache: `cache` since 5.24, `past_key_values` before."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def record_hf(model: Any, steps: Steps, *, selection: Selection = EVERYTHING, cache: Any = None) -> Trace:
    """Run `model` (transformers, eager attention) over one sequence and record it. `cache`: an empty cache to use.

    Without a given cache a model whose layers keep states computes all tokens in one step, whatever `steps` says, as
    releases of transformers lost them (transformers#45513). Raises ExecutorError for a model whose modules are not
    named as those of a supported family.
    """
    config = model.config
    if config._attn_implementation != "eager":
        raise ExecutorError(
            f"attention implementation {config._attn_implementation!r}: scores exist only with eager attention; load "
            "the model with attn_implementation='eager'"
        )
    selection.check(config.num_hidden_layers, config.num_attention_heads)
    total, given, decode = steps.total, len(steps.prompt), steps.decode
    cached = cache is not None or mixers_of(model) <= {"self_attn"}
    if not cached:
        steps = Steps(_continued(model, steps))
    recorder = Recorder(selection)
    ids = list(steps.prompt)
    starts: list[int] = []
    past, word = cache, word_for_cache(model)
    done = 0
    with torch.no_grad(), recorder.on(model):
        while done < total:
            if done >= len(ids):
                ids.append(recorder.last_argmax)
            stop = steps.stop_after(done)
            recorder.end = stop
            outputs = model(torch.tensor([ids[done:stop]]), use_cache=cached, **{word: past})
            past = outputs[word] if cached else None
            starts.append(done)
            done = stop
    arrays = recorder.arrays(total)
    rows = tuple(selection.rows_for(total, config.vocab_size))
    partial = {}
    if len(rows) < total:
        partial = {name: rows for name in ("lm_head", "lm_head_uncapped", "model.norm") if name in arrays}
        arrays |= {name: arrays[name][list(rows)] for name in partial}
    heads = (
        {}
        if selection.heads is None
        else {name: selection.heads for name in arrays if name.endswith((".scores", ".weights"))}
    )
    dtype = _DTYPES[next(model.parameters()).dtype]
    import transformers

    info = make_info(
        ids,
        steps=tuple(starts),
        dtype=dtype,
        kv_dtype=dtype,
        executor=f"transformers {transformers.__version__}",
        rows=partial,
        heads=heads,
        generated=tuple(ids[given:]) or None,
        sampling={"temperature": 0} if decode else None,
    )
    return Trace(info, arrays)


def _continued(model: Any, steps: Steps) -> tuple[int, ...]:
    """The prompt and the tokens that follow it, each of a pass over all before it, without a cache."""
    ids = list(steps.prompt)
    with torch.no_grad():
        for _ in range(steps.decode):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return tuple(ids)


class Recorder:
    """Hooks on a transformers model, and the results that they saw since the last `take`."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._parts: dict[str, list[torch.Tensor]] = defaultdict(list)
        self._embedded: torch.Tensor | None = None
        self._layer = 0
        self._attentions = Attentions(self._keep_of("self_attn"), lambda: self.end)
        self._delta_nets, self._short_convs = DeltaNets(self._keep_of("linear_attn")), ShortConvs(self._keep_of("conv"))
        self.end = 0  # tokens computed when this step is done

    @property
    def last_argmax(self) -> int:
        return int(self._parts["lm_head"][-1][-1].argmax())

    def _keep_of(self, mixer: str) -> Callable[[str, torch.Tensor], None]:
        return lambda name, value: self._keep(f"model.layers.{self._layer}.{mixer}.{name}", value)

    def _keep_embedded(self, module: Any, _args: Any, out: torch.Tensor) -> None:
        if made_of_rows(module) is None:
            self._embedded = out
            self._keep("model.embed_tokens", out)

    def _keep_made(self, name: str, args: tuple[torch.Tensor, ...]) -> None:
        """What the first layer reads, if the model made it of the embedding."""
        if args[0] is not self._embedded:
            self._keep(name, args[0])

    def _keep(self, name: str, value: torch.Tensor) -> None:
        """A result [1, tokens, …]."""
        if self._selection.keeps(name):
            self._parts[name].append(value.detach()[0].clone())

    @contextmanager
    def on(self, model: Any) -> Iterator[None]:
        base = model.model
        source = sys.modules[type(base).__module__]
        with ExitStack() as stack:

            def output(module: Any, name: str) -> None:
                def hook(_module: Any, _args: Any, out: Any) -> None:
                    self._keep(name, by_token(base, name, out[0] if isinstance(out, tuple) else out))

                stack.callback(module.register_forward_hook(hook).remove)

            def argument(module: Any, name: str) -> None:
                stack.callback(module.register_forward_pre_hook(lambda _m, args: self._keep(name, args[0])).remove)

            refuse_other_modules(model)
            try:
                embedded = base.embed_tokens.register_forward_hook(self._keep_embedded)
                stack.callback(embedded.remove)
                if made_of_rows(base.embed_tokens) is not None:
                    stack.enter_context(rows_seen(base.embed_tokens, self._keep_rows))
                output(part_of(base, "norm"), "model.norm")
                made = f"model.embed_tokens_{made_of_rows(base.embed_tokens) or 'scaled'}"
                first = base.layers[0].register_forward_pre_hook(lambda _m, args: self._keep_made(made, args))
                stack.callback(first.remove)
                hf_gemma4.hook_inputs(base, self._keep, output, stack)
                stack.callback(part_of(base, "rotary_emb").register_forward_hook(self._keep_rotary).remove)
                for number, layer in enumerate(base.layers):
                    self._hook_layer(layer, number, output, argument, stack)
            except AttributeError as fault:
                raise other_modules(model, fault) from None
            if getattr(model.config, "final_logit_softcapping", None):
                output(getattr(model, "scaled", model.lm_head), "lm_head_uncapped")
            # What the model makes of its head: logits may be scaled, or have a cap.
            stack.callback(model.register_forward_hook(lambda _m, _args, out: self._keep("lm_head", out.logits)).remove)
            functions = dict(self._attentions.functions)
            mixers = mixers_of(model)
            functions |= self._delta_nets.functions if "linear_attn" in mixers else {}
            functions |= self._short_convs.functions if "conv" in mixers else {}
            for name, wrap in functions.items():
                original = getattr(source, name, None)
                if original is None:
                    raise ExecutorError(f"{source.__name__} has no {name}; this transformers is not understood")
                setattr(source, name, wrap(original))
                stack.callback(setattr, source, name, original)
            yield

    def _hook_layer(self, layer: Any, number: int, output: Any, argument: Any, stack: ExitStack) -> None:
        prefix = f"model.layers.{number}"
        output(layer, prefix)
        mlp, mixer = part_of(layer, "mlp"), mixer_of(layer)
        experts = getattr(mlp, "experts", None)
        if experts is not None:
            self._hook_experts(mlp, f"{prefix}.mlp", output, stack)
        if mixer == "conv":
            stack.callback(layer.conv.in_proj.register_forward_hook(self._short_convs.begin).remove)
        absent = tuple(
            f"{part}." for part in (*_MIXERS, "mlp") if part != mixer and (part != "mlp" or experts is not None)
        )
        optional = _OPTIONAL | hf_gemma4.optional_in(layer)
        for part in (*_LAYER_OUTPUTS, *hf_gemma4.outputs_of(layer), *(f"{mixer}.{name}" for name in _MIXERS[mixer])):
            if part.startswith(absent):
                continue
            find = part_or_none if part.rpartition(".")[2] in optional else part_of
            if (module := find(layer, part)) is not None:
                output(module, f"{prefix}.{part}")
        inputs = _LAYER_INPUTS
        if mixer == "self_attn" and is_gated(layer.self_attn):
            inputs = _GATED_BY_Q_INPUTS if has_gate(layer.self_attn) else _GATED_INPUTS
        for part, name in inputs.items():
            if not part.startswith(absent):
                argument(part_of(layer, part), f"{prefix}.{name}")
        argument(part_of(layer, reader_of_residual(layer)), f"{prefix}.attention_residual")

        def enter(_module: Any, _args: Any) -> None:
            self._layer = number

        stack.callback(layer.register_forward_pre_hook(enter).remove)
        self._attentions.hook(layer, prefix, output, stack)
        hf_gemma4.hook_layer(layer, number, self._keep, argument, stack)

    def _hook_experts(self, mlp: Any, prefix: str, output: Any, stack: ExitStack) -> None:
        """The router's logits, what it chose, and the sum of the experts. Experts see tokens without a batch."""
        output(mlp, prefix)

        def flat(module: Any, name: str) -> None:
            def hook(_module: Any, _args: Any, out: Any) -> None:
                self._keep(f"{prefix}.{name}", (out[0] if isinstance(out, tuple) else out)[None])

            stack.callback(module.register_forward_hook(hook).remove)

        def chosen(_module: Any, args: Any) -> None:
            _, ids, weights = args
            self._keep(f"{prefix}.chosen_ids", ids[None].float())
            self._keep(f"{prefix}.chosen_weights", weights[None])

        router = "router" if hasattr(mlp, "router") else "gate"
        flat(getattr(mlp, router), router)
        if (shared := getattr(mlp, "shared_expert", None)) is not None:
            flat(mlp.experts, "experts")
            flat(mlp.shared_expert_gate, "shared_expert_gate")
            for part in ("gate_proj", "up_proj", "down_proj"):
                flat(getattr(shared, part), f"shared_expert.{part}")

            def inner(_module: Any, args: Any) -> None:
                self._keep(f"{prefix}.shared_expert.act", args[0][None])

            stack.callback(shared.down_proj.register_forward_pre_hook(inner).remove)
        stack.callback(mlp.experts.register_forward_pre_hook(chosen).remove)

    def _keep_rows(self, rows: torch.Tensor) -> None:
        self._embedded = rows
        self._keep("model.embed_tokens", rows)

    def _keep_rotary(self, module: Any, _args: Any, out: Any) -> None:
        if not hasattr(module, "inv_freq"):  # layers have several RoPEs
            return
        half = out[0].shape[-1] // 2
        self._keep("model.rotary_emb.cos", out[0][..., :half])
        self._keep("model.rotary_emb.sin", out[1][..., :half])
        self._parts["model.rotary_emb.inv_freq"] = [module.inv_freq.detach().clone()]

    def take(self, num_tokens: int) -> dict[str, Array]:
        """The arrays recorded so far; the recorder forgets them."""
        arrays = self.arrays(num_tokens)
        self._parts.clear()
        return arrays

    def arrays(self, num_tokens: int) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        for name, parts in self._parts.items():
            # bfloat16 is widened, exactly.
            plain = [(p.float() if p.dtype == torch.bfloat16 else p).numpy() for p in parts]
            if name.endswith(".scores"):
                joined = padded([np.where(p <= MASKED, -np.inf, p).astype(p.dtype) for p in plain], num_tokens, -np.inf)
            elif name.endswith(".weights"):
                joined = padded(plain, num_tokens, 0.0)
            else:
                arrays[name] = np.concatenate(plain)
                continue
            heads = self._selection.heads
            arrays[name] = joined if heads is None else joined[list(heads)]
        return arrays

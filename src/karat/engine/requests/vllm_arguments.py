"""Arguments of vLLM's LLM that Karat's LLM does not have: those without effect, and advice for the others."""

import inspect
import logging
from collections.abc import Callable, Mapping

from karat.errors import UsageError
from karat.request import SamplingParams, unknown_name

_log = logging.getLogger(__name__)

# These cannot change an answer of Karat, and their absence is not noticed.
_WITHOUT_EFFECT = {
    "gpu_memory_utilization": "there is no GPU; kv_cache_bytes bounds the KV cache",
    "enforce_eager": "there are no CUDA graphs",
    "max_seq_len_to_capture": "there are no CUDA graphs",
    "trust_remote_code": "code of a checkpoint is never run",
    "disable_log_stats": "nothing is logged in every step",
    "disable_custom_all_reduce": "ranks share memory",
    "swap_space": "nothing is swapped",
    "enable_chunked_prefill": "prompts are always computed in chunks",
    "tokenizer_mode": "there is one kind of tokenizer",
    "use_tqdm_on_load": "progress= is called while weights are loaded",
    # of llama-cpp-python
    "n_gpu_layers": "Karat computes on the CPU",
    "n_batch": "no result depends on it",
    "n_ubatch": "no result depends on it",
    "use_mmap": "files are always mapped",
    "use_mlock": "weights are packed once",
    "flash_attn": "attention has one form",
    "verbose": "there is nothing to switch off: levels of the logger karat decide",
}
_REPLACED = {
    "revision": "name it with the model: org/name@revision",
    "tokenizer_revision": "name it with the tokenizer: org/name@revision",
    "code_revision": "code of a checkpoint is never run; leave it out",
    "download_dir": "models lie in the cache of the hub: set HF_HOME or HF_HUB_CACHE",
    "hf_token": "set HF_TOKEN",
    "load_format": "the format is read from the files; leave it out",
    "quantization": "a quantised file says so itself, and quantize= 'q8_0' or 'q4_0' quantises while loading",
    "kv_cache_dtype": "use kv_dtype=",
    "kv_cache_memory_bytes": "use kv_cache_bytes=",
    "num_gpu_blocks_override": "use num_blocks=",
    "block_size": "blocks have 16 tokens; leave it out",
    "mamba_cache_dtype": "states of recurrent layers are float32; leave it out",
    "mamba_ssm_cache_dtype": "states of recurrent layers are float32; leave it out",
    "mamba_cache_mode": "use state_cache_bytes=, the memory of the states that later prompts begin with",
    "mamba_block_size": "states are kept where prompts end and go on; leave it out",
    "cpu_offload_gb": "Karat computes on the CPU; leave it out",
    "pipeline_parallel_size": "use tensor_parallel_size=",
    "skip_tokenizer_init": "a model without a tokenizer takes one by tokenizer=; leave it out",
    "default_chat_template_kwargs": "use chat_template_kwargs=",
    "override_generation_config": "give sampling_params= with each call",
    "enable_lora": "there are no adapters yet",
    "served_model_name": "a name is for a server; leave it out",
    "max_logprobs": "the limit is 64 for everybody; leave it out, and use LLM.logits for more",
    "attention_backend": "each executor has one attention; leave it out",
    "async_scheduling": "steps are scheduled one after the other; leave it out",
    "logits_processors": "logit_bias in sampling_params= adds to the scores of tokens",
    "compilation_config": "nothing is compiled while a model is loaded; leave it out",
    "speculative_config": "there is no speculative decoding yet",
    "limit_mm_per_prompt": "there are no images yet",
    "runner": "there is generation only; leave it out",
    "task": "there is generation only; leave it out",
    # of llama-cpp-python
    "n_ctx": "use max_model_len=",
    "n_threads": "use threads=",
    "n_threads_batch": "use threads=",
    "model_path": "use model=",
    "chat_format": "use chat_template=, a file or its text",
    "embedding": "there are no embeddings yet",
    "lora_path": "there are no adapters yet",
    "draft_model": "there is no speculative decoding yet",
}
_OF_CALLS = {
    "lora_request": "there are no adapters yet",
    "params": "use sampling_params=",
    "stream": "LLM.stream and LLM.stream_chat give tokens as they come",
    "prompt_token_ids": "give them as prompts=, as a list of integers or {'prompt_token_ids': [...]}",
    "template_variables": "use chat_template_kwargs=",
    "chat_template": "give it to the constructor, as chat_template=",
    "chat_template_content_format": "text parts are always joined; leave it out",
    "mm_processor_kwargs": "there are no images yet",
}

_METHODS = {
    **dict.fromkeys(("embed", "encode", "score", "classify", "create_embedding"), "there are no embeddings yet"),
    **dict.fromkeys(("create_completion", "complete"), "use LLM.generate, or LLM.stream for tokens as they come"),
    "create_chat_completion": "use LLM.chat, or LLM.stream_chat for tokens as they come",
    "beam_search": "there is none; ask for n choices and take the best by cumulative_logprob",
    "tokenize": "use LLM.get_tokenizer().encode(text)",
    "detokenize": "use LLM.get_tokenizer().decode(token_ids)",
}


def advice_on_method(name: str) -> str | None:
    """What to do instead of a method of other engines' that LLM does not have."""
    return _METHODS.get(name)


def settle_constructor(arguments: Mapping[str, object], constructor: Callable[..., None]) -> None:
    """Log each of `arguments` at INFO as without effect. Raises UsageError for any other name.

    `constructor` is the function without these arguments; the error advises names of its parameters.
    """
    for name in arguments:
        if name not in _WITHOUT_EFFECT:
            raise UsageError(unknown_name("LLM", name, _names(constructor), _REPLACED, _WITHOUT_EFFECT))
    for name in arguments:
        _log.info("%s has no effect: %s", name, _WITHOUT_EFFECT[name])


def refuse(method: str, arguments: Mapping[str, object], function: Callable[..., object]) -> None:
    """Raise UsageError, with advice, if there are `arguments`, which the method `function` of LLM does not take."""
    for name in arguments:
        if name in SamplingParams.__dataclass_fields__:
            raise UsageError(f"LLM.{method} has no {name}; give it as SamplingParams({name}=…)")
        raise UsageError(unknown_name(f"LLM.{method}", name, _names(function), _OF_CALLS))


def _names(function: Callable[..., object]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.name != "self" and p.kind is not inspect.Parameter.VAR_KEYWORD]

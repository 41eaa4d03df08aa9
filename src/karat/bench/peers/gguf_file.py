"""A GGUF file of the weights that Karat runs: every matrix has the same blocks, embedding and head included.

Vectors are float32, as the format demands. The vocabulary is a placeholder: a measurement uses token ids only.
"""

from functools import partial
from pathlib import Path

from karat.bench.peers.api import PeerModel
from karat.checkpoint import Weight, requantized_type
from karat.checkpoint.gguf.rope import STORED_AS_FACTORS
from karat.checkpoint.gguf.writer import numbers, scalar, string, strings, write_gguf
from karat.convert.conversion import own_tensors, rope_factors, stated_tensors
from karat.convert.metadata import Pairs, different_in_llama_cpp, foreign_to_llama_cpp, model_pairs, rope_of
from karat.convert.mix import MIXES
from karat.errors import ConfigError, UsageError
from karat.quant import FORMATS
from karat.text.placeholder import placeholder_tokens

_NORMAL, _CONTROL = 1, 3  # kinds of tokens


def write_peer_file(path: Path, model: PeerModel) -> None:
    """Write `path`, with one tensor in memory at a time. UsageError for settings of config.json that the file cannot
    express.
    """
    config = model.config
    try:
        pairs = [*model_pairs(config, "karat bench"), *_vocabulary(config.vocab_size)]
    except ConfigError as fault:
        raise UsageError(f"a peer's GGUF file cannot be made of the model: {fault}; measure it without peer") from fault
    if reason := foreign_to_llama_cpp(config) or different_in_llama_cpp(config):
        raise UsageError(f"llama.cpp would not measure the same model: {reason}; measure it without peer")
    tensors = own_tensors(config, model.weights, partial(_type, model), model.stored)
    embedding = next(tensor for tensor in tensors if tensor.name == "token_embd.weight")
    if rope_of(config).rope_type in STORED_AS_FACTORS:
        tensors.append(rope_factors(config))
    tensors += stated_tensors(config)
    if embedding.dtype in MIXES:  # otherwise it is a mix, or no type at all
        pairs.append(("general.file_type", scalar("UINT32", MIXES[embedding.dtype].file_type)))
    pairs.append(("general.quantization_version", scalar("UINT32", 2)))
    write_gguf(path, pairs, tensors)


def _vocabulary(vocab_size: int) -> Pairs:
    tokens = placeholder_tokens(vocab_size)
    last = len(tokens) - 1
    return [
        ("tokenizer.ggml.model", string("gpt2")),
        ("tokenizer.ggml.pre", string("qwen2")),
        ("tokenizer.ggml.tokens", strings(tokens)),
        ("tokenizer.ggml.token_type", numbers("INT32", [_NORMAL] * last + [_CONTROL])),  # OpenVINO fails without one
        ("tokenizer.ggml.merges", strings(["Ġ a"])),  # llama.cpp wants one
        *((f"tokenizer.ggml.{name}_token_id", scalar("UINT32", last)) for name in ("bos", "eos", "padding")),
        ("tokenizer.ggml.add_bos_token", scalar("BOOL", False)),
    ]


def _type(model: PeerModel, weight: Weight) -> str:
    return weight.dtype if model.quantize is None else requantized_type(weight, FORMATS[model.quantize.upper()])

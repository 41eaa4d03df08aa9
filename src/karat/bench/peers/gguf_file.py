"""A GGUF file of the weights that Karat runs: every matrix has the same blocks, embedding and head included.

Vectors are float32, as the format demands. The vocabulary is a placeholder: a measurement uses token ids only.
"""

from functools import partial
from pathlib import Path

from karat.bench.peers.api import PeerModel
from karat.checkpoint import requantized_type
from karat.checkpoint.gguf.writer import NewTensor, numbers, scalar, string, strings, write_gguf
from karat.convert.conversion import rope_factors, stored_tensor
from karat.convert.metadata import Pairs, model_pairs, rope_of
from karat.convert.mix import MIXES
from karat.errors import UsageError
from karat.quant import FORMATS
from karat.text.placeholder import placeholder_tokens

_NORMAL, _CONTROL = 1, 3  # kinds of tokens


def write_peer_file(path: Path, model: PeerModel) -> None:
    """Write `path`, with one tensor in memory at a time. UsageError for settings of config.json that the file cannot
    express.
    """
    config = model.config
    rope = rope_of(config)
    if rope.rope_type not in ("default", "llama3"):
        raise UsageError(
            f"a peer's GGUF file cannot be made of a model with {rope.rope_type} RoPE; expected default or llama3; "
            "measure it without peer"
        )
    if any(shape.window is not None for shape in config.shapes):
        raise UsageError("a peer's GGUF file cannot be made of a model with a sliding window; measure it without peer")
    tensors = [_tensor(model, name) for name in model.weights]
    embedding = tensors[[*model.weights].index("model.embed_tokens.weight")]
    if rope.rope_type == "llama3":
        tensors.append(rope_factors(config))
    pairs = [*model_pairs(config, "karat bench"), *_vocabulary(config.vocab_size)]
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


def _tensor(model: PeerModel, name: str) -> NewTensor:
    weight = model.weights[name]
    dtype = weight.dtype if model.quantize is None else requantized_type(weight, FORMATS[model.quantize.upper()])
    return stored_tensor(model.config, name, dtype, weight.shape, partial(model.stored, name))

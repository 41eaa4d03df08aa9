"""The native executor's promise, for every format that it computes on: no setting changes a bit of the logits.

Those that test_invariance.py has, with sizes more awkward than the others allow, are not tried again.
"""

from pathlib import Path

import numpy as np
import pytest

from karat.check.session.same_bits import invariance, settings_for
from karat.checkpoint import requantize
from karat.checkpoint.weights import Weight
from karat.config import Activations, embedded_model_path
from karat.machine.extension import native
from karat.models.decoder import weight_specs
from karat.models.opening import open_model
from karat.models.registry import build, find_weights, read_config
from karat.ops.native import NativeOps, unavailable_reason
from karat.quant import FORMATS
from karat.text import Tokenizer
from tests.support.parallel import config_of
from tests.support.weights import weight_of
from tools.peers.models import FAMILIES, make_config
from tools.peers.recorded import DATA, STORED

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

# Rows of 256 and, in down_proj, of three blocks of 256 for eight leaves; five heads of 64 make o_proj's rows ten of 32.
SIZE = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 1,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 77,
}
MIXTURES = ("gpt_oss", "mixtral", "olmoe", "qwen2_moe", "qwen3_5_moe_text", "qwen3_moe")
ALREADY_TRIED = ("F32", "F16", "BF16", "Q8_0", "Q4_0")


def stored_as(stored: str, weight: Weight) -> Weight:
    """A float32 weight, quantised if it is a matrix."""
    if len(weight.shape) < 2 or (stored == "E4M3" and weight.shape[-1] % 128):
        return weight
    if FORMATS[stored].pack is None or stored == "MXFP4":  # rounded by the tests
        return weight_of(weight.to_array(np.dtype(np.float32)).astype(np.float32), stored, weight.name)
    return requantize(weight, FORMATS[stored]).weight


class Stored:
    """A Prepare: all weights in a type, as far as they can be; `taken` are the types that came of it."""

    def __init__(self, stored: str) -> None:
        self._stored = stored
        self.taken: set[str] = set()

    def __call__(self, weight: Weight) -> Weight:
        result = stored_as(self._stored, weight)
        self.taken.add(result.dtype)
        return result

    def stored_type(self, weight: Weight) -> str:
        return stored_as(self._stored, weight).dtype


class InMemory:
    """A Checkpoint of float32 weights drawn at random."""

    def __init__(self, config: dict[str, object]) -> None:
        rng = np.random.default_rng(3)
        self.path = Path("in-memory")
        self.weights = {}
        for spec in weight_specs(read_config(config)):
            deviation = 0.1 if len(spec.shape) == 1 else 1.5 / np.sqrt(spec.shape[1])
            values = rng.standard_normal(spec.shape) * deviation + ("norm" in spec.source)
            data = values.astype("<f4").reshape(-1).view(np.uint8)
            shape = spec.stored[0] if spec.stored else spec.shape
            self.weights[spec.source] = Weight(spec.source, "F32", shape, data, self.path)


def check(model: object, lengths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    texts = [rng.integers(0, 32, n).tolist() for n in lengths]
    rows = list(invariance(model, Tokenizer.from_folder(embedded_model_path()), texts))  # type: ignore[arg-type]
    assert len(rows) == len(settings_for(NativeOps(), len(texts))) >= 11
    assert all(row.same for row in rows), [row.setting.name for row in rows if not row.same]


@pytest.mark.parametrize("stored", [name for name in native().formats() if name not in ALREADY_TRIED])
def test_every_native_format(stored: str) -> None:
    family = ("llama", "qwen3", "mistral")[native().formats().index(stored) % 3]
    config = make_config(family, SIZE)
    prepare = Stored(stored)
    model = build(read_config(config), NativeOps(), InMemory(config), num_positions=512, prepare=prepare)
    assert stored in prepare.taken
    check(model, (70, 1, 9))


@pytest.mark.drawn(3)
@pytest.mark.parametrize("stored", [name for name in native().formats() if name in FORMATS])
def test_experts_of_every_block_format(stored: str) -> None:
    """Of each family with experts in turn, in rows of whole blocks."""
    family = MIXTURES[native().formats().index(stored) % len(MIXTURES)]
    config = config_of(family, vocab_size=77, num_attention_heads=4)
    prepare = Stored(stored)
    model = build(read_config(config), NativeOps(), InMemory(config), num_positions=512, prepare=prepare)
    assert {loaded.format for spec, loaded in model.parts.items() if ".experts." in spec.source and spec.shape[1:]} == {
        stored
    }
    check(model, (70, 1, 9))


@pytest.mark.parametrize("activations", ["int24", "int16", "int8"])
@pytest.mark.parametrize("file", [f"{family}-{name}.gguf" for family, names in STORED.items() for name in names[:1]])
def test_files_of_llama_cpp(file: str, activations: Activations) -> None:
    """With the mixes that it makes, and every width of activations."""
    checkpoint = open_model(DATA / file)
    config = read_config(checkpoint.config)
    assert len({weight.dtype for weight in find_weights(config, checkpoint).values()}) > 1
    check(build(config, NativeOps(activations=activations), checkpoint, num_positions=512), (20, 70))


def test_every_family_has_a_file() -> None:
    assert set(STORED) == set(FAMILIES)

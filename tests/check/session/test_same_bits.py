"""The native executor's promise: no setting changes a bit of the logits."""

import os
import random
from pathlib import Path

import numpy as np
import pytest

from karat.check.session.same_bits import invariance, invariance_of, settings_for
from karat.checkpoint import requantize
from karat.checkpoint.weights import Weight
from karat.config import embedded_model_path
from karat.models.registry import build, read_config
from karat.ops.native import NativeOps, supported_isas, unavailable_reason
from karat.quant import FORMATS
from karat.text import Tokenizer

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)
pytest.importorskip("torch", reason="random models are transformers models")
from tests.support import forward, random_models

STORED = ("F32", "F16", "BF16", "Q8_0", "Q4_0")


def stored_as(stored: str, weight: Weight) -> Weight:
    """A float32 weight of the same name in another type, its values rounded; vectors and odd rows stay."""
    if stored in FORMATS:
        return requantize(weight, FORMATS[stored]).weight
    values = weight.to_array(np.dtype(np.float32))
    if stored == "F32":
        return weight
    data = values.astype("<f2") if stored == "F16" else (values.view(np.uint32) >> 16).astype("<u2")
    return Weight(weight.name, stored, weight.shape, data.reshape(-1).view(np.uint8), weight.file)


class Stored:
    """A Prepare: all weights in a type."""

    def __init__(self, stored: str) -> None:
        self._stored = stored

    def __call__(self, weight: Weight) -> Weight:
        return stored_as(self._stored, weight)

    def stored_type(self, weight: Weight) -> str:
        return self(weight).dtype


@pytest.mark.drawn(4)
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("family", random_models.FAMILIES)
def test_random_models(family: str, stored: str) -> None:
    rng = random.Random(f"{os.environ.get('KARAT_SEED', '0')}-{family}-{stored}")
    config = random_models.draw_config(rng, family)
    hf = random_models.build(config, rng.randrange(2**31))
    tensors = {name: t.detach().float().numpy() for name, t in hf.state_dict().items()}
    if config["tie_word_embeddings"]:
        del tensors["lm_head.weight"]
    model = build(
        read_config(config),
        NativeOps(),
        forward.ArrayCheckpoint(tensors),
        num_positions=512,
        prepare=Stored(stored),
    )
    texts = [[rng.randrange(config["vocab_size"]) for _ in range(n)] for n in (300, 1, 29, 64)]
    check(model, texts)


def test_the_embedded_model() -> None:
    from karat.checkpoint import open_folder

    folder = open_folder(embedded_model_path())
    model = build(read_config(folder.config), NativeOps(), folder, num_positions=512)
    rng = random.Random(1)
    check(model, [[rng.randrange(4000) for _ in range(n)] for n in (90, 20)])


@pytest.mark.parametrize("isa", supported_isas())
def test_the_table_begins_with_the_build_that_the_environment_forces(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from karat.checkpoint import open_folder

    monkeypatch.setenv("KARAT_ISA", isa)
    table = invariance_of(open_folder(embedded_model_path()), num_tokens=4, options={"threads": 1})
    assert next(table).setting.options["isa"] == isa
    table.close()


def check(model: object, texts: list[list[int]]) -> None:
    tokenizer = Tokenizer.from_folder(Path(embedded_model_path()))
    rows = list(invariance(model, tokenizer, texts))  # type: ignore[arg-type]
    assert len(rows) == len(settings_for(NativeOps(), len(texts))) >= 11
    assert all(row.same for row in rows), [row.setting.name for row in rows if not row.same]


def test_another_computation_has_another_digest() -> None:
    """The digest sees a single changed bit."""
    from karat.check.session.same_bits import digest

    logits = np.ones((3, 5), np.float32)
    changed = logits.copy()
    changed[2, 4] = np.nextafter(changed[2, 4], np.float32(2))
    assert digest([logits]) != digest([changed])

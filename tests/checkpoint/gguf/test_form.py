"""Names of tensors and the order of rows, as each family has them in GGUF."""

import re
from dataclasses import fields

import gguf
import pytest

from karat.checkpoint.gguf.form import paired_rows
from karat.models.decoder import weight_specs
from karat.models.families import FAMILIES
from karat.models.registry import read_config
from tests.support import parallel

_OF_GEMMA_4 = {
    "experts.gate_proj.weight": "ffn_gate_exps.weight",
    "experts.up_proj.weight": "ffn_up_exps.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}


_KINDS = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}


def test_the_package_knows_all_architectures_but_one() -> None:
    assert {each.model_type for each in FAMILIES.values() if each.gguf.architecture not in _KINDS} == {
        "muse_glimmer_text"
    }


@pytest.mark.parametrize("family", [name for name, each in FAMILIES.items() if each.gguf.architecture in _KINDS])
def test_every_name_and_back(family: str) -> None:
    """As the gguf package maps them, for every tensor that a model of the family may have."""
    form = FAMILIES[family].gguf
    kind = _KINDS[form.architecture]
    names = gguf.get_tensor_name_map(kind, 11)
    has_no_head = family in ("gemma2", "lfm2_moe")  # in the gguf package
    raw = parallel.config_of(family, num_hidden_layers=11, tie_word_embeddings=has_no_head)
    biases = [field.name for field in fields(read_config(raw)) if field.name.endswith("_bias")]
    specs = weight_specs(read_config(raw | dict.fromkeys(biases, True)))
    assert len(specs) >= 3 + 11 * 9
    for spec in specs:
        stored = form.stored_name(spec.source)
        one = form.whole_of(
            re.sub(r"\.experts\.\d+\.", ".experts.", spec.source)
        )  # tensor has the matrices of all experts
        suffixed = f"{one}.weight" if one.endswith(form.bare) else one.replace(".dt_bias", ".dt_proj.bias")
        suffixed = suffixed.replace("expert_bias", "expert_bias.bias")
        suffixed = (
            parallel.hub_name(family, suffixed) if family.startswith("lfm2") and ".experts." not in one else suffixed
        )
        expected = names.get_name(suffixed, try_suffixes=(".weight", ".bias"))
        if form.architecture == "gemma4" and expected is None:  # the package has gate and up together, and no scales
            layer, expected = one.split(".")[2], _OF_GEMMA_4[one.split(".", 3)[3]]
            expected = f"blk.{layer}.{expected}"
        assert stored == expected
        assert form.canonical_name(stored or "") == one


@pytest.mark.parametrize(
    "name",
    [
        "",
        "blk.0",
        "blk.00.attn_q.weight",
        "blk.x.attn_q.weight",
        "blk.0.attn_q.scale",
        "blk.0.ffn_x.weight",
        "output.bias",
        "blk.1e3.attn_q.weight",
        "blk.٣.attn_q.weight",
        "model.norm.weight",
    ],
)
def test_other_names_have_none(name: str) -> None:
    assert FAMILIES["qwen3"].gguf.canonical_name(name) is None


def test_paired_rows() -> None:
    assert paired_rows(8, 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]

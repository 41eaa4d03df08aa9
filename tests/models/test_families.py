"""A family is one file: nothing else in Karat decides anything by the name of one.

Covers: karat.models.registry.
"""

import ast
import inspect
from pathlib import Path

import pytest

import karat
from karat.models.families import FAMILIES

PACKAGE = Path(karat.__file__).parent
# Files in which the words mean something else.
OTHER_MEANINGS = {
    "bench/peers/gguf_file.py": "a pre-tokenizer in GGUF",
    "check/diagnosis/peers.py": "pre-tokenizers in GGUF",
    "bench/shape_configs.py": "config.json of released models",
    "check/record/hf_modules.py": "a text model that transformers has as a part of another alone",
    "checkpoint/unsupported.py": "what is nearest to others",
    "convert/tokenizer.py": "kinds of tokenizers in GGUF",
    "text/tools/granite.py": "a format of calls",
    "text/tools/lfm2.py": "a format of calls",
    "text/tools/llama.py": "a format of calls",
    "text/tools/mistral.py": "a format of calls",
    "text/byte_vocabulary.py": "pre-tokenizers of classes of tokenizers",
    "text/gguf_tokenizer.py": "kinds of tokenizers in GGUF",
    "text/pre_tokenizers.py": "pre-tokenizers in GGUF",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_one_short_file(family: str) -> None:
    """Its configuration, its layers (where they are not another family's), and how GGUF holds it."""
    source = Path(inspect.getsourcefile(FAMILIES[family].read) or "")
    assert source.name == f"{family}.py"
    assert Path(inspect.getsourcefile(FAMILIES[family].layer) or "").parent == source.parent
    assert len(source.read_text(encoding="utf-8").splitlines()) <= 110


def named(path: Path) -> set[str]:
    """The families that a file names as a value."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return FAMILIES.keys() & {node.value for node in nodes if isinstance(node, ast.Constant)}


def test_nothing_else_names_one() -> None:
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if named(path)}
    of_models = {f"models/{family}.py" for family in FAMILIES}
    assert of_models <= found, "what is looked for would be found"
    assert found - of_models == OTHER_MEANINGS.keys()


OF_LAYERS = {"num_heads", "num_kv_heads", "head_dim", "intermediate_size", "layer_windows"}


def read_of_all(path: Path) -> set[str]:
    """The sizes of layers that a file reads from a configuration, as if all layers had the same."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Attribute)]
    return {node.attr for node in nodes if ast.unparse(node.value).split(".")[-1] == "config"} & OF_LAYERS


def test_sizes_of_layers_are_asked_of_the_layer() -> None:
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if read_of_all(path)}
    assert "models/qwen2_moe.py" in found, "what is looked for would be found"
    assert {Path(path).parent.name for path in found} == {"models"}

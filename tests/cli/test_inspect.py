"""`karat inspect`: its numbers are those that can be counted from the files without Karat.

Covers: karat.cli.inspect_ranks, karat.cli.inspect_rows.
"""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from karat.cli.inspect_ranks import ranks_of, ranks_text
from karat.models.opening import open_model
from tests.cli import alphabet_model
from tests.cli.alphabet_model import CONTEXT_LEN, HEAD_DIM, HEADS, KV_HEADS, LAYERS
from tests.cli.conftest import Karat
from tests.support import parallel
from tests.support.composite import NUM_UNUSED, with_vision


def test_the_numbers_are_right(alphabet: Path, karat_here: Karat) -> None:
    done = karat_here("inspect", str(alphabet), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    tensors = load_file(alphabet / "model.safetensors")
    assert facts["parameters"] == sum(tensor.size for tensor in tensors.values())
    assert facts["stored_bytes"] == sum(tensor.nbytes for tensor in tensors.values())
    assert facts["stored_by_dtype"] == {
        "F32": {"tensors": len(tensors), "parameters": facts["parameters"], "bytes": facts["stored_bytes"]}
    }
    listed = {t["name"]: (t["dtype"], t["shape"], t["bytes"]) for t in facts["tensors"]}
    assert listed == {name: ("F32", list(t.shape), t.nbytes) for name, t in tensors.items()}
    memory = facts["memory"]
    assert memory["weight_bytes"] == 4 * facts["parameters"]
    lengths = [row["tokens"] for row in memory["contexts"]]
    assert lengths == sorted(set(lengths)) and lengths[-1] == CONTEXT_LEN
    for row in memory["contexts"]:
        for dtype, size in (("float16", 2), ("bfloat16", 2), ("float32", 4)):
            kv_bytes = row["tokens"] * LAYERS * 2 * KV_HEADS * HEAD_DIM * size
            assert row["kv_bytes"][dtype] == kv_bytes
            assert row["total_bytes"][dtype] == kv_bytes + memory["weight_bytes"]
    tokenizer = facts["tokenizer"]
    assert tokenizer["vocab_size"] == 259
    assert tokenizer["end_tokens"] == {"258": "<|im_end|>"}
    assert tokenizer["chat_example"] == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert facts["config"]["num_kv_heads"] == KV_HEADS and facts["config"]["eos_token_ids"] == [258]


def test_a_tied_head_counts_once_and_types_are_told_apart(alphabet: Path, tmp_path: Path, karat_here: Karat) -> None:
    folder = alphabet_model.write(tmp_path / "tied", tie_word_embeddings=True, torch_dtype="float16")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    half = {name: t.astype(np.float16) if "mlp" in name else t for name, t in tensors.items()}
    save_file(half, folder / "model.safetensors")
    facts = json.loads(karat_here("inspect", str(folder), "--json").stdout)
    total = sum(t.size for t in half.values())
    assert facts["parameters"] == total - half["lm_head.weight"].size
    assert facts["stored_by_dtype"]["F16"]["bytes"] == sum(t.nbytes for t in half.values() if t.dtype == np.float16)
    assert facts["stored_by_dtype"]["F32"]["bytes"] == sum(t.nbytes for t in half.values() if t.dtype == np.float32)


def test_the_text_groups_layers_and_lists_all_on_request(alphabet: Path, karat_here: Karat) -> None:
    brief = karat_here("inspect", str(alphabet)).stdout
    assert "model.layers.*.mlp.up_proj.weight" in brief and "model.layers.1.mlp.up_proj.weight" not in brief
    assert "76,736" in brief  # parameters, as the JSON says above
    full = karat_here("inspect", str(alphabet), "--tensors").stdout
    for name in load_file(alphabet / "model.safetensors"):
        assert f"\n{name} " in full
    assert "\x1b" not in brief + full


def test_no_weight_is_read(alphabet: Path, tmp_path: Path, karat_here: Karat) -> None:
    """Weights of nothing but NaN, of which a run dies, are no matter."""
    folder = shutil.copytree(alphabet, tmp_path / "nan")
    tensors = load_file(folder / "model.safetensors")
    save_file({name: np.full_like(t, np.nan) for name, t in tensors.items()}, folder / "model.safetensors")
    assert karat_here("inspect", str(folder)).returncode == 0
    run = karat_here("run", str(folder), "a")
    assert run.returncode == 10 and "karat: error: " in run.stderr


@pytest.mark.parametrize(
    ("template", "message"),
    [("{% for %}", "line 1"), ("{{ raise_exception('no greetings') }}", "no greetings")],
)
def test_a_template_that_does_not_work_is_no_matter_of_text(
    template: str, message: str, alphabet: Path, tmp_path: Path, karat_here: Karat
) -> None:
    folder = shutil.copytree(alphabet, tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    done = karat_here("inspect", str(folder))
    assert done.returncode == 0
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("chat template"))
    assert f"{len(template)} characters, which cannot greet: " in line and message in line
    facts = json.loads(karat_here("inspect", str(folder), "--json").stdout)["tokenizer"]
    assert facts["chat_example"] is None and message in facts["chat_error"]
    assert karat_here("run", str(folder), "a", "--max-tokens", "1").returncode == 0


BROKEN = {
    "config": (3, "config.json", lambda path: path.write_text('{"model_type": "gpt17"}')),
    "weights": (4, "model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-1])),
    "absent": (4, "model.safetensors", Path.unlink),
    "tokenizer": (5, "tokenizer.json", lambda path: path.write_text("{}")),
    "generation": (3, "generation_config.json", lambda path: path.write_text('{"do_sample": 7}')),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("command", ["inspect", "run"])
def test_a_model_that_cannot_run_ends_in_the_same_error(
    what: str, command: str, alphabet: Path, tmp_path: Path, karat_here: Karat
) -> None:
    code, file, spoil = BROKEN[what]
    folder = shutil.copytree(alphabet, tmp_path / "broken")
    spoil(folder / file)
    done = karat_here(command, str(folder), *(["a"] if command == "run" else []))
    assert done.returncode == code
    assert done.stderr.startswith("karat: error: ") and done.stderr.count("\n") == 1 and done.stdout == ""


def test_the_embedded_model_is_the_default(karat_here: Karat) -> None:
    from karat.config import embedded_model_path

    if not (embedded_model_path() / "model.safetensors").exists():
        pytest.skip("the embedded model is not in this tree")
    facts = json.loads(karat_here("inspect", "--json").stdout)
    assert facts["path"] == str(embedded_model_path())
    assert facts["config"]["model_type"] == "qwen2" and facts["config"]["tie_word_embeddings"]
    assert facts["tokenizer"]["chat_example"]


def test_what_is_not_used_is_told_apart(tmp_path: Path, karat: Karat, karat_here: Karat) -> None:
    """A folder with a vision encoder in it: its tensors are listed with the part that they belong to. The text model
    runs, with one line on them.
    """
    model = {"model_type": "mistral", "architectures": None, "sliding_window": None, "head_dim": HEAD_DIM}
    folder = with_vision(alphabet_model.write(tmp_path / "composite", **model))
    facts = json.loads(karat_here("inspect", str(folder), "--json").stdout)
    unused = {tensor["name"]: tensor["unused"] for tensor in facts["tensors"] if tensor["unused"] is not None}
    names = load_file(folder / "model.safetensors")
    assert unused == {name: "vision" for name in names if not name.startswith("language_model.")}
    assert len(facts["tensors"]) == len(names)
    used = [tensor for name, tensor in names.items() if name.startswith("language_model.")]
    assert facts["parameters"] == sum(tensor.size for tensor in used)
    assert facts["memory"]["weight_bytes"] == sum(tensor.nbytes for tensor in used)
    assert facts["stored_bytes"] == sum(tensor.nbytes for tensor in names.values())
    assert facts["config"]["model_type"] == "mistral"
    text = karat_here("inspect", str(folder)).stdout
    assert re.search(
        r"vision_tower\.transformer\.layers\.\*\.attention\.q_proj\S+ .* 2 tensors, not used: vision\n", text
    )
    assert re.search(r"multi_modal_projector\.norm\.weight .* not used: vision\n", text)
    told = f"tensors that are not used: {NUM_UNUSED} of vision (Karat reads no images)"
    assert told in text
    done = karat("run", str(folder), "-p", "abc", "--temperature", "0")
    assert done.stdout == "defghijklmnopqrstuvwxyz\n"
    assert done.stderr.count(told) == 1


def test_what_each_rank_would_hold(alphabet: Path, karat_here: Karat) -> None:
    """Every byte of a sharded tensor is held once, replicated ones by both; the text says the same in columns."""
    done = karat_here("inspect", str(alphabet), "--json", "--tensor-parallel-size", "2")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    whole = {tensor["name"]: tensor["bytes"] for tensor in facts["tensors"]}
    for name, size in whole.items():
        parts = [part for rank in facts["ranks"] for part in rank["tensors"] if part["name"] == name]
        held = sum(part["bytes"] for part in parts)
        if parts[0]["axis"] is None:
            assert held == 2 * size
        elif "k_proj" in name or "v_proj" in name:
            assert size <= held <= 2 * size
        else:
            assert held == size
    heads = [head for rank in facts["ranks"] for head in range(*rank["heads"])]
    assert heads == list(range(facts["config"]["num_heads"]))
    for rank in facts["ranks"]:
        kv_heads = sorted({head * KV_HEADS // HEADS for head in range(*rank["heads"])})
        assert rank["kv_heads"] == kv_heads
        assert rank["kv_bytes_per_token"] == {
            name: 2 * size * LAYERS * len(kv_heads) * HEAD_DIM for name, size in (("float16", 2), ("float32", 4))
        }
        assert rank["weight_bytes"] == sum(tensor["bytes"] for tensor in rank["tensors"])
        for part in rank["tensors"]:
            kind = part["name"].split(".")[-2]
            held = kv_heads if kind in ("k_proj", "v_proj") else range(*rank["heads"])
            if kind in ("q_proj", "k_proj", "v_proj", "o_proj"):
                assert part["axis"] == (kind == "o_proj")
                assert part["pieces"] == [[held[0] * HEAD_DIM, (held[-1] + 1) * HEAD_DIM]]
            assert part["bytes"] == 4 * math.prod(part["shape"])
    for parts in zip(*(rank["tensors"] for rank in facts["ranks"]), strict=True):
        if parts[0]["axis"] is not None:  # the pieces of ranks 0, 1 lie side by side
            (first,), (second,) = (part["pieces"] for part in parts)
            assert first[0] == 0 and first[1] == second[0]
            assert second[1] == sum(part["shape"][part["axis"]] for part in parts)
    text = karat_here("inspect", str(alphabet), "--tensor-parallel-size", "2").stdout
    assert re.search(r"^query heads +0–1 +2–3 *$", text, re.MULTILINE)
    assert re.search(r"^model\.layers\.\*\.mlp\.down_proj\.weight +columns +0–23 +24–47 ", text, re.MULTILINE)
    assert "what each of 2 ranks would hold" in text and "model.layers.*.mlp.down_proj.weight" in text
    refused = karat_here("inspect", str(alphabet), "--tensor-parallel-size", "3")
    assert refused.returncode == 2 and "one of 1, 2, 4, 8; this model works with 1, 2" in refused.stderr


@pytest.mark.parametrize(
    ("inner", "told"), [(256, "rows +0–127 +128–255"), (224, "whole +all +none"), (224, "whole +none +all")]
)
def test_what_each_rank_would_hold_of_experts(inner: int, told: str, tmp_path: Path) -> None:
    """Columns of each, or the first of three and the other two."""
    sizes = {"num_local_experts": 3, "num_experts_per_tok": 2, "intermediate_size": inner}
    path = parallel.write(tmp_path, parallel.config_of("mixtral", **sizes), "F32")
    text = ranks_text(ranks_of(open_model(path), 2), all_tensors=False)
    assert re.search(rf"^model\.layers\.\*\.mlp\.experts\.\*\.up_proj\.weight +{told} ", text, re.MULTILINE), text

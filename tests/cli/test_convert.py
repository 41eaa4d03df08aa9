"""`karat convert`, and `run` and `inspect` on what it writes."""

import json
import re
import shutil
from pathlib import Path

import gguf
import pytest

from karat.config import embedded_model_path
from karat.convert import MIXES
from karat.models.opening import open_model
from karat.ops.native import unavailable_reason
from tests.cli.conftest import Karat
from tests.cli.pseudo_terminal import PseudoTerminal


@pytest.fixture(scope="module")
def q8(tmp_path_factory: pytest.TempPathFactory, karat: Karat) -> Path:
    """The embedded model in Q8_0."""
    path = tmp_path_factory.mktemp("models") / "stories-Q8_0.gguf"
    done = karat("convert", str(embedded_model_path()), str(path), "--quant", "q8_0")
    assert done.returncode == 0, done.stderr
    assert "43 Q8_0, 31 F32" in done.stdout
    assert "8.53 bits a value" in done.stdout
    return path


def test_the_report_as_json(tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "a.gguf"
    done = karat_here("convert", str(embedded_model_path()), str(path), "--quant", "Q4_K_M", "--json")
    assert done.returncode == 0
    facts = json.loads(done.stdout)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert facts["bytes"] == path.stat().st_size
    assert len(facts["tensors"]) == len(stored)
    head = next(tensor for tensor in facts["tensors"] if tensor["name"] == "model.embed_tokens.weight")
    assert head["dtype"] == stored["token_embd.weight"].tensor_type.name == "Q6_K"
    assert head["num_bytes"] == stored["token_embd.weight"].n_bytes
    assert 0.01 < head["error"] < 0.02


def test_a_folder_that_is_not_there_is_told_before_anything_is_read(
    tmp_path: Path, karat_here: Karat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("karat.models.opening.open_model", lambda *_: pytest.fail("read first"))
    done = karat_here("convert", str(embedded_model_path()), str(tmp_path / "no" / "x.gguf"), "--quant", "Q8_0")
    assert done.returncode == 1
    assert done.stderr.endswith(f"x.gguf: there is no folder {tmp_path / 'no'}; make it, or choose another place\n")


@pytest.mark.slow
def test_run_and_inspect(q8: Path, karat_here: Karat) -> None:
    """With nothing but the file; greedily, eight bits tell the same story for a while."""
    texts = [
        karat_here("run", *model, "-p", "Once upon a time", "--temperature", "0", "--max-tokens", "8", "-q").stdout
        for model in (["-m", str(q8)], [])
    ]
    assert texts[0] == texts[1]
    assert len(texts[0].split()) > 4
    facts = json.loads(karat_here("inspect", str(q8), "--json").stdout)
    assert facts["stored_by_dtype"]["Q8_0"]["tensors"] == 43
    assert facts["metadata"]["general.file_type"] == 7
    assert facts["metadata"]["tokenizer.ggml.tokens"] == "4096 STRING"
    weights = open_model(q8).weights.values()
    assert facts["stored_bytes"] == sum(weight.num_bytes for weight in weights) < q8.stat().st_size
    assert facts["memory"]["weight_bytes"] == facts["stored_bytes"]
    assert facts["memory"]["float32_weight_bytes"] == 4 * facts["parameters"]
    row = facts["memory"]["contexts"][-1]
    assert row["total_bytes"]["float16"] == facts["stored_bytes"] + row["kv_bytes"]["float16"]
    text = karat_here("inspect", str(q8)).stdout
    assert "tokenizer.ggml.pre" in text
    assert "Q8_0" in text


def test_a_file_in_this_folder_is_a_model(
    q8: Path, tmp_path: Path, karat_here: Karat, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(q8, tmp_path / "fox.gguf")
    monkeypatch.chdir(tmp_path)
    done = karat_here("run", "fox.gguf", "--max-tokens", "1", stdin="Once")
    assert done.returncode == 0
    assert "fox.gguf" in done.stderr


def test_nothing_is_overwritten(q8: Path, karat_here: Karat) -> None:
    before = q8.read_bytes()
    done = karat_here("convert", str(embedded_model_path()), str(q8), "--quant", "F32")
    assert done.returncode == 1
    assert "exists already, and nothing is overwritten" in done.stderr
    assert q8.read_bytes() == before


def test_help_names_every_type(karat_here: Karat) -> None:
    """Without importing them."""
    text = karat_here("convert", "--help").stdout.partition("--quant")[2].partition("[required]")[0]
    assert set(re.findall(r"[A-Z]\w*\d\w*", text)) == set(MIXES)


def test_an_unknown_type_lists_those_there_are(tmp_path: Path, karat_here: Karat) -> None:
    done = karat_here("convert", str(embedded_model_path()), str(tmp_path / "a.gguf"), "--quant", "Q9")
    assert done.returncode == 2
    assert "expected one of F32, F16, BF16, Q8_0, Q4_0" in done.stderr


def test_a_terminal_shows_one_line_of_progress_that_is_gone_at_the_end(tmp_path: Path) -> None:
    options = (str(embedded_model_path()), str(tmp_path / "a.gguf"), "--quant", "Q8_0")
    with PseudoTerminal("convert", *options, NO_COLOR="1") as terminal:
        code, _ = terminal.wait_for_end()
    assert code == 0
    progress, _, report = terminal.raw.partition("GGUF does not carry")
    steps = [line.strip() for line in progress.split("\r") if line.strip()]
    assert steps[0] == "reading the model …"
    assert steps[-1] == "100 %  model.norm.weight …"
    assert [int(step.partition(" %")[0]) for step in steps[1:]] == sorted(
        int(step.partition(" %")[0]) for step in steps[1:]
    )
    assert "\n" not in progress and "␍" not in terminal.raw
    assert " %  model." not in report


@pytest.mark.parametrize("name", ["llama-Q6_K", "mistral-IQ3_S"])
def test_inspect_counts_all_tensors_of_a_file(name: str, karat_here: Karat) -> None:
    """The factors of RoPE, too; in memory a type without kernels is float32."""
    path = Path(__file__).parent.parent / "data/llama_cpp" / f"{name}.gguf"
    facts = json.loads(karat_here("inspect", str(path), "--json").stdout)
    stored = gguf.GGUFReader(path).tensors
    assert len(facts["tensors"]) == len(stored) and facts["stored_bytes"] == sum(int(t.n_bytes) for t in stored)
    assert {t["dtype"] for t in facts["tensors"]} == {t.tensor_type.name for t in stored}
    held = [4 * int(t.n_elements) if t.tensor_type.name == "IQ3_S" else int(t.n_bytes) for t in stored]
    factors = sum(int(t.n_bytes) for t in stored if t.name == "rope_freqs.weight")
    if unavailable_reason() is None:
        assert facts["memory"]["weight_bytes"] == sum(held) - factors


@pytest.mark.parametrize(
    ("model", "name"),
    [("my-model", "my-model"), ("my-model-Q8_0.gguf", "my-model"), ("F16.gguf", "F16"), ("org/a.b-F16", "a.b")],
)
def test_a_file_that_is_not_named_is_named_after_the_model(
    tmp_path: Path, karat_here: Karat, monkeypatch: pytest.MonkeyPatch, model: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if "/" not in model:
        (tmp_path / model).symlink_to(embedded_model_path())
    monkeypatch.setattr("karat.checkpoint.resolve", lambda model, **_: model)
    seen: list[Path] = []
    monkeypatch.setattr("karat.models.opening.open_model", lambda path, _: path)
    monkeypatch.setattr("karat.convert.convert", lambda source, out, *_, **__: seen.append(out))
    karat_here("convert", model, "--quant", "q4_k_m", "-q")
    assert seen == [Path(f"{name}-Q4_K_M.gguf")]


def test_sampling_can_be_left_out_and_variables_of_a_template_have_no_place(tmp_path: Path, karat_here: Karat) -> None:
    folder = tmp_path / "model"
    shutil.copytree(embedded_model_path(), folder)
    stated = folder / "generation_config.json"
    for text in ('{"temperature": "warm", "eos_token_id": "x"}', "no JSON"):
        stated.write_text(text)
        words = ["convert", str(folder), str(tmp_path / "a.gguf"), "--quant", "F16", "-q"]
        assert karat_here(*words).returncode == 3
    stated.write_text('{"temperature": 0.25, "do_sample": true, "eos_token_id": [5, 2]}')
    for place, words in enumerate(([], ["--generation-config", "none"])):
        path, again = tmp_path / f"{place}.gguf", tmp_path / f"{place}-again.gguf"
        done = karat_here("convert", str(folder), str(path), "--quant", "F16", "--template-arg", "a=1", *words)
        assert done.returncode == 0 and "--template-arg has no effect" in done.stderr, done.stderr
        assert karat_here("convert", str(path), str(again), "--quant", "F16", "-q", *words).returncode == 0
        for file in (path, again):
            names = gguf.GGUFReader(file).fields
            assert ("general.sampling.temp" in names) == (not words)
            ends = {names[f"tokenizer.ggml.{key}_token_id"].contents() for key in ("eos", "eot")}
            assert ends == {2, 5}, "the ends of a file that can be read count"
    stated.write_text("no JSON")
    done = karat_here("convert", str(folder), str(tmp_path / "b.gguf"), "--quant", "F16", "-q", *words)
    assert done.returncode == 0, done.stderr

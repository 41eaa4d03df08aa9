"""Options of the model: what the user says wins in every command, and nonsense is refused by name."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from karat.cli.options import LoadOptions, OverrideOptions, typed
from karat.errors import UsageError
from karat.models.opening import open_model
from karat.text import Tokenizer
from tests.cli.conftest import Karat
from tests.convert.folders import folder_of
from tests.engine.tiny import write_model


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("1e6", 1e6),
        ("true", True),
        ("False", False),
        ("null", None),
        ("yarn", "yarn"),
        ('"4"', "4"),
        ('{"a": [1]}', {"a": [1]}),
        ("float:4", 4.0),
        ("int:4", 4),
        ("bool:true", True),
        ("str:4", "4"),
        ("http://x", "http://x"),
    ],
)
def test_values_have_the_types_that_they_look_like(text: str, value: object) -> None:
    assert typed(text) == value
    assert type(typed(text)) is type(value)


@pytest.mark.parametrize("text", ["int:x", "bool:1", "float:"])
def test_a_type_that_the_value_does_not_have(text: str) -> None:
    with pytest.raises(UsageError, match="expected a value of the type"):
        typed(text)


@pytest.mark.parametrize(("given", "message"), [(["a"], "KEY=VALUE"), (["=1"], "KEY=VALUE"), (["a=1", "a=2"], "twice")])
def test_pairs_that_are_none(given: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=f"--override .*{message}"):
        LoadOptions(override=given).given()
    with pytest.raises(UsageError, match=f"--template-arg .*{message}"):
        LoadOptions(template_arg=given).given()


def test_arguments_of_an_llm() -> None:
    options = LoadOptions(override=["rope_theta=1e5"], template_arg=["x=false"], rope_scaling="yarn", rope_factor=4.0)
    assert options.given() == {
        "hf_overrides": {"rope_theta": 1e5},
        "chat_template_kwargs": {"x": False},
        "rope_scaling": "yarn",
        "rope_factor": 4.0,
    }
    assert LoadOptions().given() == {}


def test_the_words_of_a_command_line_for_another_command() -> None:
    options = OverrideOptions(override=["a=1", "b=2"], rope_factor=4.0, chat_template="a b.jinja")
    assert options.words() == shlex.split("--override a=1 --override b=2 --rope-factor 4.0 --chat-template 'a b.jinja'")
    assert OverrideOptions().words() == []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model(tmp_path_factory.mktemp("model"), eos_token="<|endoftext|>")
    (folder / "shout.jinja").write_text("{% for m in messages %}{{ m.content | upper }}{{ ending }}{% endfor %}")
    return folder


WORDS = ["--override", "rope_theta=500000", "--rope-scaling", "yarn", "--rope-factor", "2"]


def test_a_chat_template_is_a_file_its_text_or_a_name(model: Path, karat_here: Karat) -> None:
    text = "{% if 7 // 2 == 3 %}{{ messages[0].content }}{% endif %}"
    (model / "text.jinja").write_text(text)
    ask = ["run", str(model), "--chat", "hello", "--max-tokens", "1", "--json", "--ignore-eos", "--chat-template"]
    told = [json.loads(karat_here(*ask, given).stdout) for given in (text, str(model / "text.jinja"), "chatml")]
    counts = [each["usage"]["prompt_tokens"] for each in told]
    assert counts[0] == counts[1] < counts[2]


def test_inspect_shows_what_was_said(model: Path, karat_here: Karat) -> None:
    done = karat_here("inspect", str(model), *WORDS, "--json")
    facts = json.loads(done.stdout)
    assert facts["overrides"] == {"rope_theta": 500000, "rope_scaling": "yarn", "rope_factor": 2.0}
    assert facts["config"]["rope"]["theta"] == 500000
    assert facts["config"]["max_position_embeddings"] == 256
    assert "trained for 128" in facts["warnings"][1]
    assert re.search(r"^override +rope_theta=500000$", karat_here("inspect", str(model), *WORDS).stdout, re.MULTILINE)


def test_run_and_verify(model: Path, tmp_path: Path, karat_here: Karat, caplog: pytest.LogCaptureFixture) -> None:
    """The receipt of an overridden model is verified with the same words, and with no others."""
    receipt = str(tmp_path / "receipt.json")
    chat = ["--chat-template", str(model / "shout.jinja"), "--template-arg", "ending=?", "--template-arg", "unread=1"]
    done = karat_here(
        "run", str(model), "--chat", "hi", *WORDS, *chat, "--json", "--max-tokens", "12", "--receipt", receipt
    )
    assert json.loads(done.stdout)["prompt_token_ids"] == Tokenizer.from_folder(model).encode("HI?")
    assert "was trained for 128" in caplog.text
    assert "the chat template does not mention unread" in caplog.text
    assert karat_here("verify", receipt, "--model", str(model), *WORDS, *chat[:2]).returncode == 0
    assert karat_here("verify", receipt, "--model", str(model), *chat[:2]).returncode != 0
    by_reference = karat_here("verify", receipt, "--by", "reference", "--model", str(model), *WORDS, *chat[:2])
    assert by_reference.returncode == 0, by_reference.stderr


def test_a_check_against_files_takes_no_word_of_the_user(model: Path, karat_here: Karat) -> None:
    pytest.importorskip("torch", reason="transformers needs torch")
    refused = karat_here("check", str(model), *WORDS, "--against", "hf")
    assert refused.returncode == 2
    assert "read the model's files alone" in refused.stderr


def test_check_and_trace(model: Path, tmp_path: Path, karat_here: Karat) -> None:
    done = karat_here("check", str(model), *WORDS, "--stages", "logits", "--tokens", "8")
    assert done.returncode == 0, done.stderr
    assert "compared with float64 alone" in done.stderr
    plain, said = (
        karat_here("trace", str(model), "-o", str(tmp_path / name), "--tokens", "4", *words)
        for name, words in (("a.trace", []), ("b.trace", WORDS))
    )
    assert (plain.returncode, said.returncode) == (0, 0)


def test_what_convert_was_told_is_in_the_file(model: Path, tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "a.gguf"
    folder = folder_of(tmp_path / "model")
    done = karat_here("convert", str(folder), str(path), "F32", *WORDS, "--chat-template", str(model / "shout.jinja"))
    assert done.returncode == 0, done.stderr
    facts = json.loads(karat_here("inspect", str(path), "--json").stdout)
    assert facts["overrides"] == {} and facts["config"]["rope"]["theta"] == 500000
    assert facts["config"]["max_position_embeddings"] == 256
    template = open_model(path).metadata.values["tokenizer.chat_template"]  # type: ignore[union-attr]
    assert template == (model / "shout.jinja").read_text()


@pytest.mark.parametrize(
    "generation",
    [
        '{"do_sample": true, "top_p": 2.0}',
        '{"do_sample": true, "temperature": -1.0}',
        '{"do_sample": 1}',
        '{"do_sample": true,}',
        "<html>",
        "[]",
        '{"eos_token_id": "a"}',
        '{"eos_token_id": [1, "a"]}',
    ],
)
def test_generation_config_none_ignores_what_cannot_be_used(
    generation: str, model: Path, tmp_path: Path, karat_here: Karat
) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "generation_config.json").write_text(generation)
    words = ["run", str(folder), "hi", "--max-tokens", "2"]
    check = ["check", str(folder), "--against", "reference", "--stages", "tokens", "-q"]
    for command in (words, ["inspect", str(folder)], check):
        refused = karat_here(*command)
        assert refused.returncode == (2 if command is check else 3)
        assert "--generation-config none" in refused.stderr
        assert karat_here(*command, "--generation-config", "none").returncode == 0
    (tmp_path / "text.txt").write_text("abc abc")
    assert karat_here("perplexity", str(folder), str(tmp_path / "text.txt")).returncode == 0  # nothing is sampled
    trace = str(tmp_path / "a.trace")
    assert karat_here("trace", str(folder), "--prompt", "a b", "-o", trace).returncode == 0
    assert karat_here("diagnose", trace, "--model", str(folder)).returncode == 0

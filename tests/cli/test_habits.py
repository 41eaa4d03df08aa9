"""Options of other engines: what means the same is taken, what has no effect is named, the rest gets an answer."""

from pathlib import Path

import pytest

from karat.cli import habits
from karat.cli.app import command
from karat.cli.habits import translated
from tests.cli.conftest import Karat

FLAGS, VALUED = ("-q", "--debug"), ("--temperature", "--max-tokens", "--seed", "--stop", "-p", "--model")
OPTIONS = {option for each in command().commands.values() for parameter in each.params for option in parameter.opts}


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (["--temp", "0", "-n", "4"], ["--temperature", "0", "--max-tokens", "4"]),
        (["--temp=0", "-s", "1"], ["--temperature=0", "--seed", "1"]),
        (["-p", "-n", "-q"], ["-p", "-n", "-q"]),  # a value that looks like an option
        (["--stop=-n", "a"], ["--stop=-n", "a"]),
        (["a", "--", "--temp"], ["a", "--", "--temp"]),
        (["-hf", "org/name"], ["--model", "org/name"]),
        (["--nonsense", "-"], ["--nonsense", "-"]),
    ],
)
def test_other_names_of_the_same(given: list[str], made: list[str]) -> None:
    taken = translated(given, FLAGS, VALUED, ())
    assert (taken.args, taken.remarks, taken.advice) == (made, (), None)


def test_what_has_no_effect_is_named() -> None:
    taken = translated(["-ngl", "99", "--jinja", "-fa", "-p", "a", "--device=cpu"], FLAGS, VALUED, ())
    assert taken.args == ["-p", "a"] and taken.advice is None
    assert [remark.split()[0] for remark in taken.remarks] == ["-ngl", "--jinja", "-fa", "--device"]
    for given, left in (["-fa", "on", "a"], ["a"]), (["-fa", "a.gguf"], ["a.gguf"]), (["--jinja", "on"], ["on"]):
        assert translated(given, FLAGS, VALUED, ()).args == left


def test_a_default_of_llama_cpp_is_no_option() -> None:
    given = ["-c", "0", "--mirostat", "0", "--keep=0", "--reasoning-budget", "-1", "--grammar", "", "-p", "a"]
    taken = translated(given, FLAGS, [*VALUED, "--max-model-len"], ())
    assert (taken.args, taken.remarks, taken.advice) == (["-p", "a"], (), None)
    assert translated(["-c", "8"], FLAGS, [*VALUED, "--max-model-len"], ()).args == ["--max-model-len", "8"]
    assert "--typical-p" in (translated(["--mirostat", "2"], FLAGS, VALUED, ()).advice or "")
    assert translated(["-np", "1", "-no-cnv", "-l", "42-5"], FLAGS, [*VALUED, "--logit-bias"], ()).args == [
        "--logit-bias",
        "42-5",
    ]
    assert translated(["-c"], FLAGS, [*VALUED, "--max-model-len"], ()).args == ["--max-model-len"]


def test_flags_before_words() -> None:
    assert translated(["-m", "a.gguf", "--tensors"], ["--tensors"], (), ["model"]).args == ["a.gguf", "--tensors"]
    assert translated(["-f", "a.txt"], (), (), ["words"]).args == ["a.txt"]


def test_the_first_that_is_not_there_gets_the_answer() -> None:
    for later in ("-cnv", "--mmproj"):
        taken = translated(["--grammar", "a", later], FLAGS, VALUED, ())
        assert taken.advice and taken.advice.startswith("there is no --grammar here: ")


@pytest.mark.parametrize("given", [["-md", "a.gguf"], ["-xyz"], ["-n", "4", "-cd", "8"], ["-modelname"]])
def test_several_letters_are_no_letter_with_its_value(given: list[str]) -> None:
    taken = translated(given, FLAGS, [*VALUED, "-m", "-x", "-c"], ())
    name = next(word for word in given if len(word) > 2 and word[0] == "-")
    assert taken.is_wrong and taken.advice and taken.advice.startswith(f"there is no {name} here")


def test_letters_that_are_flags_may_stand_together() -> None:
    assert translated(["-qv", "-n8"], [*FLAGS, "-v"], [*VALUED, "-n"], ()).args == ["-qv", "-n8"]


def test_every_name_that_is_meant_is_there() -> None:
    named = {*habits._RENAMED.values()}
    for text in habits._ADVICE.values():
        named |= {word.rstrip(",:;") for word in text.split() if word.startswith("--")}
    assert named <= OPTIONS


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["run", "-cnv"], 2, "there is no -cnv here: karat chat talks, and karat run --chat asks once; see `karat run"),
        (["quantize", "a"], 2, "there is no command quantize: karat convert IN OUT.gguf --quant Q4_K_M; see `karat --"),
        (["-m", "a", "-p", "b"], 2, 'there is no command -m: karat run -m MODEL -p "TEXT"'),
        (["-hf", "a/b", "-p", "c"], 2, 'there is no command -hf: karat run -hf ORG/NAME -p "TEXT"'),
        (["run", "--temp", "x", "a"], 2, "--temperature"),
        (
            ["run", "-m", "a", "-md", "b", "c"],
            2,
            "there is no -md here: drafts are not there yet; see `karat run --help`",
        ),
        (["serve", "--port", "99999"], 2, "--port 99999: expected a number from 0 to 65535"),
        (["run", "-lx", "a"], 2, "there is no -lx here; see `karat run --help`"),
        (["run", "--chat-template", "chatml", "a"], 5, "no template is built in under a name"),
    ],
)
def test_errors(args: list[str], code: int, said: str, karat_here: Karat) -> None:
    done = karat_here(*args)
    assert done.returncode == code and said in done.stderr


@pytest.mark.parametrize(
    ("command", "option", "proposed"),
    [
        ("run", "--temprature", "--temperature"),
        ("run", "--max_token", "--max-tokens"),
        ("serve", "--hosts", "--host"),
        ("run", "--prompt-file", None),
        ("run", "--verbosely", None),
        ("serve", "--port-range", None),
        ("serve", "--log", None),
    ],
)
def test_only_options_that_may_be_meant_are_proposed(
    command: str, option: str, proposed: str | None, karat_here: Karat
) -> None:
    done = karat_here(command, option, "1")
    said = f" (Possible options: {proposed})" if proposed else ""
    assert done.returncode == 2 and done.stderr.startswith(f"karat: error: No such option: {option}{said}; see ")


def test_a_command_by_habit(karat_here: Karat) -> None:
    by_habit = karat_here("run", "-p", "Once", "-n", "3", "--temp", "0", "-c", "64", "-t", "1", "-ngl", "9")
    ours = ["--max-tokens", "3", "--temperature", "0", "--max-model-len", "64", "--threads", "1"]
    assert by_habit.returncode == 0 and by_habit.stdout == karat_here("run", "-p", "Once", *ours).stdout
    assert "karat: -ngl has no effect: Karat computes on the CPU\n" in by_habit.stderr
    assert karat_here("run", "-q", "-p", "Once", "-n", "1", "-ngl", "9", LLAMA_ARG_PORT="1").stderr == ""
    servers = ["-ctk", "q8_0", "-ctv", "q8_0", "-b", "512", "-ub", "256", "--mirostat", "0", "-kvu", "-dt", "0.1"]
    done = karat_here("run", "-p", "Once", "-n", "1", *servers, LLAMA_ARG_CTX_SIZE="64", LLAMA_ARG_PORT="1")
    assert done.returncode == 0
    assert "LLAMA_ARG_CTX_SIZE, LLAMA_ARG_PORT in the environment: not read; give options instead\n" in done.stderr


def test_no_number_of_tokens_and_a_prompt_like_a_name(karat_here: Karat) -> None:
    done = karat_here("run", "llama3.2", "-n", "-1", "-c", "24", "--temp", "0")
    assert done.returncode == 0 and done.stdout == karat_here("run", "-p", "llama3.2", "-c", "24", "--temp", "0").stdout
    assert (
        "'llama3.2' is the prompt, and the embedded model goes on with it; name a model by -m llama3.2" in done.stderr
    )
    assert "name a model" not in karat_here("run", "Once", "-n", "1").stderr


def test_a_schema_is_a_file_or_itself(tmp_path: Path, karat_here: Karat) -> None:
    schema = '{"enum": ["http://a//b"]}'
    (tmp_path / "schema.json").write_text(schema)
    for given in (schema, str(tmp_path / "schema.json")):
        done = karat_here("run", "-q", "--json-schema", given, "-n", "40", "Once")
        assert done.stdout == '"http://a//b"\n'

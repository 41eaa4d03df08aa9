"""Options of other engines: what means the same is taken, what has no effect is named, the rest gets an answer."""

import json
import re
from pathlib import Path

import pytest
import typer

from karat.bench import limits
from karat.cli import habits
from karat.cli.app import command
from karat.cli.habits import commanded, translated
from tests.cli.conftest import Karat

FLAGS, VALUED = ("-q", "--debug"), ("--temperature", "--max-tokens", "--seed", "--stop", "-p", "--model")
COMMANDS = command().commands
OPTIONS = {option for each in COMMANDS.values() for parameter in each.params for option in parameter.opts}


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
    assert "--typical-p" in (translated(["--mirostat", "2"], FLAGS, [*VALUED, "--typical-p"], ()).advice or "")
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
        taken = translated(["--lora", "a", later], FLAGS, VALUED, ())
        assert taken.advice and taken.advice.startswith("there is no --lora here: ")


@pytest.mark.parametrize("given", [["-md", "a.gguf"], ["-xyz"], ["-n", "4", "-cd", "8"], ["-modelname"]])
def test_several_letters_are_no_letter_with_its_value(given: list[str]) -> None:
    taken = translated(given, FLAGS, [*VALUED, "-m", "-x", "-c"], ())
    name = next(word for word in given if len(word) > 2 and word[0] == "-")
    assert taken.is_wrong and taken.advice and taken.advice.startswith(f"there is no {name} here")


def test_letters_that_are_flags_may_stand_together() -> None:
    assert translated(["-qv", "-n8"], [*FLAGS, "-v"], [*VALUED, "-n"], ()).args == ["-qv", "-n8"]


def options_of(name: str) -> tuple[set[str], set[str], list[str]]:
    """The flags of a command, its options with a value, and its words."""
    flags, valued, words = set[str](), set[str](), []
    for each in COMMANDS[name].params:
        if not isinstance(each, typer.core.TyperOption):
            words.append(str(each.name))
        else:
            (flags if each.is_flag else valued).update((*each.opts, *each.secondary_opts))
    return flags, valued, words


def of_one(text: str, command: str) -> set[str]:
    """The options in a text that are no options of the command which it speaks of: `command`, or a `karat OTHER`."""
    wrong = set()
    for clause in text.split(";"):
        for part in re.split(r"karat (?=[a-z])", clause):
            name = command if clause.startswith(part) else part.split()[0].rstrip(",")
            if name in COMMANDS:
                flags, valued, _ = options_of(name)
                wrong |= {*re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", part)} - flags - valued - {"-hf"}
    return wrong


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_that_a_hint_names_is_one_of_the_command(name: str) -> None:
    """Nor is an option renamed to one that is not there."""
    flags, valued, words = options_of(name)
    tables = (habits._RENAMED, habits._WITHOUT_EFFECT, habits._ADVICE)
    for option in {key.split()[-1] for table in tables for key in table} - flags - valued:
        taken = translated([option, "1"], flags, valued, words, name)
        for text in (*taken.remarks, taken.advice or ""):
            told = text.partition(":")[2]
            assert not of_one(told, name), (option, text)


def test_every_name_that_is_meant_is_there() -> None:
    assert {option for others in habits._RENAMED.values() for option in others.split()} <= OPTIONS
    for text in habits._COMMANDS.values():
        assert text == "karat --version" or not of_one(text, "run"), text


@pytest.mark.parametrize(
    ("command", "given", "made", "said"),
    [
        ("bench", ["-o", "json"], None, "a table is the default, and --json has the figures as JSON"),
        ("run", ["-o", "json"], None, "--json has it as JSON, and > FILE writes it to a file"),
        ("serve", ["-o", "json"], None, "--log-format json has the log as JSON"),
        ("inspect", ["-o", "csv"], None, "--json has it as JSON"),
        ("serve", ["--ssl-key-file", "k", "--ssl-cert-file", "c"], ["--tls-key", "k", "--tls-cert", "c"], None),
        ("serve", ["--system-prompt-file", "x"], None, "clients send it with each request"),
        ("serve", ["--grammar", "x"], None, "clients send it with each request"),
        ("serve", ["--temp", "0"], None, "clients send it with each request"),
        ("serve", ["--top-k", "40"], None, "clients send it with each request"),
        ("serve", ["-n", "64"], None, "clients send max_tokens; --default-max-tokens N is for requests without it"),
        ("serve", ["-v"], [], "-v has no effect"),
        ("serve", ["--no-slots", "--no-webui"], [], "--no-webui has no effect: the page is a part of the server"),
        ("chat", ["-cnv", "-i"], [], "-i has no effect: karat chat talks"),
        ("run", ["-ngl", "99"], [], "-ngl has no effect: --device NAME chooses where all of the model is computed"),
        ("run", ["-dev", "CUDA0", "-mg", "0"], [], "-mg has no effect: --device NAME chooses where all"),
        ("run", ["--device", "cuda", "-sm", "none"], ["--device", "cuda"], "-sm has no effect: --device NAME chooses"),
        ("pack", ["-ngl", "99"], [], "-ngl has no effect: Karat computes on the CPU"),
        ("run", ["-ngl", "0", "-dev", "none", "--device", "none"], [], None),
        ("run", ["--rope-freq-base", "5000"], ["--override", "rope_theta=5000"], None),
        ("run", ["--rope-freq-base=0", "--verbose-prompt"], [], "--verbose-prompt has no effect"),
        ("run", ["-mu", "https://huggingface.co/a/b"], ["--model", "https://huggingface.co/a/b"], None),
        ("run", ["--grammar-file", "a"], ["--grammar", "a"], None),
        ("serve", ["--chat-template-kwargs", '{"a": false}'], ["--template-arg", "a=false"], None),
        ("run", ["--n_predict", "8", "--ctx_size=64"], ["--max-tokens", "8", "--max-model-len=64"], None),
        ("run", ["--max_tokens", "8"], ["--max-tokens", "8"], None),
        ("run", ["-r", "User:"], ["--stop", "User:"], None),
        ("run", ["-cnv", "-p", "a"], ["--chat", "-p", "a"], None),
        ("bench", ["-r", "3"], ["--repeat", "3"], None),
        ("convert", ["--allow-requantize"], ["--requantize"], None),
    ],
)
def test_of_each_command(command: str, given: list[str], made: list[str] | None, said: str | None) -> None:
    taken = translated(given, *options_of(command), command)
    told = [*taken.remarks, *filter(None, [taken.advice])]
    assert (taken.advice is None) == (made is not None) and (made is None or taken.args == made)
    assert said in told[-1] if said and told else (said, told) == (None, [])


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["run", "-i", "-p", "a"], 2, "there is no -i here: karat chat talks, and karat run --chat asks once; see"),
        (["quantize", "a"], 2, "there is no command quantize: karat convert IN OUT.gguf --quant Q4_K_M; see `karat --"),
        (
            ["gguf-split", "a"],
            2,
            "there is no command gguf-split: a GGUF file in parts is read as it is: name its first",
        ),
        (["create", "a"], 2, "there is no command create: a Modelfile is not read: karat run MODEL, with --system and"),
        (["imatrix", "a"], 2, "there is no command imatrix: karat convert quantises without an importance matrix"),
        (
            ["batched-bench"],
            2,
            "there is no command batched-bench: karat bench MODEL, with --batch N for batched decode",
        ),
        (
            ["-m", "./a", "-p", "b"],
            4,
            "taken as karat run, which goes on with a text; --chat answers it\nkarat: error: './a': does not",
        ),
        (["run", "--rope-freq-scale", "0.5", "a"], 2, "--rope-scaling linear --rope-factor N, for a scale of 1 / N"),
        (["run", "--grammar", "a", "b"], 2, "--grammar a: [Errno 2] No such file or directory: 'a'; expected a file"),
        (["run", "--grammar", "a: b", "-j", "{}", "b"], 2, "an answer has one form; give one of them"),
        (["run", "-f", "a", "-p", "b"], 2, "-f and -p both give the prompt; give one of them"),
        (["run", "-f", "./none"], 2, "-f none: No such file or directory; expected a text file"),
        (["run", "--chat-template-kwargs", "x", "a"], 2, "--template-arg 'x': expected KEY=VALUE"),
        (["run", "--temp", "x", "a"], 2, "--temperature"),
        (["run", "-n", "0", "a"], 7, "error: --max-tokens 0: expected an integer from 1 to "),
        (["run", "--temp", "-1", "a"], 7, "error: --temperature -1.0: expected "),
        (["run", "-c", "-4", "a"], 2, "error: --max-model-len -4: expected an integer of at least 1"),
        (["serve", "-np", "-1"], 2, "error: --max-num-seqs -1: expected an integer of at least 1"),
        (
            ["run", "-m", "a", "-md", "b", "c"],
            2,
            "there is no -md here: drafts are not there yet; see `karat run --help`",
        ),
        (["serve", "--port", "99999"], 2, "--port 99999: expected a number from 0 to 65535"),
        (["run", "-lx", "a"], 2, "there is no -lx here; see `karat run --help`"),
        (["run", "--chat-template", "llama2", "a"], 5, "built in under a name is only chatml; give a file or"),
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
    assert (
        "karat: -ngl has no effect: --device NAME chooses where all of the model is computed: cpu (the default) or "
        "cuda\n" in by_habit.stderr
    )
    assert karat_here("run", "-q", "-p", "Once", "-n", "1", "-ngl", "9", LLAMA_ARG_PORT="1").stderr == ""
    servers = ["-ctk", "q8_0", "-ctv", "q8_0", "-b", "512", "-ub", "256", "--mirostat", "0", "-kvu", "-dt", "0.1"]
    done = karat_here("run", "-p", "Once", "-n", "1", *servers, LLAMA_ARG_CTX_SIZE="64", LLAMA_ARG_PORT="1")
    assert done.returncode == 0
    assert "LLAMA_ARG_CTX_SIZE, LLAMA_ARG_PORT in the environment: not read; give options instead\n" in done.stderr


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("-m a -p b", "run -m a -p b"),
        ("-m a --prompt=b", "run -m a --prompt=b"),
        ("--model=a", "chat --model=a"),
        ("-hf a/b -cnv", "chat -hf a/b -cnv"),
        ("llama-cli -m a -f b", "run -m a -f b"),
        ("cli -m a", "chat -m a"),
        ("run -m a -cnv", "chat -m a -cnv"),
        ("run -m a -i -p b", "run -m a -i -p b"),
        ("-m a -cnv -p b", "run -m a -cnv -p b"),
        ("server -m a --port 1", "serve -m a --port 1"),
        ("llama-server -m a", "serve -m a"),
        ("llama-bench -m a", "bench -m a"),
        ("show a", "inspect a"),
        ("run b", "run b"),
        ("--version", "--version"),
        ("", ""),
    ],
)
def test_names_of_other_programs(given: str, made: str) -> None:
    taken, remark = commanded(given.split())
    assert taken == made.split() and (remark is None) == (given == made)


def test_one_who_talks_with_a_prompt_is_told_that_it_is_answered_once() -> None:
    for given in ("-m a -cnv -p b", "llama-cli -st -p b"):
        assert str(commanded(given.split())[1]).endswith(", which answers once; karat chat talks")


def test_a_grammar_and_a_prompt_are_files_or_themselves(tmp_path: Path, karat_here: Karat) -> None:
    (tmp_path / "prompt.txt").write_text("Once upon\n")
    (tmp_path / "a.gbnf").write_text('root ::= "yes" | "yes, yes"')
    for grammar in ('root ::= "yes"', 'start: "yes"\n', str(tmp_path / "a.gbnf")):
        done = karat_here("run", "-q", "-p", "Once", "--grammar", grammar, "-n", "9")
        assert done.returncode == 0 and done.stdout in ("yes\n", "yes, yes\n")
    asked = [["-f", str(tmp_path / "prompt.txt")], ["-p", "Once upon"], ["--file", str(tmp_path / "prompt.txt")]]
    assert len({karat_here("run", "-q", *given, "-n", "4").stdout for given in asked}) == 1


def test_a_command_line_of_llama_cli(karat_here: Karat) -> None:
    done = karat_here("-p", "Once", "-n", "3", "--temp", "0")
    assert done.returncode == 0 and done.stderr.startswith("karat -p: taken as karat run, which goes on with a text; ")
    assert done.stdout == karat_here("run", "-p", "Once", "-n", "3", "--temp", "0").stdout


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


def test_a_seed_of_minus_one_is_drawn_and_stated(karat_here: Karat) -> None:
    """As llama.cpp and the server have it; what is stated gives the same text."""
    ask = ["run", "Once upon", "--temperature", "1", "--max-tokens", "24", "--seed"]
    done = [karat_here(*ask, "-1") for _ in range(2)]
    seeds = [re.search(r"seed=(\d+)", each.stderr)[1] for each in done]  # type: ignore[index]
    assert seeds[0] != seeds[1] and done[0].stdout != done[1].stdout
    assert karat_here(*ask, seeds[0]).stdout == done[0].stdout


def test_an_open_schema_whose_answer_was_cut_is_told_how_to_close(karat_here: Karat) -> None:
    ask = ["run", "Once", "--max-tokens", "8", "-j"]
    inner = '"properties": {"a": {"type": "string", "minLength": 99}}, "required": ["a"]'
    for schema, is_told in (
        (f'{{"type": "object", {inner}}}', True),
        (f'{{"type": "object", "additionalProperties": false, {inner}}}', False),
    ):
        done = karat_here(*ask, schema)
        assert done.stderr.count('"additionalProperties": false in the schema closes an object') == is_told
    assert "additionalProperties" not in karat_here(*ask, '{"type": "object", "maxProperties": 0}').stderr


def test_a_model_where_a_text_belongs(tmp_path: Path, karat_here: Karat) -> None:
    """llama-perplexity reads a text on stdin."""
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    done = karat_here("perplexity", str(tmp_path / "a.gguf"), stdin="text")
    assert (
        done.returncode == 2
        and f"is a model and no text; for a text on stdin: karat perplexity {tmp_path}" in done.stderr
    )


def test_lengths_between_commas(karat_here: Karat, monkeypatch: pytest.MonkeyPatch) -> None:
    """As llama-bench takes them."""
    monkeypatch.setattr(limits, "MIN_BUFFER_BYTES", 4 << 20)
    monkeypatch.setattr(limits, "last_cache_bytes", lambda: 0)
    done = karat_here(
        "bench", "--shape", "tiny", "-q", "-p", "8,16", "-n", "2", "--repeat", "1", "--context", "0", "--json"
    )
    assert [row["prompt_tokens"] for row in json.loads(done.stdout)["rows"] if row["kind"] == "prefill"] == [8, 16]
    assert "expected a number of tokens, or several such as 64,128" in karat_here("bench", "-p", "8,x").stderr

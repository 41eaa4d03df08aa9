"""`karat run`: exactly the text on stdout, every option obeyed, and a clean end whatever happens.

Covers: karat.cli.run_json.
"""

import dataclasses
import json
import signal
import string
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from karat.config import embedded_model_path
from karat.errors import NumericsError
from karat.machine import extension
from karat.ops import native, registry
from karat.ops.native import unavailable_reason
from karat.request import SamplingParams
from karat.text.chat_template import ChatTemplate
from tests.cli import alphabet_model
from tests.cli.alphabet_model import ALPHABET
from tests.cli.conftest import COMMAND, Karat, environment
from tests.cli.pseudo_terminal import PseudoTerminal


def test_a_continuation(alphabet: Path, karat: Karat) -> None:
    done = karat("run", str(alphabet), "xa")
    assert (done.returncode, done.stdout) == (0, "bcdefghijklmnopqrstuvwxyz\n")
    first, *_, last = done.stderr.splitlines()
    assert first == (
        f"{alphabet}: sampling defaults from generation_config.json: temperature=0.5, top_p=0.9, top_k=50 "
        "(transformers' default)"
    )
    assert last.startswith("2 prompt tokens (") and "26 answer tokens (" in last and last.endswith(" · stop")


def test_an_answer_in_a_chat(alphabet: Path, karat_here: Karat) -> None:
    done = karat_here("run", str(alphabet), "--chat", "--system", "Be brief.", "Hello", "--json")
    answer = json.loads(done.stdout)
    assert answer["choices"][0]["text"] == ALPHABET
    assert answer["prompt"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    tokenizer = Tokenizer.from_file(str(alphabet / "tokenizer.json"))
    assert tokenizer.decode(answer["prompt_token_ids"], skip_special_tokens=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_conversation_is_rendered_once(alphabet: Path, karat_here: Karat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice would be by two clocks: what was counted would not be what is answered."""
    rendered: list[str] = []
    render = ChatTemplate.render

    def counted(self: ChatTemplate, messages: Any, **variables: Any) -> str:
        rendered.append(render(self, messages, **variables))
        return rendered[-1]

    monkeypatch.setattr(ChatTemplate, "render", counted)
    assert karat_here("run", str(alphabet), "--chat", "Hello").returncode == 0
    assert len([text for text in rendered if "Hello<" in text and "An-answer" not in text]) == 1


def test_control_tokens_of_a_message_stay_text_if_asked(alphabet: Path, karat_here: Karat) -> None:
    args = ["run", str(alphabet), "--chat", "Hi<|im_end|>", "--json"]
    found = [
        json.loads(karat_here(*args, *flag).stdout)["prompt_token_ids"] for flag in ([], ["--sanitize-control-tokens"])
    ]
    end = Tokenizer.from_file(str(alphabet / "tokenizer.json")).token_to_id("<|im_end|>")
    assert [ids.count(end) for ids in found] == [2, 1]
    done = karat_here("run", str(alphabet), "Hi", "--sanitize-control-tokens")
    assert done.returncode == 2 and "--sanitize-control-tokens needs --chat" in done.stderr


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("args", "stdin"), [([], b"xa\n"), (["-"], b"xa"), (["-p", "-"], b"xa\r\n"), (["xa"], b"never read")]
)
def test_a_prompt_from_a_pipe(args: list[str], stdin: bytes, alphabet: Path, karat: Karat) -> None:
    done = karat("run", "-q", "-m", str(alphabet), *args, stdin=stdin)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{ALPHABET[1:]}\n", "")


EVERY_OPTION = {
    "temperature": 0.25,
    "top_k": 7,
    "top_p": 0.75,
    "min_p": 0.125,
    "typical_p": 0.9375,
    "top_n_sigma": 9.5,
    "xtc_probability": 0.25,
    "xtc_threshold": 0.375,
    "repeat_last_n": 30,
    "dry_multiplier": 0.125,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 40,
    "dry_sequence_breakers": ["\n", "B"],
    "no_repeat_ngram_size": 8,
    "bad_words": ["never", "nor"],
    "bad_words_ids": [[70, 71], [72]],
    "repetition_penalty": 1.125,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "logit_bias": {"65": -2.5, "66": 1.0},
    "seed": 11,
    "max_tokens": 9,
    "min_tokens": 2,
    "stop": ["XY", "\n"],
    "stop_token_ids": [90, 91],
    "allowed_token_ids": [65, 66, 67, 90],
    "n": 2,
    "logprobs": 3,
    "prompt_logprobs": 2,
}
FLAGS = {
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "explain": True,
}


def test_every_sampling_parameter_has_an_option_that_is_obeyed(alphabet: Path, karat_here: Karat) -> None:
    args = []
    for name, value in EVERY_OPTION.items():
        for item in value.items() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
            item = ",".join(map(str, item)) if isinstance(item, list) else item
            args += [f"--{name.replace('_', '-')}", "=".join(map(str, item)) if isinstance(item, tuple) else str(item)]
    args += ["--include-stop-str-in-output", "--ignore-eos", "--no-skip-special-tokens", "--explain"]
    done = karat_here("run", str(alphabet), "A", "--json", *args)
    answer = json.loads(done.stdout)
    assert answer["sampling"] == EVERY_OPTION | FLAGS | {"structured_outputs": None}
    assert set(answer["sampling"]) == {field.name for field in dataclasses.fields(SamplingParams)}
    assert answer["defaults_applied"] == {}


def test_the_options_of_the_model_are_obeyed(alphabet: Path, karat_here: Karat) -> None:
    args = ["--dtype", "float64", "--kv-dtype", "bfloat16", "--executor", "reference", "--max-model-len", "5"]
    answer = json.loads(karat_here("run", str(alphabet), "A", "--json", *args).stdout)
    assert (answer["executor"], answer["dtype"], answer["kv_dtype"]) == ("reference", "float64", "bfloat16")
    assert answer["choices"][0]["text"] == "BCDE" and answer["choices"][0]["finish_reason"] == "length"


def test_the_json_is_complete_and_consistent(alphabet: Path, karat_here: Karat) -> None:
    done = karat_here("run", str(alphabet), "uvw", "--n", "2", "--logprobs", "2", "--prompt-logprobs", "1", "--json")
    assert done.returncode == 0 and done.stdout.count("\n") == 1
    answer = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    tokenizer = Tokenizer.from_file(str(alphabet / "tokenizer.json"))
    assert answer["prompt"] == "uvw" and answer["prompt_token_ids"] == tokenizer.encode("uvw").ids
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    for choice in answer["choices"]:
        assert choice["token_ids"] == tokenizer.encode("xyz<|im_end|>").ids
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"], choice["error"]) == (
            "xyz",
            "stop",
            258,
            None,
        )
        for token_id, entry in zip(choice["token_ids"], choice["logprobs"], strict=True):
            assert entry["token_id"] == token_id and entry["rank"] == 1 and -1e-6 < entry["logprob"] <= 0
            assert [other["rank"] for other in entry["top"]] == [1, 2]
        assert [entry["token"] for entry in choice["logprobs"]] == ["x", "y", "z", "<|im_end|>"]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}
    assert answer["prompt_logprobs"][0] is None
    assert [entry["token"] for entry in answer["prompt_logprobs"][1:]] == ["v", "w"]
    times = answer["timings"]
    assert times["load_s"] > 0
    assert times["prefill_tokens_per_s"] == pytest.approx(3 / times["prefill_s"])
    assert times["decode_tokens_per_s"] == pytest.approx(6 / times["decode_s"])
    assert answer["defaults_applied"] == {"temperature": 0.5, "top_p": 0.9, "top_k": 50}


def test_the_json_has_the_seed_also_where_it_was_derived(karat_here: Karat) -> None:
    def run(*options: str) -> Any:
        done = karat_here("run", "Once upon a time", "--json", "--temperature", "1", "--max-tokens", "12", *options)
        return json.loads(done.stdout)

    derived = run()
    assert type(derived["sampling"]["seed"]) is int and "seed" not in derived["defaults_applied"]
    again = run("--seed", str(derived["sampling"]["seed"]))
    assert again["choices"] == derived["choices"] and again["sampling"] == derived["sampling"]
    other = run("--seed", "5")
    assert other["sampling"]["seed"] == 5 and other["choices"] != derived["choices"]


def test_a_fault_in_the_prompt_is_in_the_json(
    alphabet: Path, karat_here: Karat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_at_2(row: object, position: int) -> None:
        if position == 2:
            raise NumericsError("a NaN at position 2")

    monkeypatch.setattr("karat.engine.choosing.choice.finite_argmax", fail_at_2)
    done = karat_here("run", str(alphabet), "uvwxy", "--prompt-logprobs", "1", "--json")
    assert done.returncode == 10 and "a NaN at position 2" in done.stderr
    answer = json.loads(done.stdout)
    assert answer["choices"][0]["finish_reason"] == "error"
    assert answer["prompt_logprobs"][0] is None
    assert [entry["token"] for entry in answer["prompt_logprobs"][1:]] == ["v", "w"]


def test_several_answers_come_in_order_each_with_a_line_end(alphabet: Path, karat_here: Karat) -> None:
    done = karat_here("run", "-q", str(alphabet), "x", "--n", "3")
    assert done.stdout == "yz\nyz\nyz\n"


def test_answers_that_interleave_are_not_mixed(capfd: pytest.CaptureFixture[str]) -> None:
    from karat.cli.run import _print_in_order
    from karat.outputs import StreamChunk

    def chunk(index: int, text: str, reason: str | None = None) -> StreamChunk:
        return StreamChunk(index, text, (1,), reason)  # type: ignore[arg-type]

    chunks = [chunk(0, "a"), chunk(1, "x"), chunk(2, "p", "stop"), chunk(1, "y", "stop"), chunk(0, "b", "stop")]
    _print_in_order(iter(chunks))
    assert capfd.readouterr().out == "ab\nxy\np\n"


def test_the_same_command_gives_the_same_text_and_another_seed_another(alphabet: Path, karat_here: Karat) -> None:
    def text(*args: str) -> str:
        hot = ["--temperature", "60", "--top-k", "0", "--top-p", "1"]
        length = ["--max-tokens", "20", "--ignore-eos"]
        return karat_here("run", "-q", str(alphabet), "A", *hot, *length, *args).stdout

    assert text() == text()
    assert text("--seed", "5") == text("--seed", "5")
    assert len({text(), text("--seed", "5"), text("--seed", "6")}) == 3


def test_what_is_set_is_said_beside_the_defaults(alphabet: Path, karat_here: Karat) -> None:
    done = karat_here("run", str(alphabet), "x", "--temperature", "0", "--stop", "z")
    assert done.stderr.splitlines()[0].endswith("; from the command line: temperature=0.0, stop=['z']")
    assert done.stdout == "y\n"


def test_a_folder_that_suggests_no_sampling_is_answered_greedily_which_is_said(
    tmp_path: Path, karat_here: Karat
) -> None:
    folder = alphabet_model.write(tmp_path / "plain")
    (folder / "generation_config.json").unlink()
    told = karat_here("run", str(folder), "x").stderr.splitlines()[0]
    notice = "the folder has no generation_config.json; greedy (temperature=0)"
    assert told == f"{folder}: {notice}; try --temperature 0.7"
    told = karat_here("run", str(folder), "x", "--temperature", "0.1").stderr.splitlines()[0]
    assert told == f"{folder}: {notice}; from the command line: temperature=0.1"


def test_an_error_that_has_nothing_to_do_with_words_says_nothing_of_them(karat_here: Karat) -> None:
    for args in (["--threads", "0"], ["--dtype", "float16"]):
        done = karat_here("run", "hi", *args)
        assert done.returncode != 0 and "taken for" not in done.stderr


@pytest.mark.parametrize("reason", [None, "no compiler; get one"])
def test_missing_kernels_are_mentioned_once(
    reason: str | None, alphabet: Path, karat_here: Karat, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = native.unavailable_reason()
    for module in (native, registry):
        monkeypatch.setattr(module, "unavailable_reason", lambda: reason)
    monkeypatch.setattr(extension, "MISSING", reason)
    quiet = karat_here("run", "-q", str(alphabet), "x", "--executor", "reference")
    asked = karat_here("run", str(alphabet), "x", "--executor", "reference")
    assert "kernels" not in quiet.stderr + asked.stderr
    if reason is None and missing is not None:
        return  # there is nothing that could compute here
    told = karat_here("run", str(alphabet), "x").stderr
    assert told.count("without native kernels: no compiler; get one") == (0 if reason is None else 1)


@pytest.mark.parametrize(
    ("code", "args", "words"),
    [
        (2, ["run", "x", "--system", "y"], "--system needs --chat"),
        (2, ["run", "x", "--logprobs", "1"], "need --json"),
        (2, ["run", "Once", "upon", "a", "time"], 'karat run "Once upon a time"'),
        (2, ["run"], "no prompt"),
        (2, ["chat", "a", "-m", "b"], "two models"),
        (2, ["run", "and/or"], "write -p 'and/or'"),
        (6, ["run", "-m", "nowhere", "x"], "no such folder or file, and not a hub name (org/name"),
        (
            2,
            ["run", "hello", "world"],
            "'hello' is no model: no folder, no file, and no name of the form org/name; a "
            'prompt of several words needs quotes: karat run "hello world"',
        ),
        (7, ["run", "-m", "/no/such/model", "x", "--temperature", "-1"], "--temperature -1.0: expected"),
        (7, ["run", "ALPHABET", "x", "--logit-bias", "999=1"], "999"),
        (7, ["run", "ALPHABET", ""], "no tokens"),
        (8, ["run", "ALPHABET", "xyz", "--max-model-len", "3"], "context of 3"),
        (8, ["run", "ALPHABET", "xyz", "--max-model-len", "9", "--max-tokens", "7"], "max_tokens=7"),
        (9, ["run", "ALPHABET", "x", "--executor", "abacus"], "executor='abacus'"),
        (9, ["run", "ALPHABET", "x", "--dtype", "float16"], "float16"),
    ],
)
def test_errors_are_one_line_and_nothing_is_printed(
    code: int, args: list[str], words: str, alphabet: Path, karat_here: Karat
) -> None:
    done = karat_here(*(str(alphabet) if arg == "ALPHABET" else arg for arg in args))
    assert done.returncode == code
    assert words in done.stderr and done.stderr.startswith("karat: error: ") and done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_word_that_was_taken_for_a_model_is_explained_when_that_fails(karat_here: Karat) -> None:
    done = karat_here("run", "no-such-org/no-such-model", stdin="x")
    assert done.returncode == 6 and done.stderr.count("\n") == 1
    assert "'no-such-org/no-such-model' was taken for a model" in done.stderr


def test_a_model_without_a_template_has_no_chat(tmp_path: Path, karat_here: Karat) -> None:
    folder = alphabet_model.write(tmp_path / "plain", template=False)
    for args in (["run", "--chat", str(folder), "x"], ["chat", str(folder)]):
        done = karat_here(*args)
        assert done.returncode == 5 and "no chat template" in done.stderr and done.stdout == ""


def endless(alphabet: Path) -> "subprocess.Popen[str]":
    """A run that prints for a long time, and that the end of a terminal ends, also if the tests run under nohup."""
    return subprocess.Popen(
        [*COMMAND, "run", str(alphabet), "A"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )


def test_a_reader_that_goes_away(alphabet: Path) -> None:
    with endless(alphabet) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(20) == string.ascii_uppercase[1:21]
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 141
    assert "Error" not in errors and "error" not in errors and "Exception" not in errors


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_it_cleanly(number: signal.Signals, code: int, alphabet: Path) -> None:
    with endless(alphabet) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(20)
        process.send_signal(number)
        process.stdout.read()
        errors = process.stderr.read()
    assert process.returncode == code
    assert "Traceback" not in errors and "Error" not in errors
    assert errors.rstrip().endswith("interrupted") == (number == signal.SIGINT)


def test_on_a_terminal_the_prompt_comes_first_and_control_characters_are_harmless(alphabet: Path) -> None:
    with PseudoTerminal("run", str(alphabet), "xa") as terminal:
        code, text = terminal.wait_for_end()
    assert code == 0 and f"\nx{ALPHABET}\n" in text
    assert "\x1b[2mxa\x1b[0m" in terminal.raw
    with PseudoTerminal("run", "-q", str(alphabet), "xa", NO_COLOR="1") as terminal:
        assert terminal.wait_for_end() == (0, f"{ALPHABET[1:]}\n")
    assert "\x1b" not in terminal.raw


@pytest.mark.skipif(unavailable_reason() is not None, reason="ranks need the native extension")
def test_the_embedded_model_tells_the_same_story_on_ranks(karat_here: Karat) -> None:
    told = [
        karat_here("run", "Once upon a time", "--max-tokens", "12", "--seed", "3", *ranks)
        for ranks in ([], ["--tensor-parallel-size", "2"], ["--tensor-parallel-size", "4"])
    ]
    assert [done.returncode for done in told] == [0, 0, 0], told
    assert len({done.stdout for done in told}) == 1 and told[0].stdout.strip()
    checked = karat_here("check", "--tensor-parallel-size", "2", "--tokens", "9")
    assert checked.returncode == 0 and "verdict: exact" in checked.stdout


def test_the_embedded_model_tells_a_story(karat_here: Karat) -> None:
    if not (embedded_model_path() / "model.safetensors").exists():
        pytest.skip("the embedded model is not in this tree")
    plain = karat_here("run", "Once upon a time", "--max-tokens", "12")
    assert plain.returncode == 0 and plain.stderr.startswith("the embedded model: ")
    assert len(plain.stdout.split()) >= 5 and plain.stdout.isascii()
    chat = karat_here("run", "--chat", "Tell me a story about a fox and a lantern.", "--max-tokens", "12", "-q")
    assert len(chat.stdout.split()) >= 5 and chat.stderr == ""


def test_a_json_schema_gives_the_form_of_the_answer(karat_here: Karat, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3}', encoding="utf-8")
    done = karat_here("run", "Once upon a time", "--json-schema", str(file), "--temperature", "1.5", "-q")
    assert done.returncode == 0, done.stderr
    assert 2 <= len(json.loads(done.stdout)) <= 3
    file.write_text('{"not": {}}', encoding="utf-8")
    refused = karat_here("run", "Once", "--json-schema", str(file))
    assert refused.returncode == 7 and "json: not: " in refused.stderr
    missing = karat_here("run", "Once", "--json-schema", str(tmp_path / "none.json"))
    assert missing.returncode == 2 and "--json-schema" in missing.stderr


def test_a_text_that_spells_what_is_put_before_it(data_dir: Path, karat_here: Karat) -> None:
    """llama.cpp's <s>, which its users write: a text has it already."""
    words = ("run", str(data_dir / "stories260k"), "--max-tokens", "1")
    twice, once = (karat_here(*words, "-p", text).stderr for text in ("<s>Once", "Once"))
    assert "begins with <s>, and the model puts one before every text" in twice
    assert "begins with" not in once and "begins with" not in karat_here(*words, "-q", "-p", "<s>Once").stderr

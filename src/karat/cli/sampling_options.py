"""Options that become SamplingParams: how tokens are chosen, when an answer ends, and what is reported."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from karat.cli.options import flag, given_fields, option
from karat.errors import UsageError
from karat.request import MAX_GRAMMAR_CHARS


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Fields of SamplingParams; None for an option that was not given, where the model's default holds."""

    temperature: Annotated[float | None, option("Sampling", "X", "0 takes the likeliest token; larger is freer.")] = (
        None
    )
    top_k: Annotated[int | None, option("Sampling", "N", "Draw from the N likeliest tokens; 0: all.")] = None
    top_p: Annotated[float | None, option("Sampling", "P", "Draw from the likeliest tokens that sum up to P.")] = None
    min_p: Annotated[float | None, option("Sampling", "P", "Drop tokens less likely than P times the likeliest.")] = (
        None
    )
    typical_p: Annotated[
        float | None, option("Sampling", "P", "Draw from the tokens of typical surprise that sum up to P; 1: all.")
    ] = None
    top_n_sigma: Annotated[
        float | None, option("Sampling", "X", "Drop scores X standard deviations below the largest; 0: none.")
    ] = None
    xtc_probability: Annotated[
        float | None, option("Sampling", "P", "How often XTC takes out the top choices but the least.")
    ] = None
    xtc_threshold: Annotated[
        float | None, option("Sampling", "P", "Top choices are at least this probable (default: 0.1).")
    ] = None
    repetition_penalty: Annotated[
        float | None, option("Sampling", "X", "Above 1: tokens of prompt and answer are repeated less.")
    ] = None
    presence_penalty: Annotated[
        float | None, option("Sampling", "X", "Subtracted from the logits of tokens in the answer.")
    ] = None
    frequency_penalty: Annotated[float | None, option("Sampling", "X", "The same, once for each occurrence.")] = None
    repeat_last_n: Annotated[
        int | None, option("Sampling", "N", "All three penalties look at the last N tokens; -1: all, 0: none.")
    ] = None
    dry_multiplier: Annotated[
        float | None, option("Sampling", "X", "DRY: what would lengthen a repetition loses X * base^(n - allowed).")
    ] = None
    dry_base: Annotated[float | None, option("Sampling", "X", "The base of DRY (default: 1.75).")] = None
    dry_allowed_length: Annotated[
        int | None, option("Sampling", "N", "Repetitions shorter than N tokens are free for DRY (default: 2).")
    ] = None
    dry_penalty_last_n: Annotated[
        int | None, option("Sampling", "N", "DRY looks at the last N tokens; -1: all (default), 0: none.")
    ] = None
    dry_sequence_breakers: Annotated[
        list[str] | None,
        option("Sampling", "TEXT", "DRY finds no repetition across TEXT; repeatable, 'none' for none."),
    ] = None
    no_repeat_ngram_size: Annotated[
        int | None, option("Sampling", "N", "No N tokens in a row come twice in prompt and answer.")
    ] = None
    bad_words: Annotated[list[str] | None, option("Sampling", "TEXT", "Never write TEXT; repeatable.")] = None
    bad_words_ids: Annotated[
        list[str] | None, option("Sampling", "ID,ID", "Never come to these tokens in a row; repeatable.")
    ] = None
    logit_bias: Annotated[
        list[str] | None, option("Sampling", "ID=X", "Add X to the logit of a token; repeatable.")
    ] = None
    allowed_token_ids: Annotated[list[int] | None, option("Sampling", "ID", "Choose no other tokens; repeatable.")] = (
        None
    )
    json_schema: Annotated[
        str | None, option("Sampling", "FILE", "The answer is JSON that keeps to a JSON Schema: its file, or itself.")
    ] = None
    grammar: Annotated[
        str | None, option("Sampling", "FILE", "The answer keeps to a grammar (GBNF or Lark): its file, or itself.")
    ] = None
    seed: Annotated[int | None, option("Sampling", "N", "The same seed gives the same answer; -1: a random one.")] = (
        None
    )
    max_tokens: Annotated[
        int | None, option("Stopping", "N", "End after N tokens (default: the model's own, or the context).")
    ] = None
    min_tokens: Annotated[int | None, option("Stopping", "N", "Do not end before N tokens.")] = None
    stop: Annotated[list[str] | None, option("Stopping", "TEXT", "End before TEXT; repeatable.")] = None
    stop_token_ids: Annotated[list[int] | None, option("Stopping", "ID", "End at a token; repeatable.")] = None
    include_stop_str_in_output: Annotated[
        bool | None, flag("Stopping", "--include-stop-str-in-output", "Keep the TEXT of --stop in the answer.")
    ] = None
    ignore_eos: Annotated[bool | None, flag("Stopping", "--ignore-eos", "Do not end at the model's end tokens.")] = None
    no_skip_special_tokens: Annotated[
        bool | None, flag("Output", "--no-skip-special-tokens", "Show special tokens in the text.")
    ] = None

    def given(self) -> dict[str, Any]:
        """Arguments for SamplingParams: only what was on the command line."""
        arguments = given_fields(self)
        if arguments.pop("no_skip_special_tokens", False):
            arguments["skip_special_tokens"] = False
        if self.max_tokens == -1:  # as in llama.cpp: no number of its own
            del arguments["max_tokens"]
        if self.seed == -1:  # as in llama.cpp and on the server: another each time
            arguments["seed"] = int.from_bytes(os.urandom(4))
        if self.json_schema is not None and self.grammar is not None:
            raise UsageError("--json-schema and --grammar: an answer has one form; give one of them")
        if self.json_schema is not None:
            arguments["structured_outputs"] = {"json": _schema_of(arguments.pop("json_schema"))}
        if self.grammar is not None:
            arguments["structured_outputs"] = {"grammar": _grammar_of(arguments.pop("grammar"))}
        if self.dry_sequence_breakers == ["none"]:  # as in llama.cpp
            arguments["dry_sequence_breakers"] = []
        if self.bad_words_ids:
            arguments["bad_words_ids"] = [_ids(text) for text in self.bad_words_ids]
        if self.logit_bias:
            arguments["logit_bias"] = dict(map(_bias, self.logit_bias))
        return arguments

    def advice_if_cut(self) -> str | None:
        """What to tell where an answer reached its length: a model may add names to open objects for ever."""
        from karat.text.schema_closing import closed, without_nulls

        schema = None if self.json_schema is None else json.loads(_schema_of(self.json_schema))
        if not isinstance(schema, dict) or closed(schema) == without_nulls(schema):
            return None
        return (
            "the answer was cut inside; JSON Schema lets objects have more names than it lists, and small models add "
            'them: "additionalProperties": false in the schema closes an object'
        )


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The other fields of SamplingParams: they choose what is reported; None reports nothing."""

    n: Annotated[int | None, option("Output", "N", "Give N answers.")] = None
    logprobs: Annotated[
        int | None, option("Output", "K", "Log-probability of each token and the K likeliest; with --json.")
    ] = None
    prompt_logprobs: Annotated[
        int | None, option("Output", "K", "The same for the tokens of the prompt; with --json.")
    ] = None
    explain: Annotated[
        bool | None,
        typer.Option("--explain", help="How each token was drawn; with --json.", rich_help_panel="Output"),
    ] = None

    def given(self) -> dict[str, Any]:
        """Arguments for SamplingParams: only what was on the command line."""
        return given_fields(self)


def _schema_of(given: str) -> str:
    """A JSON Schema that is given itself, or by the path of its file."""
    return given if given.lstrip().startswith("{") else _in_file(given, "--json-schema", "a JSON Schema")


def _grammar_of(given: str) -> str:
    """A grammar that is given itself, in which a rule has a colon, or by the path of its file."""
    is_itself = "\n" in given or (":" in given and not Path(given).exists())
    return given if is_itself else _in_file(given, "--grammar", "a grammar")


def _in_file(path: str, option: str, what: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_GRAMMAR_CHARS * 4 + 1).decode()  # SamplingParams refuses more
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {path}: {error}; expected a file with {what} in UTF-8") from None


def _bias(text: str) -> tuple[int, float]:
    """From 42=-5, or as llama.cpp has it 42-5 and 42+5."""
    parts = re.fullmatch(r"(-?\d+)(?:=|(?=[+-]))(.+)", text)
    try:
        return int(parts[1] if parts else ""), float(parts[2] if parts else "")
    except ValueError:
        raise UsageError(f"--logit-bias {text!r}: expected a token id and a number, such as 42=-5") from None


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--bad-words-ids {text!r}: expected token ids, such as 42 or 42,7") from None

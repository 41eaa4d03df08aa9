"""Where the model and the prompt come from: options, one or two words of the command line, or a pipe."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from karat.cli.terminal import is_terminal
from karat.errors import CapacityError, RequestError, UsageError

# org/name, also with @revision and :TYPE. Only the form is judged here; the hub knows whether there is such a model.
_HUB_NAME = re.compile(
    r"((https?://)?(www\.)?(huggingface\.co|hf\.co)/|hf://)?[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
    r"((@|/(tree|blob|resolve|raw)/)[\w./-]+)?(:[\w.-]+)?/?",
    re.ASCII,
)
# A name as Ollama has them, such as mistral, smollm2, llama3.2 or qwen:7b.
_LIKE_A_NAME = re.compile(
    r"[a-z][\w-]*[\d:.][\w.:-]*\w|((code|tiny|open)?llama|qwen|qwq|mi[sx]tral|ministral|codestral|smollm|gemma|phi|"
    r"deepseek|granite|olmoe?|gpt-oss|vicuna|starcoder|stablelm|command-r|glm|exaone)([\d.:_-][\w.:-]*)?",
    re.ASCII | re.IGNORECASE,
)
MAX_PIPE_BYTES = 64 * 1024**2  # a context of a million tokens has about 4 MiB


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What to run: model None is the embedded one. `reading` says why a single word was taken for the model, and
    `remark` that one was taken for the prompt which may be meant as a model.
    """

    model: str | None
    prompt: str
    reading: str | None = None
    is_piped: bool = False
    remark: str | None = None


def resolve(words: Sequence[str], model: str | None, prompt: str | None) -> ModelSource:
    """The model and the prompt that a command line means; may read the pipe.

    `words` are the positional arguments, `model` and `prompt` the values of `-m` and `-p`, which are taken as they
    are. Two words are MODEL, which must look like one, and PROMPT. One word is PROMPT if `-m` was given, MODEL if `-p`
    was given, and otherwise MODEL exactly if `looks_like_model`. A prompt that is absent or `-` is read from stdin
    unless that is a terminal.
    """
    rest, reading = list(words), None
    named = [flag for flag, value in (("-m", model), ("-p", prompt)) if value is not None]
    if len(rest) == 1 and model is None and prompt is None and rest[0] != "-":
        if why := looks_like_model(rest[0]):
            model = rest.pop()
            reading = f"{model!r} was taken for a model, because {why}; to give it as the prompt, write -p {model!r}"
        else:
            prompt = rest.pop()
    if len(rest) == 2 and model is None and prompt is None and looks_like_model(rest[0]) is None:
        if _LIKE_A_NAME.fullmatch(rest[0]) or re.search(r"\s", rest[1]):  # the prompt was in quotes
            from karat.checkpoint.locate import unknown

            raise unknown(rest[0])
        raise UsageError(
            f"{rest[0]!r} is no model: no folder, no file, and no name of the form org/name; a prompt of several words "
            f'needs quotes: karat run "{_shortened(" ".join(rest))}"'
        )
    if rest and model is None and (len(rest) > 1 or prompt is not None):
        model = rest.pop(0)
    if rest and prompt is None:
        prompt = rest.pop(0)
    if rest:
        raise UsageError(_too_many(words, model if named == ["-m"] else None, named))
    is_piped = prompt is None or prompt == "-"
    if prompt is None or prompt == "-":
        from karat.checkpoint.locate import absent

        if model is not None and (fault := absent(model)) is not None:
            raise fault  # do not wait for a prompt that no model will read
        try:
            prompt = _read_pipe(model, asked=prompt == "-")
        except UsageError as error:
            if reading is not None:
                error.add_note(reading)
            raise
    remark = None
    if model is None and list(words) == [prompt] and _LIKE_A_NAME.fullmatch(prompt):
        remark = f"{prompt!r} is the prompt, and the embedded model goes on with it; name a model by -m {prompt}"
    return ModelSource(model, _as_utf8(prompt), reading, is_piped, remark)


def looks_like_model(word: str) -> str | None:
    """Why a single word is taken for a model and not for a prompt; None where it is a prompt."""
    if os.path.isdir(os.path.expanduser(word)):  # noqa: PTH111, PTH112 - Path's raise on what cannot be a path
        return "there is a folder of that name"
    if os.path.isfile(os.path.expanduser(word)):  # noqa: PTH111, PTH113 - likewise
        return "there is a file of that name"
    if word.endswith(".gguf") and not re.search(r"\s", word):
        return "it ends in .gguf"
    from karat.checkpoint.locate import PATH_START

    if word.startswith(PATH_START) and not re.search(r"\s", word):
        return "it is written like a path"
    if _HUB_NAME.fullmatch(word):
        return "it has the form org/name"
    return None


def _as_utf8(prompt: str) -> str:
    """The prompt as UTF-8, in any locale: without one (LC_ALL=C) Python reads each byte as a character.

    RequestError for what is not UTF-8.
    """
    try:
        prompt.encode()
    except UnicodeEncodeError:
        try:
            return os.fsencode(prompt).decode()
        except UnicodeError:
            raise RequestError("the prompt is not valid UTF-8; convert it, for example with iconv") from None
    return prompt


def _too_many(words: Sequence[str], model: str | None, named: Sequence[str]) -> str:
    """`named`: the options that gave the model or the prompt."""
    shown = _shortened(" ".join(words))
    if "-p" in named:
        beside = " and ".join(named)
        return f"{shown!r} beside {beside}: expected no more words; put the text of -p in quotes, or leave them out"
    given = "" if model is None else f"-m {model} "
    room = "a prompt fits" if named else "at most a model and a prompt fit"
    return f'{len(words)} words where {room}; put the prompt in quotes: karat run {given}"{shown}"'


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


def _read_pipe(model: str | None, *, asked: bool) -> str:
    if sys.stdin is None or (is_terminal(sys.stdin) and not asked):
        talk = f"; to talk with the model: karat chat {shlex.quote(model)}" if model is not None else ""
        raise UsageError(f'no prompt; write for example: karat run "Once upon a time", or pipe a text in{talk}')
    text = piped_text("the prompt")
    if not text:
        raise UsageError('no prompt: stdin is empty; write for example: karat run "Once upon a time"')
    return text.removesuffix("\n").removesuffix("\r")


def piped_text(what: str) -> str:
    """All of stdin, which is `what`; CapacityError for more than MAX_PIPE_BYTES, RequestError for what is not UTF-8."""
    return _read(sys.stdin.buffer, f"{what} on stdin")


def text_of(path: Path) -> str:
    """The prompt in a file, less one line end; UsageError for a file that cannot be read, and errors as of stdin."""
    try:
        with path.open("rb") as file:
            return _read(file, f"the prompt in {path}").removesuffix("\n").removesuffix("\r")
    except OSError as fault:
        raise UsageError(f"-f {path}: {fault.strerror}; expected a text file") from None


def _read(stream: BinaryIO, where: str) -> str:
    content = stream.read(MAX_PIPE_BYTES + 1)
    if len(content) > MAX_PIPE_BYTES:
        raise CapacityError(
            f"{where} has more than {MAX_PIPE_BYTES} bytes, more than any context holds; expected a text "
            "that the model can read; give a part of it"
        )
    try:
        return content.decode()
    except UnicodeDecodeError as fault:
        raise RequestError(f"{where} is not UTF-8 (byte {fault.start}); convert it, for example with iconv") from None

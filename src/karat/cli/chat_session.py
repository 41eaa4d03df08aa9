"""Entries of a chat: a message is answered, a command is obeyed."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from karat.cli.answer_text import AnswerText
from karat.cli.chat_input import echo_off
from karat.cli.conversation import Conversation
from karat.cli.generation import Meter, Task, raise_if_failed
from karat.cli.interrupts import Interrupt, deferred_interrupt
from karat.cli.prefill import PromptWatch
from karat.cli.sources import MAX_PIPE_BYTES
from karat.cli.terminal import columns, emit, note, tell
from karat.errors import CapacityError, KaratError, UsageError

if TYPE_CHECKING:
    from karat.engine.llm import LLM

_HELP = (
    ("/help", "this list"),
    ("/clear", "forget what was said; system message and settings stay"),
    ("/system TEXT", "the system message; without TEXT, show it; /system - removes it"),
    ("/set NAME VALUE", "sampling, such as /set temperature 0.5; VALUE default gives it back to the model"),
    ("/show", "the model, the settings, and how full the context is"),
    ("/retry", "take the last answer back and answer again"),
    ("/save FILE", "write the conversation to a new file, as JSON"),
    ("/load FILE", "go on with a conversation that /save wrote"),
    ("/exit", "leave; so do /bye and Ctrl-D"),
    ("//text", "send a message that starts with a slash"),
    ("text \\", "a backslash at its end continues a message on the next line"),
    ('"""', "so does a block between two lines of three quotes"),
)


class ChatSession:
    """A conversation with a model. `handle` takes one entry, and raises a KaratError for anything that it cannot do.

    Raises TemplateError at once if the model has no chat template, or none for this system message.
    """

    def __init__(
        self,
        llm: "LLM",
        conversation: Conversation,
        *,
        quiet: bool,
        interactive: bool,
        sanitize_control_tokens: bool = False,
    ) -> None:
        self._llm = llm
        self._conversation = conversation
        self._quiet = quiet
        self._interactive = interactive
        self._sanitize_control_tokens = sanitize_control_tokens
        self._used = 0  # tokens of the context, when the last answer ended
        self._saved: set[Path] = set()
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/clear": self._clear,
            "/system": self._system,
            "/set": self._set,
            "/show": self._show,
            "/retry": self._retry,
            "/save": self._save,
            "/load": self._load,
        }
        self._check_template(conversation.system)

    def handle(self, entry: str) -> bool:
        """Answers a message or obeys a command; False if the user wants to leave."""
        if entry.startswith("//"):
            self._answer(entry[1:])
            return True
        name, *argument = entry.split(maxsplit=1)
        if not entry.startswith("/") or ("\n" in entry and name not in self._commands):  # a text that was pasted
            self._answer(entry)
            return True
        if name in ("/exit", "/quit", "/bye"):
            return False
        if name not in self._commands:
            close = get_close_matches(name, [*self._commands, "/exit"], 1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise UsageError(
                f"no command {name}; {meant}/help lists them, and //… sends a message that starts with a slash"
            )
        self._commands[name]("".join(argument).strip())
        return True

    def _answer(self, question: str) -> bool:
        """Answer; keep question and answer, also an answer that Ctrl-C cut short. False if there is nothing to keep."""
        task = self._task(question)
        reader = AnswerText(self._llm, task.prompt_text, quiet=self._quiet)
        task.given |= reader.settings
        meter = Meter(len(task.prompt_ids))
        scheduler = self._llm.engine.scheduler
        num_found_before = scheduler.num_found_tokens
        pieces: list[str] = []
        last = None
        waiting = self._interruptible if self._interactive else nullcontext
        with waiting() as interrupt, PromptWatch(interrupt, quiet=self._quiet) as prefill:
            try:
                for last in meter.watch(task.stream(prefill)):
                    pieces.append(reader.add(last))
                    emit(pieces[-1])
                    if interrupt and interrupt.requested:
                        break
            except KeyboardInterrupt:  # in the middle of the prompt, or a second one
                if not interrupt:
                    raise
        reader.end()
        emit("\n")
        meter.num_found_tokens = scheduler.num_found_tokens - num_found_before
        if last is not None:
            raise_if_failed(last)
        reason = last.finish_reason if last is not None else None
        answer = "".join(pieces)
        answered = bool(answer or reason)
        if answered:
            self._conversation.add(question, answer)
        self._explain_end(reason, meter, kept=answered)
        return answered

    @contextmanager
    def _interruptible(self) -> Iterator[Interrupt]:
        """During an answer: Ctrl-C stops it, and text that is typed ahead waits for the next prompt."""
        with deferred_interrupt() as interrupt, echo_off():
            yield interrupt

    def _task(self, question: str) -> Task:
        """The task: the conversation with this question, with room for an answer. CapacityError if there is no room."""
        task = Task(
            self._llm,
            self._conversation.messages(question),
            self._conversation.settings,
            sanitize_control_tokens=self._sanitize_control_tokens,
        )
        longest = self._llm.max_model_len
        if len(task.prompt_ids) >= longest:
            raise CapacityError(
                f"the context is full: with this message the conversation has {len(task.prompt_ids)} tokens, and there "
                f"is room for {longest}; the message was not sent: /save keeps a copy, /clear starts over"
            )
        return task

    def _explain_end(self, reason: str | None, meter: Meter, *, kept: bool) -> None:
        used, longest = meter.num_prompt_tokens + meter.num_tokens, self._llm.max_model_len
        if kept:
            self._used = used
        if reason is None:
            kept_text = "The partial answer is kept; /retry tries again"
            note(f"Stopped. {kept_text if kept else 'There was no text yet, so the message is not kept'}")
        elif reason == "length" and used >= longest:
            note("the answer is cut off: the context is full: /clear starts over")
        elif reason == "length" and self._interactive:
            note("the answer is cut off: max_tokens is reached: see /set")
        elif reason == "length" and not self._quiet:
            note("the answer is cut off: max_tokens is reached: see --max-tokens")
        if not self._quiet:
            note(f"{meter.summary(interrupted=reason is None)} · context {self._used} of {longest}")

    def _check_template(self, system: str | None) -> None:
        self._llm.tokenizer.render_chat(Conversation(system, {}).messages("Hello"))

    def _help(self, argument: str) -> None:
        tell(columns(_HELP))

    def _clear(self, argument: str) -> None:
        self._conversation.clear()
        self._used = 0
        note("forgotten")

    def _system(self, argument: str) -> None:
        if not argument:
            note(f"system message: {self._conversation.system or 'none'}")
            return
        system = None if argument == "-" else argument
        self._check_template(system)
        self._conversation.system = system
        note("system message removed" if system is None else "system message set")

    def _set(self, argument: str) -> None:
        name, _, value = argument.partition(" ")
        if not value.strip():
            raise UsageError("/set needs a name and a value, such as /set temperature 0.5; /show lists what is set")
        self._conversation.set(name, value.strip())
        name = name.replace("-", "_")
        if name in self._conversation.settings:
            note(f"{name} = {value.strip()}")
        else:
            note(f"{name} = {getattr(self._llm.default_params, name)!r}, the model's own")

    def _show(self, argument: str) -> None:
        talk, llm = self._conversation, self._llm
        integers = "" if llm.activations == llm.dtype else f", activations in {llm.activations}"
        settings = ", ".join(f"{name}={value!r}" for name, value in talk.settings.items())
        rows = [
            ("model", str(llm.path)),
            ("computed by", f"{llm.executor} in {llm.dtype}, KV cache in {llm.kv_dtype}{integers}"),
            ("context", f"{self._used} of {llm.max_model_len} tokens, messages answered: {talk.num_turns}"),
            ("system", talk.system or "none"),
            ("set here", settings or "nothing"),
            ("otherwise", llm.defaults_notice or "the usual"),
        ]
        tell(columns(rows))

    def _retry(self, argument: str) -> None:
        question, answer = self._conversation.take_back()
        replaced = False
        try:
            replaced = self._answer(question)
        finally:
            if not replaced:
                self._conversation.add(question, answer)
        if self._conversation.settings.get("temperature", self._llm.default_params.temperature) == 0:
            note("temperature is 0 (greedy), so the answer is the same; try /set temperature 0.7")
        elif "seed" in self._conversation.settings:
            note("the seed is set, so the answer is the same; /set seed default frees it")

    def _load(self, argument: str) -> None:
        if not argument:
            raise UsageError("/load needs the name of a file, which /save wrote")
        from karat.checkpoint.files import open_regular

        path = Path(argument).expanduser()
        file, size = open_regular(path, UsageError)
        with file:
            if size > MAX_PIPE_BYTES:
                raise UsageError(f"{path}: has {size} bytes; expected a conversation of at most {MAX_PIPE_BYTES}")
            try:
                content = json.loads(file.read(MAX_PIPE_BYTES))
            except (ValueError, RecursionError) as fault:
                raise UsageError(f"{path}: is no JSON ({fault}); expected what /save wrote") from None
        try:
            talk = Conversation.from_json(content)
        except KaratError as fault:
            fault.add_note(f"in {path}")
            raise
        self._check_template(talk.system)
        self._conversation, self._used = talk, 0
        note(f"{self._conversation.num_turns} messages with their answers from {path}")

    def _save(self, argument: str) -> None:
        if not argument:
            raise UsageError("/save needs the name of a file")
        path = Path(argument).expanduser()
        content = {
            "model": str(self._llm.path),
            "settings": self._conversation.settings,
            "messages": self._conversation.messages(),
        }
        from karat.checkpoint.files import whole_file

        if path not in self._saved and path.exists():
            raise UsageError(f"{path} exists already; give the name of a new file")
        with whole_file(path) as file:
            file.write(json.dumps(content, ensure_ascii=False, indent=2).encode("utf-8", "backslashreplace") + b"\n")
        self._saved.add(path)
        note(f"saved to {path}")

"""ChatTemplate: renders a conversation to the prompt a model was trained on, byte for byte as transformers does."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.exceptions

from karat.errors import TemplateError
from karat.text.chat_prompt import REASONING
from karat.text.template_budget import LimitError, TemplateBudget, shallow_size
from karat.text.template_sandbox import Refusal, SandboxEnvironment

MAX_SOURCE_CHARS = 128 * 1024  # the largest template seen in a released model has 17 thousand
MAX_PATTERN_CHARS = 1000
# Characters that a render may put out: a base, and a number for each byte of the conversation.
BASE_OUTPUT_CHARS, OUTPUT_CHARS_PER_BYTE = 1024**2, 16


class ChatTemplate:
    """A compiled chat template. Immutable; `render` may be called from any number of threads.

    `source` is untrusted Jinja. The keyword arguments (`bos_token`, `eos_token`, …) are the special tokens that it may
    name, None where the tokenizer has none. `literal_text` is all text that the source itself contains, joined by NUL.
    Raises `TemplateError`, with the line, for a source that does not compile.
    """

    def __init__(self, source: str, **special_tokens: str | None) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateError(
                f"the chat template has {len(source)} characters; at most {MAX_SOURCE_CHARS} are read; "
                "give the model a shorter template"
            )
        self.source = source
        self.special_tokens = {name: token for name, token in special_tokens.items() if token is not None}
        try:
            environment = _environment(TemplateBudget(), datetime.now)
            self._code, self.literal_text = environment.compile_metered(source)
        except Exception as error:
            raise _failure(error) from error

    def render(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        now: Callable[[], datetime] | datetime = datetime.now,
        **extra: Any,
    ) -> str:
        """The prompt for `messages`, special tokens included. It is to be encoded without adding any.

        A message is a mapping such as `{"role": "user", "content": "Hi"}`. Keys whose value is None are left out. The
        value of `reasoning_content`, `thinking` or `reasoning` is given to the template under the first two names.
        `tools` are JSON schemas. `extra` are further variables for the template; they may replace special tokens. All
        values are those of JSON. `now` is the clock that a template reads with `strftime_now`.

        Raises `TemplateError` if `messages` is empty or contains anything else, if the template refuses the
        conversation, if it fails, or if it needs more time, memory or output than a prompt can need.
        """
        if not messages:
            raise TemplateError("the conversation is empty; expected at least one message; add one")
        for kind, items in (("message", messages), ("tool", tools or ()), ("document", documents or ())):
            for index, item in enumerate(items):
                if not isinstance(item, Mapping):
                    raise TemplateError(f"{kind} {index} is a {type(item).__name__}; expected a mapping")
        try:
            variables: dict[str, Any] = {
                **self.special_tokens,
                **_plain(extra),
                "messages": [_message(_plain(message)) for message in messages],
                "tools": _plain(tools),
                "documents": _plain(documents),
                "add_generation_prompt": add_generation_prompt,
            }
            num_bytes = _num_bytes(variables)
        except RecursionError as error:
            raise TemplateError("the conversation is nested too deeply; expected a few levels; flatten it") from error
        environment = _environment(TemplateBudget(num_bytes), now if callable(now) else lambda: now)
        template = jinja2.Template.from_code(environment, self._code, environment.make_globals(None))
        max_chars = BASE_OUTPUT_CHARS + OUTPUT_CHARS_PER_BYTE * num_bytes
        num_chars, parts = 0, []
        try:
            for part in template.generate(variables):
                parts.append(part)
                num_chars += len(part)
                if num_chars > max_chars:
                    raise LimitError(f"it puts out more than {max_chars} characters")
        except Exception as error:
            needs_tools = tools is None and isinstance(error, TypeError) and "NoneType" in str(error)
            raise _failure(error, needs_tools=needs_tools) from error
        return "".join(parts)


def _environment(budget: TemplateBudget, clock: Callable[[], datetime]) -> SandboxEnvironment:
    def strftime_now(pattern: str) -> str:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise LimitError(f"it asks for the time in more than {MAX_PATTERN_CHARS} characters")
        return clock().strftime(pattern)

    return SandboxEnvironment(budget, {"tojson": _tojson}, {"strftime_now": strftime_now})


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, which Jinja's own filter adds."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _message(message: dict[str, Any]) -> dict[str, Any]:
    present = {name: value for name, value in message.items() if value is not None}
    for name in REASONING:
        if name in present:
            return {"thinking": present[name], **present, "reasoning_content": present[name]}
    return present


def _plain(value: Any) -> Any:
    """A copy of a JSON-like value in built-in types: subclasses may have methods unknown to the sandbox."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return value if type(value) is kind else getattr(kind, f"__{kind.__name__}__")(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    raise TemplateError(
        f"the conversation holds a {type(value).__name__}; expected strings, numbers, booleans, None, lists and "
        "mappings; convert it"
    )


def _num_bytes(value: Any) -> int:
    if isinstance(value, dict):
        return shallow_size(value) + sum(_num_bytes(key) + _num_bytes(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return shallow_size(value) + sum(map(_num_bytes, value))
    return shallow_size(value)


def _failure(error: Exception, *, needs_tools: bool = False) -> TemplateError:
    """The TemplateError for a failed render, with the line of the template. `needs_tools`: it may want some."""
    lineno, trace = getattr(error, "lineno", None), error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            lineno = trace.tb_lineno
        trace = trace.tb_next
    place = f"the chat template, line {lineno}" if lineno else "the chat template"
    if isinstance(error, Refusal):
        return TemplateError(f"{place}, refuses the conversation: {error}; change the messages")
    if isinstance(error, LimitError):
        return TemplateError(f"{place}, was stopped: {error}; expected what a prompt needs; use another template")
    what = str(error) if isinstance(error, jinja2.exceptions.TemplateError) else repr(error)
    remedy = "it seems to be for conversations with tools: send some, or take" if needs_tools else "repair it, or take"
    return TemplateError(
        f"{place}, fails: {what}; expected one that renders this conversation; {remedy} another template"
    )

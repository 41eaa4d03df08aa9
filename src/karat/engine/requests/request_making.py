"""RequestMaker: makes requests from the prompts, conversations and parameters that callers of `LLM` give."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from karat.engine.choosing.sampler import derived_seed
from karat.engine.model_loading.defaults import GenerationDefaults, turn_end_ids
from karat.engine.requests.admission import params_after
from karat.engine.requests.messages import Message, goes_on, linked, no_conversation, plain_messages
from karat.engine.requests.passed import MAX_PASSED, Passed
from karat.errors import RequestError
from karat.request import MAX_SEED, SamplingParams, StructuredOutputs, shown
from karat.request_record import Request
from karat.text import ChatPrompt, Tokenizer
from karat.text.chat_prompt import INSTRUCTING

if TYPE_CHECKING:
    from karat.text.tools.dialect import Dialect

# A text, token ids, vLLM's mapping ({"prompt": text} or {"prompt_token_ids": ids}), or what LLM.chat_prompt made.
Prompt = str | Sequence[int] | Mapping[str, Any] | ChatPrompt

_log = logging.getLogger("karat")


class RequestMaker:
    """Numbers requests and fills in what they leave open: parameters, seed, end tokens. It computes nothing.

    The notice of `defaults` is logged when they are first applied. max_model_len is the context in tokens. `seed` and a
    request's number give the seed of a request that has none; if it is None, the system's randomness does. Only an
    engine that keeps states has a use for cache points: each costs another rendering of the conversation.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        defaults: GenerationDefaults,
        *,
        max_model_len: int,
        seed: int | None,
        with_cache_points: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self.defaults = defaults
        self._max_model_len = max_model_len
        self._seed = seed
        self._with_cache_points = with_cache_points
        self._numbers = count()
        self._notice_is_due = defaults.notice is not None
        self._told_of_bos = False
        self._told_of: set[str] = set()

    @cached_property
    def chat_end_token_ids(self) -> frozenset[int]:
        """The tokens that end an answer in a conversation: the model's, and the one that the template ends it with."""
        return self.defaults.end_token_ids | turn_end_ids(self._tokenizer)

    @cached_property
    def dialect(self) -> "Dialect":
        """How the chat template tells of tools, writes calls and reasons. The first use renders a few prompts."""
        from karat.text.tools.dialect import dialect_of  # tools: most starts know none

        return dialect_of(self._tokenizer)

    @cached_property
    def _part_roles(self) -> tuple[frozenset[str], frozenset[str]]:
        """The roles whose contents the chat template reads part by part: without tools, and with them."""
        from karat.text.content_parts import roles_with_parts

        return roles_with_parts(self._tokenizer, tools=False), roles_with_parts(self._tokenizer, tools=True)

    def default_params_after(self, prompt_len: int, given: Mapping[str, Any] = {}) -> SamplingParams:
        """The default sampling after a prompt, as `karat.engine.requests.admission.params_after`."""
        return params_after(prompt_len, self._max_model_len, self.defaults.params, given)

    def params_for(
        self, num_prompts: int, params: SamplingParams | Sequence[SamplingParams] | None
    ) -> Sequence[SamplingParams | None]:
        """The parameters for each prompt; None stands for the defaults, which depend on the prompt's length."""
        if params is None:
            if self._notice_is_due:
                _log.info("%s", self.defaults.notice)
                self._notice_is_due = False
            return [None] * num_prompts
        if not isinstance(params, SamplingParams | Sequence):
            raise RequestError(
                f"sampling_params: {shown(params)} is no SamplingParams, nor a list of them", param="sampling_params"
            )
        listed = [params] * num_prompts if isinstance(params, SamplingParams) else list(params)
        for item in listed:
            if not isinstance(item, SamplingParams):
                raise RequestError(f"sampling_params: {shown(item)} is no SamplingParams", param="sampling_params")
        if len(listed) != num_prompts:
            raise RequestError(f"{len(listed)} SamplingParams for {num_prompts} prompts; give one, or one for each")
        return listed

    def priorities_for(self, num_prompts: int, priority: int | Sequence[int]) -> Sequence[int]:
        """The priority of each prompt, from one for all or one for each."""
        if isinstance(priority, int):
            return [priority] * num_prompts
        if not isinstance(priority, Sequence) or len(priority) != num_prompts:
            raise RequestError(
                f"priority={shown(priority)} for {num_prompts} prompts: expected an integer, or one for each",
                param="priority",
            )
        return priority

    def request(self, prompt: Prompt, params: SamplingParams | None, **terms: Any) -> Request:
        """A request that answers a conversation, or continues a text (which may get a BOS) or token ids (unchanged).

        `terms` are further fields of it. RequestError for those that no engine can keep to.
        """
        if isinstance(prompt, ChatPrompt):
            params = None if params is None else _going_on(prompt, params)
            ends, point = self.chat_end_token_ids, prompt.cache_point
            return self._request(prompt.token_ids, params, prompt.text, ends, cache_point=point, **terms)
        text, ends = None, self.defaults.end_token_ids
        if isinstance(prompt, Mapping):
            text = prompt.get("prompt")
            prompt = _of_mapping(prompt)
        if isinstance(prompt, str):
            ids = self._tokenizer.encode(prompt, max_tokens=self._max_model_len)
            self._warn_of_two_bos(ids)
            return self._request(ids, params, prompt, ends, **terms)
        text = text if isinstance(text, str) else None  # that the token ids are of, as the caller says
        if text is not None and not _is_unicode(text):
            raise RequestError(
                f"prompt={shown(text)}: expected Unicode; it has half a surrogate pair; take it out", param="prompt"
            )
        return self._request(prompt, params, text, ends, **terms)

    def chat_prompt(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> ChatPrompt:
        """A conversation as the model receives it. `variables` are further arguments of Tokenizer.chat_prompt."""
        passed = Passed()
        plain: Sequence[Message] = linked(plain_messages(messages, passed))
        self._tell_of(passed.names)
        if goes_on(messages):
            variables = {**variables, "add_generation_prompt": False, "continue_final_message": True}
        if any(isinstance(message.get("content"), list) for message in plain):
            from karat.text.content_parts import joined  # most conversations have texts alone

            plain = joined(plain, self._part_roles[variables.get("tools") is not None])
        later = any(message.get("role") in INSTRUCTING for message in plain[1:])
        if later or any(message.get("tool_calls") or message.get("tool_call_id") for message in plain):
            plain = self.dialect.shown(plain)
        if tools := variables.get("tools"):
            self.dialect.require_tools(read=False)
            plain = self.dialect.with_tools(plain, tools)
            variables = {**variables, "tools": self.dialect.described(tools)}
        if not self._with_cache_points:
            return self._tokenizer.chat_prompt(plain, max_tokens=self._max_model_len, **variables)
        from karat.text.cache_point import cache_point  # most models keep no state

        variables = {"now": datetime.now(), **variables}
        prompt = self._tokenizer.chat_prompt(plain, max_tokens=self._max_model_len, **variables)
        return replace(prompt, cache_point=cache_point(self._tokenizer, prompt, plain, variables))

    def _tell_of(self, names: Sequence[str]) -> None:
        """Say once of each that it has no effect."""
        new = [name for name in names if name not in self._told_of]
        if new and len(self._told_of) < MAX_PASSED:
            self._told_of.update(new)
            _log.warning("%s: no model is shown such keys; they have no effect", ", ".join(new))

    def _warn_of_two_bos(self, ids: Sequence[int]) -> None:
        """Say once that a text spells the BOS that the tokenizer puts before it. It stays: the caller wrote it."""
        bos = self._tokenizer.bos_token_id
        if bos is None or self._told_of_bos or list(ids[:2]) != [bos, bos]:
            return
        self._told_of_bos = True
        _log.warning(
            "a prompt begins with %s twice: the text has it, and the tokenizer puts it before every text; "
            "leave it out of the text, or give token ids",
            self._tokenizer.id_to_token(bos),
        )

    def _request(
        self,
        token_ids: Sequence[int],
        params: SamplingParams | None,
        prompt: str | None,
        end_token_ids: frozenset[int],
        **terms: Any,
    ) -> Request:
        ids = plain_ids(token_ids)
        if params is None:
            params = self.default_params_after(len(ids))
        seed, number = params.seed, next(self._numbers)
        if seed is None:
            seed = (
                int.from_bytes(os.urandom(8), "big") & MAX_SEED
                if self._seed is None
                else derived_seed(self._seed, number)
            )
        terms = {"request_id": str(number), **terms}
        made = Request(
            prompt_token_ids=ids, params=params, seed=seed, prompt=prompt, end_token_ids=end_token_ids, **terms
        )
        _check_terms(made)
        return made


def _check_terms(request: Request) -> None:
    """RequestError for what is no term of a request, and for a resumed one whose draws are not known."""
    salt, wish = request.salt, request.receipt
    if not isinstance(salt, str | None):
        raise RequestError(f"salt={shown(salt)}: expected a text, or None", param="salt")
    if wish is not True and wish is not False and wish != "digests":
        raise RequestError(f"receipt={wish!r}: expected True, False or 'digests'", param="receipt")
    if request.resume is not None and request.params.seed is None and request.params.temperature > 0:
        raise RequestError("resume without a seed: expected the one that the answer was drawn with; give it")


def _going_on(prompt: ChatPrompt, params: SamplingParams) -> SamplingParams:
    """The parameters of an answer that goes on with a message, if it does: its form is that of both together.

    Calls are the answer's own: a call that is begun in the message is not read.
    """
    form = params.structured_outputs
    if form is None or not prompt.begun or _is_of_calls_alone(form):
        return params
    return replace(params, structured_outputs=replace(form, begun=prompt.begun))


def _is_of_calls_alone(form: StructuredOutputs) -> bool:
    if form.tool_calls is None:
        return False
    from karat.text.tools.grammar import CallGrammar  # most requests have no tools

    return CallGrammar.decoded(form.tool_calls).other is None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def prompts_in(prompts: Prompt | Sequence[Prompt] | None) -> list[Prompt]:
    """A list of prompts. One prompt is a text, token ids or a mapping; anything else is a sequence of prompts.

    RequestError for what is none of these.
    """
    if isinstance(prompts, str | Mapping | ChatPrompt):
        return [prompts]
    _require_sequence("prompts", prompts)
    assert prompts is not None
    if len(prompts) > 0 and isinstance(prompts[0], int | np.integer):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _of_mapping(prompt: Mapping[str, Any]) -> str | Sequence[int]:
    """The token ids of a mapping, or its text if it has none."""
    ids, text = prompt.get("prompt_token_ids"), prompt.get("prompt")
    is_text = ids is None and isinstance(text, str)
    if is_text or (isinstance(ids, Sequence | np.ndarray) and not isinstance(ids, str)):
        if others := prompt.keys() - {"prompt", "prompt_token_ids"}:
            raise RequestError(f"a prompt with {shown(min(others, key=str))}: expected text or token ids alone")
        return text if is_text else ids  # type: ignore[return-value]
    advice = "; for a conversation use LLM.chat" if "role" in prompt else ""
    raise RequestError(
        f"a prompt={shown(dict(prompt))}: expected {{'prompt': a text}} or {{'prompt_token_ids': token ids}}{advice}"
    )


def chat_options(
    tools: Sequence[Message] | None,
    tool_choice: str,
    add_generation_prompt: bool,
    now: datetime | None,
    variables: Mapping[str, Any] | None,
    sanitize_control_tokens: bool,
    continue_final_message: bool,
) -> dict[str, Any]:
    """The `variables` of `RequestMaker.chat_prompt`. A `now` of None is the clock.

    RequestError for a `tool_choice` that cannot be kept to.
    """
    if tool_choice != "auto":
        from karat.engine.requests.tool_calls import tools_shown  # most conversations have no tools

        tools = tools_shown(tools or (), tool_choice)
    options = {
        "tools": tools,
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
        "sanitize_control_tokens": sanitize_control_tokens,
    }
    return {**(variables or {}), **options, **({} if now is None else {"now": now})}


def conversations_in(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """A list of conversations. One conversation is a sequence of mappings; anything else is a sequence of them."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise no_conversation(messages)
    if len(messages) > 0 and isinstance(messages[0], Mapping):
        return [messages]  # type: ignore[list-item]
    return list(messages)  # type: ignore[arg-type]


def plain_ids(token_ids: Sequence[int]) -> tuple[int, ...]:
    """Token ids with NumPy's integers converted to Python's. Other values stay; the engine checks them."""
    _require_sequence("a prompt", token_ids)
    return tuple(int(i) if isinstance(i, np.integer) else i for i in token_ids)


def _require_sequence(name: str, value: object) -> None:
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, bytes | bytearray | memoryview):
        raise RequestError(f"{name}={shown(value)}: expected a text, token ids, or a list of them")

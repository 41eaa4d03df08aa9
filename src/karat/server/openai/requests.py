"""From requests of OpenAI's protocol to the inner form, with all checks. Nothing here computes or waits."""

from collections.abc import Mapping
from typing import Any

from karat.engine.requests.messages import goes_on
from karat.engine.requests.passed import Passed
from karat.server.asking.asked import AnswerForm, ChatRequest, TextRequest
from karat.server.asking.conversation import as_sent, require_continuable
from karat.server.asking.sampling import require_length, sampling_of
from karat.server.asking.structures import structure_field
from karat.server.asking.terms import Terms, read_terms
from karat.server.asking.variables import Effort, read_variables, switched, thought
from karat.server.bodies import Body, judge
from karat.server.errors import invalid
from karat.server.fields import CHAT, MAX_PROMPTS, TEXT, Count, Field, Flag, Text, keyed
from karat.server.openai.formats import structure
from karat.server.openai.messages import read_messages
from karat.server.openai.tools import read_tools

STREAM_OPTIONS: Mapping[str, Field] = keyed(
    Field("include_usage", (), "honoured", "The last event has the usage.", Flag),
    Field("continuous_usage_stats", (), "honoured", "Every event has the usage so far (vLLM's).", Flag),
    Field("include_obfuscation", (), "without effect", "Events are not padded.", Flag),
)
REASONING: Mapping[str, Field] = keyed(  # of a chat, as OpenRouter has it
    Field("effort", (), "honoured", "As reasoning_effort.", Text),
    Field("enabled", (), "honoured", "Switches the reasoning.", Flag),
    Field("max_tokens", (), "without effect", "Reasoning has no length of its own.", Count),
    Field("summary", (), "without effect", "None is made.", Text),
    Field("exclude", (), "refused", "leave it out, and drop the reasoning", off=(False,)),
)


@as_sent()
def read_chat(body: Body) -> ChatRequest:
    """The request of a chat body; its echo is the names of its custom tools.

    400 for contradictory fields, and for messages that are no text.
    """
    values = body.values
    require_length(body, "max_tokens", "max_completion_tokens")
    given = sampling_of(values, CHAT) | structure(values)
    if "max_completion_tokens" in values:
        if given.get("max_tokens", values["max_completion_tokens"]) != values["max_completion_tokens"]:
            raise invalid("max_tokens", "max_tokens and max_completion_tokens differ; give the latter alone")
        given["max_tokens"] = values["max_completion_tokens"]
    if values.get("logprobs"):
        given["logprobs"] = values.get("top_logprobs", 0)
    elif values.get("top_logprobs"):
        raise invalid("top_logprobs", "top_logprobs without logprobs: true; give both")
    passed = Passed()
    messages, (tools, customs) = read_messages(values["messages"], passed), read_tools(values, passed)
    (efforts, unheeded), continues = _efforts(values), continues_last(values)
    return ChatRequest(
        messages,
        read_variables(values, continues=continues),
        given,
        _form(body),
        read_terms(values, resumes=True),
        tools,
        efforts,
        (*body.without_effect, *unheeded, *passed.names),
        continues,
        customs,
    )


@as_sent()
def read_conversation(values: Mapping[str, Any]) -> ChatRequest:
    """A conversation that is rendered and not answered."""
    (tools, _), continues = read_tools(values, passed := Passed()), continues_last(values)
    variables = read_variables(values, continues=continues)
    messages = read_messages(values["messages"], passed)
    return ChatRequest(messages, variables, {}, AnswerForm(None), Terms(), tools=tools, continues=continues)


def read_text(body: Body) -> TextRequest:
    """The request of a completion body. 400 for contradictory fields."""
    values = body.values
    given, form = sampling_of(values, TEXT) | structure(values), _form(body)
    prompts = _prompts(values["prompt"])
    if given.get("max_tokens") == 0:
        if not form.echo:
            raise invalid("max_tokens", "max_tokens=0: expected 1 or more, or echo: true, which gives the prompt back")
        given["max_tokens"] = 1
        given.pop("min_tokens", None)
    if form.echo and form.stream and "logprobs" in given and given.get("n", 1) > 1:
        raise invalid("echo", "echo with logprobs and n > 1 cannot stream; leave out one of them")
    if form.echo and "logprobs" in given:
        given["prompt_logprobs"] = max(given["logprobs"], given.get("prompt_logprobs", 0))
    terms = read_terms(values, resumes=True)
    if terms.resume is not None and len(prompts) != 1:
        raise invalid("karat.resume", f"karat.resume with {len(prompts)} prompts: expected one; send several requests")
    if form.no_answer and (terms.receipt or terms.resume):
        raise invalid("karat", "karat with max_tokens=0: there is no answer; leave it out")
    return TextRequest(
        prompts,
        values.get("add_special_tokens", True),
        given,
        form,
        terms,
        body.without_effect,
    )


def _efforts(values: Mapping[str, Any]) -> tuple[tuple[Effort, ...], tuple[str, ...]]:
    """What a chat asks of the reasoning, the field that says most first, and the names of keys without effect."""
    efforts = [Effort("reasoning_effort", values["reasoning_effort"])] if "reasoning_effort" in values else []
    body = judge(values.get("reasoning", {}), REASONING, "reasoning.")
    if "effort" in body.values:
        efforts.append(Effort("reasoning.effort", body.values["effort"]))
    if "enabled" in body.values:
        efforts.append(Effort("reasoning.enabled", "on" if body.values["enabled"] else "none"))
    by_thinking, names = thought(values.get("thinking"))
    unheeded = (*(f"reasoning.{name}" for name in body.without_effect), *names)
    return (*efforts, *by_thinking, *switched(values)), unheeded


def continues_last(values: Mapping[str, Any]) -> bool:
    """Whether a chat is to go on with its last message: by its field, or by the key that Mistral's and Qwen's have.

    400 where it cannot.
    """
    messages = values["messages"]
    asked = values.get("continue_final_message", False) or goes_on(messages)
    if asked and values.get("add_generation_prompt"):
        text = "add_generation_prompt=True with continue_final_message: an answer that goes on opens no other"
        raise invalid("add_generation_prompt", f"{text}; leave it out")
    if asked:
        require_continuable(messages[-1], f"messages[{len(messages) - 1}]")
    return bool(asked)


def _prompts(prompt: Any) -> list[str | tuple[int, ...]]:
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if kinds == {int}:
        return [tuple(prompt)]
    if kinds not in ({str}, {list}):
        raise invalid("prompt", "prompt mixes texts, token ids and lists; expected one kind")
    if len(prompt) > MAX_PROMPTS:
        raise invalid(
            "prompt", f"prompt has {len(prompt)} prompts; expected at most {MAX_PROMPTS}; send several requests"
        )
    return [item if isinstance(item, str) else tuple(item) for item in prompt]


def _form(body: Body) -> AnswerForm:
    values = body.values
    stream = values.get("stream", False)
    options = judge(values.get("stream_options", {}), STREAM_OPTIONS, "stream_options.").values
    if "stream_options" in values and not stream:
        raise invalid("stream_options", "stream_options without stream: true; leave it out, or stream")
    return AnswerForm(
        model=values.get("model"),
        stream=stream,
        include_usage=options.get("include_usage", False) or options.get("continuous_usage_stats", False),
        continuous_usage=options.get("continuous_usage_stats", False),
        token_ids=values.get("return_token_ids", False),
        tokens_as_ids=values.get("return_tokens_as_token_ids", False),
        progress=values.get("return_progress", False),
        timings_per_token=values.get("timings_per_token", False),
        echo=values.get("echo", False),
        prompt_logprobs="prompt_logprobs" in values,
        no_answer=values.get("max_tokens") == 0,
        structure_field=structure_field(values),
        prompt_field="messages" if "messages" in values else "prompt",
        length_field="max_completion_tokens" if "max_completion_tokens" in values else body.sent("max_tokens"),
    )

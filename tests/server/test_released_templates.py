"""Models of many families, by their released templates: calls whose values the schema types, reasoning that the prompt
has opened, whole and streamed, in every protocol; and the answer sent back is what the model wrote. Of OLMo 3, EXAONE
4, Phi-4-mini, and SmolLM3 with tools, no template is at hand: theirs are made by hand.

Covers: karat.text.tools.xml, karat.text.tools.lfm2, karat.text.tools.gemma, karat.text.tools.atem,
karat.text.tools.olmo, karat.text.tools.phi, karat.text.tools.granite.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from karat.server.fields import CHAT, MESSAGES, RESPONSES, TEXT
from tests.server.conftest import Running, serving
from tests.server.test_next_turn import events_in, gathered, parts_of, turns_of
from tests.support.scripted import script, write_scripted
from tests.text.tools.models import EXAONE, OLMO, PHI4_MINI, SMOLLM3

VALUES: dict[str, Any] = {
    "city": "It's <b>Ålesund</b>",
    "code": "007",
    "days": 3,
    "share": 0.5,
    "sure": True,
    "tags": ["a", "b"],
    "more": {"k": [1, None]},
    "none": None,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "code": {"type": "string"},
        "days": {"type": "integer"},
        "share": {"type": "number"},
        "sure": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object"},
        "none": {"type": ["string", "null"]},
    },
    "required": ["city"],
}


def xml(values: dict[str, Any]) -> str:
    """A call as Qwen's templates write it: texts as they are, lists and objects as JSON, the rest as Python."""
    texts = {key: json.dumps(value) if isinstance(value, list | dict) else str(value) for key, value in values.items()}
    inner = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
    return f"<tool_call>\n<function=look>\n{inner}</function>\n</tool_call>"


def pythonic(values: dict[str, Any]) -> str:
    """A call as LFM2.5's template writes it: texts between quotes as they are, objects as JSON, the rest as Python."""
    texts = {
        key: f"'{value}'" if isinstance(value, str) else json.dumps(value) if isinstance(value, dict) else str(value)
        for key, value in values.items()
    }
    inner = ", ".join(f"{key}={text}" for key, text in texts.items())
    return f"<|tool_call_start|>[look({inner})]<|tool_call_end|>"


def documented(values: dict[str, Any]) -> str:
    """A call as LFM2's documentation writes it: Python, texts between double quotes."""
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    inner = ", ".join(f"{key}={text}".replace("null", "None").replace("true", "True") for key, text in texts.items())
    return f"<|tool_call_start|>[look({inner})]<|tool_call_end|>"


def gemma(values: dict[str, Any]) -> str:
    """A call as Gemma 4's template writes it: names in order, texts between quotes of their own, None as Python's."""

    def written(value: Any) -> str:
        match value:
            case str():
                return f'<|"|>{value}<|"|>'
            case dict():
                return "{" + ",".join(f"{key}:{written(value[key])}" for key in sorted(value)) + "}"
            case list():
                return f"[{','.join(map(written, value))}]"
            case _:
                return {True: "true", False: "false"}.get(value, str(value)) if value is not None else "None"

    return f"<|tool_call>call:look{written(values)}<tool_call|>"


def hermes(values: dict[str, Any]) -> str:
    """A call as JSON between tags."""
    return f'<tool_call>\n{{"name": "look", "arguments": {json.dumps(values, ensure_ascii=False)}}}\n</tool_call>'


def phi(values: dict[str, Any]) -> str:
    call = f'{{"name": "look", "arguments": {json.dumps(values, ensure_ascii=False)}}}'
    return f"<|tool_call|>[{call}]<|/tool_call|>"


def granite(values: dict[str, Any]) -> str:
    return phi(values).removesuffix("<|/tool_call|>")


def mistral(values: dict[str, Any]) -> str:
    return f"[TOOL_CALLS]look[ARGS]{json.dumps(values, ensure_ascii=False)}"


def seed(values: dict[str, Any]) -> str:
    """A call as Seed-OSS' template writes it: every value but a text as Python's."""
    inner = "".join(f"<parameter={key}>{value}</parameter>\n" for key, value in values.items())
    return f"<seed:tool_call>\n<function=look>\n{inner}</function>\n</seed:tool_call>"


def olmo(values: dict[str, Any]) -> str:
    inner = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return f"<function_calls>look({inner})</function_calls>"


def atem(values: dict[str, Any]) -> str:
    """A call as Muse Glimmer's template writes it: texts as they are, all else as JSON."""
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for key, value in values.items()
    }
    inner = "".join(f'<atem:parameter name="{key}">{text}</atem:parameter>\n' for key, text in texts.items())
    return f'<atem:function_calls>\n<atem:invoke name="look">\n{inner}</atem:invoke>\n</atem:function_calls>'


PHI_MARKS = ("<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>")
LFM2_MARKS = ("<|tool_call_start|>", "<|tool_call_end|>")
GEMMA_MARKS = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<|tool_response>", "<turn|>")
MISTRAL_MARKS = ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]")
ATEM_MARKS = ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>")
ATEM_NEXT = "<|eom|><|start|>assistant"
# How each protocol asks for reasoning where the template has none by itself.
ON = {
    CHAT: {"reasoning_effort": "high"},
    RESPONSES: {"reasoning": {"effort": "high"}},
    MESSAGES: {"thinking": {"type": "enabled", "budget_tokens": 1024}},
}


@dataclass(frozen=True)
class Released:
    """How a model writes its answers: a call, what stands before it and before a text, a thought and what is around it.

    `special` are the tokens that these need, `end` is what ends an answer, if not <|im_end|>. `beside` is whether the
    template writes a text beside a call, `recalls` whether it writes the thought of an answer again, `goes_on` whether
    a history begins with the prompt. A template is that of the name, unless it is made by `hand`.
    """

    write: Callable[[dict[str, Any]], str]
    before: str = ""
    thought: str = ""
    text: str = ""
    special: tuple[str, ...] = ()
    hand: str | None = None
    on: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    beside: bool = True
    recalls: bool = True
    goes_on: bool = True
    end: str | None = None

    def thinking(self, said: str) -> str:
        return self.thought.format(said)

    def said(self, thought: str, text: str = "Let me see.", *, call: bool = True) -> str:
        """Reasoning, where the model has some, a text and a call, as its template writes them."""
        spoken = f"{self.text}{text}" if text else ""
        written = (self.before if text else self.before.removeprefix(ATEM_NEXT)) + self.write(VALUES) if call else ""
        return f"{self.thinking(thought)}{spoken}{written}"


MODELS = {
    "Qwen3.5-4B": Released(xml, "\n\n", "{}\n</think>\n\n"),
    "Qwen3-Coder": Released(xml, "\n\n"),
    "LFM2.5-8B-A1B": Released(pythonic, "", "<think>{}</think>", special=LFM2_MARKS),
    "LFM2-8B-A1B": Released(documented, "\n", special=LFM2_MARKS),
    "google-gemma-4-31B-it": Released(
        gemma, "", "<|channel>thought\n{}\n<channel|>", special=GEMMA_MARKS, beside=False
    ),
    "muse-glimmer": Released(
        atem,
        f"{ATEM_NEXT} to=look<|message|>",
        f" to=self<|message|>{{}}{ATEM_NEXT}",
        " to=user<|message|>",
        special=ATEM_MARKS,
        beside=False,
    ),
    "mistralai-Ministral-3-14B-Reasoning-2512": Released(
        mistral, "", "[THINK]{}[/THINK]", special=MISTRAL_MARKS, recalls=False, end="</s>"
    ),
    "ibm-granite-granite-4.1": Released(hermes, "\n", end="<|end_of_text|>"),
    "ibm-granite-granite-3.3-2B-Instruct": Released(
        granite, "\n", "<think>{}</think>", special=("<|tool_call|>",), recalls=False, end="<|end_of_text|>"
    ),
    "ByteDance-Seed-OSS": Released(seed, "\n\n", "<seed:think>{}</seed:think>\n", end="<seed:eos>"),
    "SmolLM3": Released(hermes, "\n", "<think>\n{}\n</think>\n", hand=SMOLLM3, recalls=False),
    "Phi-4-mini": Released(phi, "\n", special=PHI_MARKS, hand=PHI4_MINI, end="<|end|>"),
    "OLMo 3": Released(olmo, hand=OLMO),
    "OLMo 3 Think": Released(
        olmo, "", "{}</think>", hand=OLMO + "{{ '<think>' if add_generation_prompt }}", goes_on=False
    ),
    "EXAONE 4": Released(
        lambda values: hermes(values).replace("\n", ""),
        "",
        "{}\n</think>\n\n",
        hand=EXAONE,
        on=ON,
        goes_on=False,
        end="[|endofturn|]",
    ),
}


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The template's name, and a server of a scripted model with it."""
    released = MODELS[request.param]
    template = released.hand or (data_dir / "templates" / f"{request.param}.jinja").read_text(encoding="utf-8")
    special = (*released.special, *([released.end] if released.end else []))
    folder = write_scripted(tmp_path_factory.mktemp("released"), template, special=special, eos_token=released.end)
    with serving(str(folder), program="tests.support.scripted_serve") as running:
        yield request.param, running


def body_of(route: str, said: str, schema: dict[str, Any] = SCHEMA) -> dict[str, Any]:
    text = script(said)
    if route == RESPONSES:
        return {"input": text, "tools": [{"type": "function", "name": "look", "parameters": schema}]}
    messages = [{"role": "user", "content": text}]
    if route == MESSAGES:
        return {"messages": messages, "max_tokens": 4000, "tools": [{"name": "look", "input_schema": schema}]}
    function = {"name": "look", "parameters": schema}
    return {"messages": messages, "tools": [{"type": "function", "function": function}]}


def check(route: str, server: Running, said: str, expected: list[tuple[str, Any, str]], **given: Any) -> None:
    """The parts of an answer: kind, text or arguments, and the name of a tool."""
    body = body_of(route, said) | given
    whole = server.ask(route, body)
    assert whole.status == 200, whole.content
    streamed = server.ask(route, body | {"stream": True})
    for parts in (parts_of(route, turns_of(route, whole.json)), gathered(route, events_in(route, streamed))):
        found = [(kind, json.loads(text) if kind == "call" else text, called) for kind, text, called, _ in parts]
        assert found == expected, route


@pytest.mark.slow
def test_calls_and_reasoning(model: tuple[str, Running]) -> None:
    name, server = model
    released = MODELS[name]
    thought = "Hm, <tool_call> in a thought." if released.thought else ""
    said = released.said(thought)
    expected = [("reasoning", thought, "")] if thought else []
    for route in (CHAT, RESPONSES, MESSAGES):
        parts = [*expected, ("text", "Let me see.", ""), ("call", VALUES, "look")]
        check(route, server, said, parts, **released.on.get(route, {}))
    for stream in (False, True):  # a completion is the text, without special tokens
        answer = server.ask(TEXT, {"prompt": script(said), "max_tokens": 4000, "stream": stream})
        pieces = answer.events if stream else [answer.json]
        text = "".join(choice["text"] for piece in pieces for choice in piece["choices"])
        for mark in released.special:
            said = said.replace(mark, "")
        assert text == said


@pytest.mark.slow
def test_a_call_that_must_come_keeps_to_the_schema_behind_the_reasoning(model: tuple[str, Running]) -> None:
    """The scripted model would say a text, and is not let."""
    name, server = model
    released = MODELS[name]
    short = {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}
    schema = {"type": "object", "properties": short, "required": list(short)}
    single = {"tool_choice": "required", "parallel_tool_calls": False}
    choices = {CHAT: single, RESPONSES: single}
    choices[MESSAGES] = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    for route, choice in choices.items():
        said = released.said("Hm.", "No call.", call=False)
        if released.text:  # a text may come before the call: it begins the call, and the grammar makes the rest
            said = released.thinking("Hm.") + " to=look<|message|>"
        body = body_of(route, said, schema) | choice | released.on.get(route, {})
        answer = server.ask(route, body)
        *others, (kind, text, called, _) = parts_of(route, turns_of(route, answer.json))
        made = json.loads(text)
        assert (kind, called) == ("call", "look") and len(made["city"]) <= 8 and made["days"] in range(1, 10)
        assert [part[:2] for part in others] == ([("reasoning", "Hm.")] if released.thought else [])


@pytest.mark.slow
def test_reasoning_that_is_switched_off(model: tuple[str, Running]) -> None:
    """Qwen3.5's prompt then closes it: nothing of the answer is reasoning. Others have no switch, or need none."""
    name, server = model
    if name == "OLMo 3 Think":
        pytest.skip("its prompt always opens the reasoning")
    released = MODELS[name]
    off = {CHAT: {"reasoning_effort": "none"}, RESPONSES: {"reasoning": {"effort": "none"}}}
    for route, given in (off | {MESSAGES: {"thinking": {"type": "disabled"}}}).items():
        said = replace(released, thought="").said("", "Yes.")
        check(route, server, said, [("text", "Yes.", ""), ("call", VALUES, "look")], **given)


@pytest.mark.slow
def test_an_answer_sent_back_is_what_the_model_wrote(model: tuple[str, Running]) -> None:
    """The next prompt begins with this one and the answer, so nothing of either is computed anew."""
    name, server = model
    released = MODELS[name]
    if not released.goes_on:
        pytest.skip("its template writes no history that begins with the prompt")
    thought = "Hm." if released.recalls else ""
    if not released.recalls:
        released = replace(released, thought="")
    said = released.said(thought, "Let me see." if released.beside else "")
    body = body_of(CHAT, said)
    if name.startswith("google"):  # a thought is begun only where it may come
        body |= {"chat_template_kwargs": {"enable_thinking": True}}
    (choice,) = server.ask(CHAT, body | {"return_token_ids": True}).json["choices"]
    result = {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": "It is wet."}
    later = body | {"messages": [*body["messages"], choice["message"], result]}
    prompt, after = (server.ask("/render", each).json["prompt"] for each in (body, later))
    assert after.startswith(prompt + said) and "It is wet." in after
    ids, after_ids = (server.ask("/tokenize", each).json["tokens"] for each in (body, later))
    known = [*ids, *choice["token_ids"]][:-1]  # but for the end
    assert after_ids[: len(known)] == known

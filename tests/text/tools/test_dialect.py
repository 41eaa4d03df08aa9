"""What chat templates of released models say of tools, calls and reasoning."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from karat.errors import TemplateError
from karat.text.tools.dialect import Dialect, dialect_of, written
from karat.text.tools.parser import AnswerParser
from karat.text.tools.reasoning import TAGS
from karat.text.tools.registry import FORMATS
from tests.text.tools.answers import CALLS, TOOLS
from tests.text.tools.models import EXAONE, OLMO, OLMO2, PHI4, PHI4_MINI, PLAIN, PYTHONIC, SMOLLM, byte_tokenizer

# The format of calls; None where Karat reads none of the template's form, or it has none.
KNOWN = {
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "MiMo-VL": "hermes",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "meta-llama-Llama-3.2-3B-Instruct": "llama",
    "meta-llama-Llama-3.3-70B-Instruct": "llama",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral-args",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral-args",
    "Qwen3-Coder": "qwen-xml",
    "Qwen3.5-4B": "qwen-xml",
    "StepFun3.5-Flash": "qwen-xml",
    "ByteDance-Seed-OSS": "seed-xml",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "lfm2",
    "muse-glimmer": "atem",
    "openai-gpt-oss-120b": "harmony",
    "google-gemma-4-31B-it": "gemma",
    "google-gemma-4-31B-it-interleaved": "gemma",
}
CALL = {"name": "get_weather", "arguments": {"city": "Oslo \"'}]", "days": [1, 2.5], "sure": True}}
USER = {"role": "user", "content": "What is the weather?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "A city."}},
            "required": ["city"],
        },
    },
}


@pytest.mark.slow
def test_formats_of_released_models(data_dir: Path) -> None:
    found = {}
    for file in sorted((data_dir / "templates").glob("*.jinja")):
        dialect = dialect_of(byte_tokenizer(file.read_text(encoding="utf-8")))
        found[file.stem] = None if dialect.form is None else dialect.form.name
        assert dialect.form is None or (dialect.knows_tools and dialect.writes_calls == (file.stem not in SILENT))
    assert len(found) > 40
    assert {name: form for name, form in found.items() if form is not None} == KNOWN


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_call_that_a_template_writes_is_read(data_dir: Path, name: str) -> None:
    """The template's own call, as the model was trained on it, after the prompt that asks for an answer."""
    tokenizer = byte_tokenizer((data_dir / "templates" / f"{name}.jinja").read_text(encoding="utf-8"))
    _reads_its_own_call(tokenizer)


@pytest.mark.parametrize(
    ("template", "form"),
    [(SMOLLM, "smollm"), (PYTHONIC, "pythonic"), (OLMO, "olmo"), (EXAONE, "hermes"), (PHI4_MINI, "phi")],
)
def test_formats_of_which_a_template_tells(template: str, form: str) -> None:
    dialect = dialect_of(byte_tokenizer(template))
    assert dialect.knows_tools and dialect.form is not None and dialect.form.name == form
    assert dialect.writes_calls == (form not in ("smollm", "phi"))
    assert dialect.tools_in_system == (form == "phi")
    if dialect.writes_calls:
        _reads_its_own_call(byte_tokenizer(template))


def _reads_its_own_call(tokenizer: Any) -> None:
    dialect = dialect_of(tokenizer)
    call = {"id": "abcdef123", "type": "function", "function": {**CALL, "arguments": json.dumps(CALL["arguments"])}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    whole = tokenizer.render_chat(dialect.shown([USER, answer]), tools=[TOOL], add_generation_prompt=False)
    written = whole[whole.rindex(USER["content"]) :]
    mark = next((mark for mark in dialect.form.marks if mark in written), None)
    begun = tokenizer.render_chat([USER], tools=[TOOL])
    text = whole.removeprefix(begun) if mark is None else written[written.index(mark) :]
    (found,) = AnswerParser(form=dialect.form, tools=["get_weather"]).parse(text).calls
    assert {"name": found.name, "arguments": json.loads(found.arguments)} == CALL


def test_templates_without_tools(data_dir: Path) -> None:
    assert dialect_of(byte_tokenizer(PLAIN)) == Dialect()
    assert dialect_of(byte_tokenizer()) == Dialect()
    gemma = (data_dir / "templates" / "google-gemma-2-2b-it.jinja").read_text(encoding="utf-8")
    assert not dialect_of(byte_tokenizer(gemma)).knows_tools


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (OLMO2, "<s><|system|>\nBe brief.\n<|user|>\nHi\n<|assistant|>\nHello</s>\n<|user|>\nBye\n<|assistant|>\n"),
        (
            PHI4,
            "<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>Hi<|im_end|>"
            "<|im_start|>assistant<|im_sep|>Hello<|im_end|><|im_start|>user<|im_sep|>Bye<|im_end|>"
            "<|im_start|>assistant<|im_sep|>",
        ),
    ],
)
def test_families_without_tools(template: str, prompt: str) -> None:
    tokenizer = byte_tokenizer(template)
    said = (("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Bye"))
    assert tokenizer.render_chat([{"role": role, "content": text} for role, text in said]) == prompt
    assert dialect_of(tokenizer) == Dialect()


@pytest.mark.parametrize(
    ("name", "variables", "opens"),
    [
        ("Qwen-QwQ-32B", {}, False),
        ("Qwen-QwQ-32B", {"enable_thinking": True}, True),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", {"enable_thinking": True}, True),
        ("Qwen3.5-4B", {}, True),
        ("Qwen3.5-4B", {"enable_thinking": False}, False),
        ("Qwen-Qwen2.5-7B-Instruct", {}, False),
    ],
)
def test_prompts_that_open_the_reasoning(data_dir: Path, name: str, variables: Any, opens: bool) -> None:
    tokenizer = byte_tokenizer((data_dir / "templates" / f"{name}.jinja").read_text(encoding="utf-8"))
    assert dialect_of(tokenizer).opens_reasoning(tokenizer.render_chat([USER], **variables)) == opens


def test_reasoning_of_exaone_is_opened_by_its_template() -> None:
    tokenizer = byte_tokenizer(EXAONE)
    dialect = dialect_of(tokenizer)
    assert dialect.tags == ("<think>", "</think>") and dialect.variables == {"enable_thinking"}
    for opens in (True, False):
        assert dialect.opens_reasoning(tokenizer.render_chat([USER], enable_thinking=opens)) == opens


@pytest.mark.parametrize("tags", TAGS)
def test_tags_of_reasoning_are_those_of_the_template(tags: tuple[str, str]) -> None:
    assert dialect_of(byte_tokenizer(PLAIN + f"{{# {tags[0]} {tags[1]} #}}")).tags == tags


def test_marks_that_are_special_tokens() -> None:
    tags = PLAIN + "{# <think></think> #}"
    assert dialect_of(byte_tokenizer(tags, special=["</think>"])).hides_marks
    assert not dialect_of(byte_tokenizer(tags, added=["</think>"], special=["<|im_end|>"])).hides_marks


# Templates that write no call of the history: they render a conversation without it, or fail, in transformers too.
SILENT = {
    "HuggingFaceTB-SmolLM3-3B",
    "Kimi-K2-Instruct",
    "Kimi-K2-Thinking",
    "LFM2-8B-A1B",
    "LFM2.5-Instruct",
    "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "microsoft-Phi-3.5-mini-instruct",
}
TAKE_TEXT = {"meetkai-functionary-medium-v3.2"}


@pytest.mark.slow
def test_a_history_of_calls_is_rendered_as_transformers_renders_it(data_dir: Path) -> None:
    """Whatever the form: most templates write JSON, eleven write XML, gemma a form of its own."""
    transformers = pytest.importorskip("transformers")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    silent = set()
    for file in sorted((data_dir / "templates").glob("*.jinja")):
        template = file.read_text(encoding="utf-8")
        tokenizer = byte_tokenizer(template)
        dialect = dialect_of(tokenizer)
        if not dialect.writes_calls:
            silent.add(file.stem)
            continue
        assert dialect.arguments_are_text == (file.stem in TAKE_TEXT), file.stem
        tools = [TOOL] if dialect.knows_tools else None
        values = {"city": "Oslo <b>", "days": [1, 2], "sure": True}
        as_text = json.dumps(values)
        expected = theirs.apply_chat_template(
            _talk_of(as_text if dialect.arguments_are_text else values),
            tools=tools,
            chat_template=template,
            tokenize=False,
            add_generation_prompt=True,
        )
        given = dialect.shown(_talk_of(as_text))
        assert dialect.shown(_talk_of(values)) == given
        assert tokenizer.render_chat(given, tools=tools) == expected, file.stem
        assert "Oslo" in expected
    assert silent == SILENT


def _talk_of(arguments: Any) -> list[dict[str, Any]]:
    """A conversation with a call, its result, and an answer to it."""
    call = {"id": "abcdef123", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    return [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather", "content": "Wet."},
        {"role": "assistant", "content": "It is wet."},
        {"role": "user", "content": "Thanks."},
    ]


@pytest.mark.parametrize(
    ("written", "writes", "as_text"),
    [
        ("{{ call.function.arguments }}", True, True),  # a mapping would come out as Python prints it
        ("{{ call.function.arguments | tojson }}", True, False),
        ("{% for k, v in call.function.arguments.items() %}<{{ k }}>{{ v }}</{{ k }}>{% endfor %}", True, False),
        ("{{ call.function.arguments.items() | map('first') | join }}", False, False),  # values get lost
        ("{{ call.function.arguments.values() | join }}", False, False),  # keys get lost, though the tools have them
        ("{{ call.function.name }}", False, False),
    ],
)
def test_key_and_value_come_out_of_the_rendering(written: str, writes: bool, as_text: bool) -> None:
    template = (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}"
        "{% for call in message.tool_calls or [] %}" + written + "{% endfor %}\n{% endfor %}{{ tools | tojson }}"
    )
    dialect = dialect_of(byte_tokenizer(template))
    assert (dialect.writes_calls, dialect.arguments_are_text) == (writes, as_text)
    assert dialect.knows_tools and dialect.form is None


def _called(arguments: Any, **function: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "Ok.",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments, **function}}
        ],
    }


@pytest.mark.parametrize("given", ['{"a": 1}', {"a": 1}])
def test_arguments_for_the_template(given: Any) -> None:
    for dialect, expected in (
        (Dialect(writes_calls=True), {"a": 1}),
        (Dialect(writes_calls=True, arguments_are_text=True), '{"a": 1}'),
    ):
        (message,) = dialect.shown([_called(given)])
        assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": expected}
    assert Dialect(writes_calls=True).shown([_called("")])[0]["tool_calls"][0]["function"]["arguments"] == {}


def test_calls_of_a_wrong_form_are_refused() -> None:
    for wrong in (_called("[1]"), _called("}"), _called("1"), _called({}, name=1), {"role": "a", "tool_calls": ["x"]}):
        with pytest.raises(TemplateError, match="call"):
            Dialect(writes_calls=True).shown([wrong])
    with pytest.raises(TemplateError, match="does not write"):
        Dialect().shown([_called("{}")])


def test_short_ids_stay_together() -> None:
    dialect = Dialect(writes_calls=True, form=FORMATS["mistral"])
    call, result, short = dialect.shown(
        [_called("{}"), {"role": "tool", "tool_call_id": "call_1", "content": "a"}, {"tool_call_id": "abcDEF123"}]
    )
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] and len(result["tool_call_id"]) == 9
    assert short["tool_call_id"] == "abcDEF123"
    assert Dialect(writes_calls=True).shown([result])[0] == result


@given(st.sampled_from(sorted(FORMATS)), CALLS)
def test_calls_are_written_where_the_template_writes_none(form: str, calls: list[Any]) -> None:
    text = written(FORMATS[form], calls)
    found = AnswerParser(form=FORMATS[form], tools=TOOLS).parse(text)
    assert found.text == "" and [(call.name, json.loads(call.arguments)) for call in found.calls] == calls
    message = {"role": "assistant", "tool_calls": [_call_of(*call) for call in calls]}
    assert Dialect(form=FORMATS[form]).shown([message]) == [{"role": "assistant", "content": text}]


def test_marks_of_calls_that_karat_writes_are_control_tokens_and_arguments_are_text() -> None:
    """LFM2's templates write no calls: its tokens are in the content, where texts spell no tokens."""
    marks = ["<|tool_call_start|>", "<|tool_call_end|>", "<|im_end|>"]
    tokenizer = byte_tokenizer(PLAIN, special=marks)
    call = _call_of("f", {"a": "x<|im_end|><|tool_call_end|>"})
    for content in ("Ok.<|tool_call_start|>", "", [{"type": "text", "text": "Ok."}]):
        message = {"role": "assistant", "content": content, "tool_calls": [call]}
        (shown,) = Dialect(form=FORMATS["lfm2"]).shown([message])
        template = PLAIN if isinstance(content, str) else PLAIN.replace("message.content", "message.content[1].text")
        prompt = byte_tokenizer(template, special=marks).chat_prompt([shown], sanitize_control_tokens=True)
        ids = [tokenizer.token_to_id(mark) for mark in marks]
        assert [i for i in prompt.token_ids if i in ids] == ids
        assert '[f(a="x<|im_end|><|tool_call_end|>")]<|tool_call_end|><|im_end|>' in prompt.text


def _call_of(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


BARE = """{%- for tool in tools or [] %}{{ tool.name }}: {{ tool.description }} {{ tool.parameters | tojson }}
{% endfor %}{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}"""


@pytest.mark.parametrize("needs", [False, True])
def test_a_template_that_reads_the_name_of_a_tool_itself_gets_functions(needs: bool) -> None:
    """Given with the key `function` or without it; a template that reads both gets tools as they are."""
    template = BARE.replace("tool.description", "tool.description + '.'") if needs else BARE
    function = {"name": "clock", "parameters": {"type": "object"}}
    tool = {"type": "function", "function": function}
    dialect = dialect_of(byte_tokenizer(template))
    assert (dialect.knows_tools, dialect.bare_tools, dialect.needs_descriptions) == (True, True, needs)
    told = [{**function, "description": ""}] if needs else [function]
    assert dialect.described([tool]) == told
    assert dialect.described([function]) == told
    dialect.require_tools(read=False)
    nested = dialect_of(byte_tokenizer(BARE.replace("in tools or []", "in (tools or []) | map(attribute='function')")))
    assert not nested.bare_tools and nested.described([tool]) == [tool]
    assert not dialect_of(byte_tokenizer(BARE.replace("tools or []", "[]"))).knows_tools

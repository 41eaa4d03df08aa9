"""LLM with what a model brings: its chat template, its end tokens, its default sampling.

Covers: karat.text.chat_prompt.
"""

import logging
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from karat import LLM, SamplingParams
from karat.errors import CapacityError, TemplateError
from tests.engine.tiny import ENDOFTEXT, GREEDY, IM_END, IM_START, tokens, write_model


def test_chat_runs_the_rendered_prompt(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    (output,) = llm.chat(messages, GREEDY)
    assert output.prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert list(output.prompt_token_ids) == llm.tokenizer.encode_chat(messages)
    assert tokens([output]) == tokens(llm.generate(list(output.prompt_token_ids), GREEDY))
    many = llm.chat([messages, messages[:1]], GREEDY)
    assert tokens(many) == tokens([output, output])
    assert "".join(chunk.text for chunk in llm.stream_chat(messages, GREEDY)) == output.outputs[0].text


def test_text_gets_the_tokenizers_bos_and_a_rendered_chat_does_not(tmp_path: Path) -> None:
    llm = LLM(write_model(tmp_path, add_bos=True))
    assert llm.generate("a", GREEDY)[0].prompt_token_ids == (ENDOFTEXT, *llm.tokenizer.encode("a")[1:])
    assert llm.generate("", GREEDY)[0].prompt_token_ids == (ENDOFTEXT,), "a bare BOS is a prompt"
    assert llm.generate([97], GREEDY)[0].prompt_token_ids == (97,), "ids are taken as they are"
    (output,) = llm.chat([{"role": "user", "content": "a"}], GREEDY)
    assert output.prompt_token_ids[0] == IM_START and ENDOFTEXT not in output.prompt_token_ids


def test_chat_options_reach_the_template(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}|{{ tools[0].function.name }}|{{ strftime_now('%Y') }}|"
        "{{ mood }}{% if add_generation_prompt %}>{% endif %}"
    )
    llm = LLM(write_model(tmp_path, chat_template=template))
    options: dict[str, Any] = {
        "tools": [{"type": "function", "function": {"name": "dice"}}],
        "now": datetime(1999, 1, 1),
        "chat_template_kwargs": {"mood": "calm"},
    }
    (output,) = llm.chat([{"role": "user", "content": "Hi"}], GREEDY, **options)
    assert output.prompt == "Hi|dice|1999|calm>"
    (output,) = llm.chat([{"role": "user", "content": "Hi"}], GREEDY, add_generation_prompt=False, **options)
    assert output.prompt == "Hi|dice|1999|calm"


def test_a_conversation_ends_with_the_templates_token_though_no_config_names_it(llm: LLM) -> None:
    assert llm.end_token_ids == frozenset() and llm.chat_end_token_ids == {IM_END}
    pushed = SamplingParams(temperature=0, max_tokens=5, logit_bias={IM_END: 100})
    (answer,) = llm.chat([{"role": "user", "content": "Hi"}], pushed)[0].outputs
    assert (answer.text, answer.token_ids, answer.finish_reason, answer.stop_reason) == ("", (IM_END,), "stop", IM_END)
    (text,) = llm.generate("Hi", pushed)[0].outputs
    assert text.token_ids == (IM_END,) * 5 and text.finish_reason == "length"


@pytest.mark.parametrize("generation_config", ["auto", "none"])
def test_every_end_token_of_generation_config_ends(tmp_path: Path, generation_config: Any) -> None:
    ends = [ENDOFTEXT, 65]
    llm = LLM(write_model(tmp_path, generation_config={"eos_token_id": ends}), generation_config=generation_config)
    for end in ends:
        (choice,) = llm.generate("Hi", SamplingParams(temperature=0, max_tokens=5, logit_bias={end: 100}))[0].outputs
        assert (choice.token_ids, choice.finish_reason, choice.stop_reason) == ((end,), "stop", end)
        ignored = SamplingParams(temperature=0, max_tokens=5, logit_bias={end: 100}, ignore_eos=True)
        (choice,) = llm.generate("Hi", ignored)[0].outputs
        assert choice.token_ids == (end,) * 5 and choice.finish_reason == "length"


def test_without_a_chat_template(tmp_path: Path) -> None:
    llm = LLM(write_model(tmp_path, chat_template=None))
    assert llm.chat_end_token_ids == frozenset()
    with pytest.raises(TemplateError, match="no chat template"):
        llm.chat([{"role": "user", "content": "Hi"}])


# Defaults


def test_defaults_of_generation_config_are_applied_and_shown_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = {"do_sample": True, "temperature": 0.7, "top_k": 3, "max_new_tokens": 4, "num_beams": 2}
    folder = write_model(tmp_path, generation_config=raw)
    llm = LLM(folder, seed=5)
    assert llm.default_params == SamplingParams(temperature=0.7, top_k=3, max_tokens=4)
    caplog.clear()  # what loading says
    with caplog.at_level(logging.INFO, "karat"):
        explicit = llm.generate("abc", llm.default_params)
        assert caplog.messages == [], "nothing was applied behind anybody's back"
        given = LLM(folder, seed=5).generate("abc")
        assert tokens(given) == tokens(explicit) and len(given[0].outputs[0].token_ids) == 4
        said = [text for text in caplog.messages if text.startswith("sampling defaults")]
        assert len(said) == 1 and "temperature=0.7" in said[0] and "num_beams=2" in said[0]
        llm.generate("abc")
        llm.generate("abc")
        list(llm.stream("abc"))
        said = [text for text in caplog.messages if text.startswith("sampling defaults")]
        assert len(said) == 2, "once for each LLM"
    assert {record.levelno for record in caplog.records} == {logging.INFO}, "what a model asks for is no warning"


def test_defaults_can_be_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    raw = {"do_sample": True, "temperature": 0.7, "max_new_tokens": 4}
    llm = LLM(write_model(tmp_path, generation_config=raw), generation_config="none")
    assert llm.default_params == SamplingParams() and llm.defaults_notice is None
    caplog.clear()
    with caplog.at_level(logging.INFO, "karat"):
        llm.generate("x" * 120)
    assert caplog.messages == []


def test_a_default_limit_gives_way_to_the_context(tmp_path: Path) -> None:
    """What nobody asked for is no reason to refuse; what somebody asked for is."""
    folder = write_model(tmp_path, generation_config={"max_new_tokens": 100, "min_new_tokens": 20})
    llm = LLM(folder, max_model_len=32)
    for prompt_len, rest in ((4, 28), (20, 12)):
        (output,) = llm.generate([65] * prompt_len)
        assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (rest, "length")
    assert llm.default_params.max_tokens == 100
    with pytest.raises(CapacityError, match="max_tokens=100"):
        llm.generate([65] * 20, llm.default_params)

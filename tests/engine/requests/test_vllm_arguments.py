"""Arguments by vLLM's names: taken, noted as without effect, or refused with what replaces them.

Covers: karat.engine.requests.request_bar.
"""

import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from karat import LLM, SamplingParams
from karat.engine.requests import request_bar
from karat.errors import ExecutorError, HubError, RequestError, UsageError
from karat.text import Tokenizer
from tests.engine.tiny import GREEDY, tokens, write_model

MESSAGES = [{"role": "user", "content": "Hi"}]


def test_sampling_params_and_use_tqdm_are_taken_by_name(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    same = llm.generate("a", GREEDY)
    assert tokens(llm.generate(prompts="a", sampling_params=GREEDY, use_tqdm=False)) == tokens(same)
    answer = llm.chat(messages=MESSAGES, sampling_params=GREEDY, use_tqdm=False)
    streams = (llm.stream("a", sampling_params=GREEDY), llm.stream_chat(MESSAGES, sampling_params=GREEDY))
    texts = ["".join(chunk.text for chunk in stream) for stream in streams]
    assert texts == [same[0].outputs[0].text, answer[0].outputs[0].text]
    assert capsys.readouterr().err == "", "no bar unless it is asked for"


def test_a_bar_tells_requests_and_tokens(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b", "c"], GREEDY, use_tqdm=True)
    assert re.search(r"3/3 requests .* 60 tokens \(\d+\.\d/s\)", capsys.readouterr().err)
    llm.chat(MESSAGES, GREEDY, use_tqdm=True)
    assert re.search(r"1/1 requests .* 20 tokens \(", capsys.readouterr().err)


def test_a_bar_shows_itself_on_a_terminal_when_a_call_takes_long(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_bar, "_UNASKED_AFTER_S", 0.0)
    llm.generate("a", GREEDY)
    assert capsys.readouterr().err == "", "stderr is no terminal"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    llm.generate("a", GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""
    llm.generate("a", GREEDY)
    assert "requests" in capsys.readouterr().err
    monkeypatch.setattr(request_bar, "_UNASKED_AFTER_S", 3600.0)
    llm.generate("a", GREEDY)
    assert capsys.readouterr().err == "", "it is soon done"


def test_what_has_no_effect_is_noted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "karat"):
        LLM(folder, gpu_memory_utilization=0.5, enforce_eager=True, trust_remote_code=True)
    said = [message.partition(" has no effect: ") for message in caplog.messages]
    assert [name for name, has_none, _ in said if has_none] == [
        "gpu_memory_utilization",
        "enforce_eager",
        "trust_remote_code",
    ]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("revision", "org/name@revision"),
        ("download_dir", "HF_HOME"),
        ("quantization", "quantize="),
        ("max_model_length", "did you mean max_model_len?"),
        ("gpu_memory_utilisation", "did you mean gpu_memory_utilization?"),
        ("quantisation", "did you mean quantization? LLM has none either; a quantised file says so itself"),
        ("served_model_name", "a name is for a server"),
        ("max_logprobs", "LLM.logits"),
        ("attention_backend", "leave it out"),
        ("async_scheduling", "leave it out"),
        ("logits_processors", "logit_bias"),
        ("compilation_config", "leave it out"),
        ("zzz", "expected one of activations, chat_template, "),
    ],
)
def test_other_names_are_refused_with_advice(folder: Path, name: str, advice: str) -> None:
    with pytest.raises(UsageError, match=f"LLM has no {name}; ") as caught:
        LLM(folder, **{name: "x", "enforce_eager": True})
    assert advice in str(caught.value) and "others" not in str(caught.value)


@pytest.mark.parametrize("method", ["generate", "chat", "stream", "stream_chat"])
def test_calls_refuse_other_names_with_advice(llm: LLM, method: str) -> None:
    call: Callable[..., Any] = getattr(llm, method)
    for name, advice in {
        "lora_request": "no adapters",
        "params": "use sampling_params=",
        "sampling_param": "did you mean sampling_params?",
    }.items():
        with pytest.raises(UsageError, match=rf"LLM.{method} has no {name}; ") as caught:
            call(MESSAGES if "chat" in method else "a", **{name: None})
        assert advice in str(caught.value)


def test_prompt_token_ids_beside_no_prompts_are_refused_with_where_they_go(llm: LLM) -> None:
    with pytest.raises(UsageError, match=r"LLM.generate has no prompt_token_ids; give them as prompts=, as a list"):
        llm.generate(prompt_token_ids=[[1, 2]])
    with pytest.raises(RequestError, match="prompts=None: expected a text, token ids, or a list of them"):
        llm.generate()


@pytest.mark.parametrize(
    ("name", "advice"), [("embed", "no embeddings yet"), ("create_chat_completion", "use LLM.chat"), ("ask", None)]
)
def test_methods_of_others_are_answered(llm: LLM, name: str, advice: str | None) -> None:
    with pytest.raises(AttributeError, match=f"LLM has no {name}") as caught:
        getattr(llm, name)
    assert (advice or "") in str(caught.value) and not hasattr(llm, name)


def test_a_field_of_sampling_params_is_refused_with_where_it_goes(llm: LLM) -> None:
    with pytest.raises(UsageError, match=r"LLM.generate has no max_tokens; give it as SamplingParams\(max_tokens=…\)"):
        llm.generate("a", max_tokens=4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", None])
def test_a_dtype_is_refused_by_the_types_allowed(folder: Path, dtype: Any) -> None:
    with pytest.raises(ExecutorError, match=r"^dtype=.*: expected 'auto', 'float32' or 'float64'") as caught:
        LLM(folder, dtype=dtype)
    assert "reference" not in str(caught.value)


def test_auto_is_float32(folder: Path) -> None:
    assert LLM(folder, dtype="auto").dtype == LLM(folder).dtype == "float32"


def test_a_tokenizer_may_be_named(folder: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path, add_bos=True)
    for tokenizer in (other, str(other), Tokenizer.from_folder(other)):
        llm = LLM(folder, tokenizer=tokenizer)
        assert llm.get_tokenizer().encode("a") == Tokenizer.from_folder(other).encode("a")
    with pytest.raises(HubError, match="nowhere"):
        LLM(folder, tokenizer="nowhere")
    with pytest.raises(UsageError, match=r"^tokenizer=5: expected"):
        LLM(folder, tokenizer=5)  # type: ignore[arg-type]


def test_the_default_sampling_is_told(tmp_path: Path) -> None:
    llm = LLM(write_model(tmp_path, generation_config={"do_sample": True, "temperature": 0.7, "top_k": 3}))
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.7, top_k=3)


def test_the_program_of_the_page_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "from-vllm.md").read_text(encoding="utf-8")
    program = text.split("```python\n")[1].split("```")[0]
    name = "Qwen/Qwen2.5-0.5B-Instruct"
    assert name in program
    exec(program.replace(name, str(folder)), {})  # noqa: S102
    assert capsys.readouterr().out

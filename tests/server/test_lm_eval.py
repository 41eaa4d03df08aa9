"""lm-eval asks the server, on a task of our own: loglikelihoods equal LLM's, and chats are scored."""

import json
from pathlib import Path
from typing import Any

import pytest

from karat import LLM, SamplingParams
from karat.config import embedded_model_path
from tests.server.conftest import Running

pytest.importorskip("lm_eval", reason="lm-eval is not installed (requirements/lm-eval.txt)")

STORIES = [
    {"text": "Once upon a time, there was a little", "choices": [" girl", " stone", " of"], "answer": 0},
    {"text": "The dog wagged his", "choices": [" tail", " book"], "answer": 0},
    {"text": "Lily was very happy, and she", "choices": [" smiled", " the", " one two three"], "answer": 0},
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is fetched, and nothing that would fetch is asked."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("OPENAI_API_KEY", "dummy")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


def evaluated(model: str, server: Running, route: str, task: dict[str, Any], folder: Path, **given: Any) -> Any:
    import lm_eval
    from lm_eval.tasks import TaskManager

    data = folder / "stories.jsonl"
    data.write_text("\n".join(map(json.dumps, STORIES)))
    config = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "metadata": {"version": 1},
        **task,
    }
    arguments = {
        "model": "karat-embedded",
        "base_url": server.url + route,
        "num_concurrent": 2,
        "max_retries": 1,
        "eos_string": "<end>",
        **given,
    }
    return lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=[config],
        task_manager=TaskManager(include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        apply_chat_template=model == "local-chat-completions",
    )


@pytest.mark.slow
def test_loglikelihoods_equal_those_of_llm(server: Running, tmp_path: Path) -> None:
    task = {
        "task": "stories",
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
    }
    made = evaluated(
        "local-completions",
        server,
        "/v1/completions",
        task,
        tmp_path,
        tokenizer=str(embedded_model_path()),
        tokenizer_backend="huggingface",
    )
    llm = LLM()
    num_compared = 0
    for sample in made["samples"]["stories"]:
        story = STORIES[sample["doc_id"]]
        for choice, (found, _) in zip(story["choices"], sample["filtered_resps"], strict=True):
            start = len(llm.tokenizer.encode(story["text"]))
            whole = llm.tokenizer.encode(story["text"] + choice)
            (output,) = llm.generate([whole], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))
            assert output.prompt_logprobs is not None
            entries = zip(output.prompt_logprobs[start:], whole[start:], strict=True)
            assert found == sum(at[i].logprob for at, i in entries if at is not None)
            num_compared += 1
    assert num_compared == 8 and made["results"]["stories"]["acc,none"] == 1


def test_chats_are_scored(server: Running, tmp_path: Path) -> None:
    task = {
        "task": "stories",
        "output_type": "generate_until",
        "doc_to_text": "{{text}}",
        "doc_to_target": "x",
        "generation_kwargs": {"max_gen_toks": 8, "until": ["."], "temperature": 0},
        "metric_list": [{"metric": "exact_match"}],
    }
    made = evaluated("local-chat-completions", server, "/v1/chat/completions", task, tmp_path)
    assert all(sample["resps"][0][0] for sample in made["samples"]["stories"])
    assert len(made["samples"]["stories"]) == len(STORIES)

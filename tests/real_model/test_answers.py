"""A model that people use, as they use it: `karat run`, `karat chat`, `karat inspect`, and from Python."""

import json
from pathlib import Path

from karat import LLM, SamplingParams
from tests.cli.conftest import Karat

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


def test_a_haiku_about_the_moon_has_the_moon_in_it(llm: LLM) -> None:
    """And says other things too, in lines: not the request again, and not one word for ever."""
    (output,) = llm.chat([{"role": "user", "content": "Write a haiku about the moon."}])
    text, words = output.outputs[0].text, output.outputs[0].text.lower().split()
    assert "moon" in text and text.count("\n") >= 2, text
    assert len(set(words)) > 10 and "haiku" not in words, text
    assert output.outputs[0].finish_reason == "stop"


def test_json_says_what_was_asked_and_answered(smollm2: Path, karat: Karat) -> None:
    done = karat("run", "--json", "--chat", QUESTION, "-m", str(smollm2))
    said = json.loads(done.stdout)
    (choice,) = said["choices"]
    assert choice["text"] == ANSWER and choice["finish_reason"] == "stop"
    assert said["usage"] == {"prompt_tokens": 37, "completion_tokens": 8, "total_tokens": 45}
    assert said["sampling"]["temperature"] == 0  # what the file brings


def test_a_conversation_goes_on(smollm2: Path, karat: Karat) -> None:
    done = karat("chat", str(smollm2), "-q", "--max-tokens", "20", stdin=f"{QUESTION}\nIs it a big city?\n")
    assert done.returncode == 0, done.stderr
    first, rest = done.stdout.split("\n", 1)
    assert first == ANSWER and "Paris" in rest, done.stdout


def test_inspect_knows_the_model(smollm2: Path, karat: Karat) -> None:
    said = karat("inspect", str(smollm2)).stdout
    assert "134,515,008" in said and "Q4_1 66.4 MB in 210 tensors" in said
    assert "You are a helpful AI assistant named SmolLM" in said


def test_what_is_asked_together_is_answered_as_alone(llm: LLM) -> None:
    """Prompts of different lengths, batched, and streamed one by one: the same tokens."""
    questions = [QUESTION, "What is 2+2?", "Name a colour of the sky, please, and nothing else."]
    params = SamplingParams(temperature=0, max_tokens=16)
    conversations = [[{"role": "user", "content": question}] for question in questions]
    together = [output.outputs[0].token_ids for output in llm.chat(conversations, params)]
    alone = [llm.chat(messages, params)[0].outputs[0].token_ids for messages in conversations]
    streamed = "".join(chunk.text for chunk in llm.stream(llm.chat_prompt(conversations[0]), params))
    assert together == alone
    assert streamed == ANSWER

"""Against what llama.cpp computes of the same file, as tests/data keeps it, and against float64.

llama.cpp rounds the inputs of every product to 8 bits, Karat by default to 16. So how far the two may be apart is how
far llama.cpp itself is from float64 (recorded beside it), and Karat is held to float64 far more closely.
"""

from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from karat import LLM, SamplingParams
from tools.peers.real_texts import QUESTIONS, TEXT, log_softmax
from tools.real_model import SHA256

# The record has five decimals. Beyond them, what a float32 cache leaves is the rounding of sums in float32 (1.6e-5 at
# most on this text); a float16 cache rounds keys and values by 2^-11, which moves a log-probability by 0.006 at most,
# 0.0014 as a root mean square. llama.cpp is 0.47 and 0.11 away.
CACHES = {"float32": (1e-4, 5e-5), "float16": (0.02, 0.005)}
LARGEST, RMS = CACHES["float16"]


def test_the_record_is_of_this_model_and_of_these_texts(recorded: dict[str, Any]) -> None:
    assert recorded["model"] == SHA256
    assert recorded["made by"].startswith("llama-cpp-python 0.3.36")
    assert recorded["text"] == TEXT and tuple(recorded["chats"]) == QUESTIONS
    assert len(recorded["likely"]) == len(recorded["texts"][TEXT]) - 1


def test_texts_have_the_same_tokens(llm: LLM, recorded: dict[str, Any]) -> None:
    for text, ids in recorded["texts"].items():
        assert list(llm.tokenizer.encode(text, add_special_tokens=False)) == ids, text
    for question, chat in recorded["chats"].items():
        prompt = llm.chat_prompt([{"role": "user", "content": question}])
        assert (prompt.text, list(prompt.token_ids)) == (chat["prompt"], chat["ids"])


def sides(llm: LLM, recorded: dict[str, Any], *names: str) -> list[NDArray[np.float64]]:
    """Log-probabilities [positions, tokens] of the recorded tokens, by these sides."""
    rows = recorded["likely"]
    ours = log_softmax(llm.logits(recorded["texts"][TEXT]))
    karat = np.array([ours[index, row["tokens"]] for index, row in enumerate(rows)])
    return [karat if name == "karat" else np.array([row[name] for row in rows]) for name in names]


@pytest.fixture(scope="module")
def likely(llm: LLM, recorded: dict[str, Any]) -> dict[str, NDArray[np.float64]]:
    """The same by name, Karat with its defaults."""
    names = ("karat", "llama.cpp", "float64")
    return dict(zip(names, sides(llm, recorded, *names), strict=True))


def rms(x: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(x * x)))


@pytest.mark.parametrize("kv_dtype", CACHES)
def test_probabilities_are_those_of_float64(kv_dtype: Any, smollm2: Path, recorded: dict[str, Any]) -> None:
    largest, mean = CACHES[kv_dtype]
    chains = LLM(smollm2, kv_dtype=kv_dtype, max_model_len=128, activations="int24")
    off = np.subtract(*sides(chains, recorded, "karat", "float64"))
    assert np.abs(off).max() < largest and rms(off) < mean


def test_each_width_has_its_place(
    smollm2: Path, recorded: dict[str, Any], likely: dict[str, NDArray[np.float64]]
) -> None:
    """16 bits round less than the float16 cache does; 8 bits about as llama.cpp (docs/determinism.md says how far)."""

    def off(activations: Any, kv_dtype: Any) -> float:
        made = LLM(smollm2, kv_dtype=kv_dtype, max_model_len=128, activations=activations)
        return rms(np.subtract(*sides(made, recorded, "karat", "float64")))

    assert off("int16", "float32") < off("int24", "float16")
    assert off("int8", "float32") < 1.3 * rms(likely["llama.cpp"] - likely["float64"])


def test_llama_cpp_is_as_far_as_its_own_rounding(likely: dict[str, NDArray[np.float64]]) -> None:
    rounding = likely["llama.cpp"] - likely["float64"]
    apart = likely["karat"] - likely["llama.cpp"]
    assert np.abs(apart).max() < np.abs(rounding).max() + LARGEST
    assert rms(apart) < rms(rounding) + RMS
    assert rms(rounding) < 0.2, "a record of another computation than the model's"


def test_perplexity(likely: dict[str, NDArray[np.float64]]) -> None:
    """Of the tokens of a text, the first column: it moves by as many parts as a log-probability does on average."""
    found = {side: float(np.exp(-values[:, 0].mean())) for side, values in likely.items()}
    assert found["karat"] == pytest.approx(found["float64"], rel=RMS)
    assert found["karat"] == pytest.approx(found["llama.cpp"], rel=rms(likely["llama.cpp"] - likely["float64"]) + RMS)


@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_are_those_of_float64_and_leave_llama_cpp_where_rounding_decides(
    question: str, llm: LLM, recorded: dict[str, Any], likely: dict[str, NDArray[np.float64]]
) -> None:
    """Asked for the capital of France, llama.cpp begins with another word, which leads by less than its rounding."""
    chat = recorded["chats"][question]
    params = SamplingParams(temperature=0, max_tokens=len(chat["float64"]))
    (output,) = llm.chat([{"role": "user", "content": question}], params)
    ours = list(output.outputs[0].token_ids)
    assert ours == chat["float64"]
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(ours, chat["llama.cpp"], strict=False))))
    if same < len(chat["llama.cpp"]):
        assert chat["leads"][same] < 2 * np.abs(likely["llama.cpp"] - likely["float64"]).max()
    decided = takewhile(lambda lead: lead > 2 * rms(likely["llama.cpp"] - likely["float64"]), chat["leads"])
    assert same >= len(list(decided))

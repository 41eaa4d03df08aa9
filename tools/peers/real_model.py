"""Results of llama.cpp on the real model of the tests, for test runs on machines without llama.cpp.

    python -m tools.real_model          # fetches the model
    python -m tools.peers.real_model

writes tests/data/smollm2_llama_cpp.json anew. llama.cpp has one thread, a float32 cache and no flash attention. It
rounds the inputs of every product to 8 bits in blocks; Karat does not. So the results of the reference executor in
float64 are kept too: they show how far llama.cpp itself is from the exact numbers.

- texts: the token ids of each text, without BOS.
- chats: a conversation of one message, as Karat renders it; its ids; the tokens with which llama.cpp answers greedily,
  and by how much each leads the second (logits); the tokens with which float64 answers.
- likely: of TEXT, after each token but the last, the next token and the likeliest by llama.cpp, and the log-probability
  (natural) of each: by llama.cpp, and in float64.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.engine.llm import LLM
from karat.request import SamplingParams
from tools.peers.llama import VERSION, LlamaCpp
from tools.peers.real_texts import FILE, QUESTIONS, TEXT, TEXTS, log_softmax
from tools.real_model import PLACE, SHA256

NUM_LIKELY = 5
NUM_GREEDY = 40


def _chat(llm: LLM, peer: LlamaCpp, question: str) -> dict[str, Any]:
    prompt = llm.chat_prompt([{"role": "user", "content": question}])
    ids = peer.tokenise(prompt.text)
    theirs = peer.greedy(ids, NUM_GREEDY)
    ends = [index + 1 for index, token in enumerate(theirs) if token in llm.chat_end_token_ids]
    theirs = theirs[: min(ends, default=NUM_GREEDY)]
    rows = np.sort(peer.logits([*ids, *theirs])[len(ids) - 1 : -1], axis=-1)
    (exact,) = llm.chat([{"role": "user", "content": question}], SamplingParams(temperature=0, max_tokens=NUM_GREEDY))
    return {
        "prompt": prompt.text,
        "ids": ids,
        "llama.cpp": theirs,
        "leads": _rounded(rows[:, -1] - rows[:, -2]),
        "float64": list(exact.outputs[0].token_ids),
    }


def _likely(llm: LLM, peer: LlamaCpp) -> list[dict[str, Any]]:
    ids = peer.tokenise(TEXT)
    theirs, exact = (log_softmax(model.logits(ids))[:-1] for model in (peer, llm))
    found = []
    for row, next_id in enumerate(ids[1:]):
        tokens = [next_id, *(int(token) for token in np.argsort(-theirs[row])[:NUM_LIKELY])]
        found.append(
            {
                "tokens": tokens,
                "llama.cpp": _rounded(theirs[row, tokens]),
                "float64": _rounded(exact[row, tokens]),
            }
        )
    return found


def _rounded(values: NDArray[np.floating]) -> Sequence[float]:
    return [round(float(value), 5) for value in values]


def _as_text(found: Mapping[str, Any]) -> str:
    """JSON, a line for each text, conversation and token."""
    parts = []
    for name, value in found.items():
        if isinstance(value, str):
            parts.append(f" {json.dumps(name)}: {json.dumps(value)}")
            continue
        pairs = (
            ((f"{json.dumps(key)}: ", each) for key, each in value.items())
            if isinstance(value, dict)
            else (("", each) for each in value)
        )
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        lines = ",\n".join(f"  {key}{json.dumps(each)}" for key, each in pairs)
        parts.append(f" {json.dumps(name)}: {opening}\n{lines}\n {closing}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    llm = LLM(PLACE, executor="reference", dtype="float64", max_model_len=256)
    with LlamaCpp(PLACE) as peer:
        found = {
            "made by": f"{VERSION}: python -m tools.peers.real_model",
            "model": SHA256,
            "text": TEXT,
            "texts": {text: peer.tokenise(text) for text in TEXTS},
            "chats": {question: _chat(llm, peer, question) for question in QUESTIONS},
            "likely": _likely(llm, peer),
        }
    FILE.write_text(_as_text(found))
    print(f"{FILE}: {FILE.stat().st_size:,} bytes, {VERSION}")


if __name__ == "__main__":
    main()

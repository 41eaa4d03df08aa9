"""The texts for llama.cpp with the real model of the tests (tools/peers/real_model.py), and the file of its answers."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).parents[2] / "tests" / "data" / "smollm2_llama_cpp.json"
QUESTIONS = ("What is the capital of France?", "Write a haiku about the moon.", "What is 2+2?")
TEXT = (
    "The moon is the only natural satellite of the Earth. It goes around the Earth once every 27 days, and always "
    "shows us the same side, because it turns around itself in the same time."
)
TEXTS = (
    TEXT,
    "Once upon a time, in 1984 (or 2024?), there was a dog who couldn't bark.",
    "  def f(x):\n\treturn x ** 2  # squares\n\n",
    "<|im_start|>user\nHello<|im_end|>\n",
    "你好，世界。Привет, мир! مرحبا",
    "naïve café 👩‍🚀🍎 ½ ﬁ",
)


def log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Log-probabilities [rows, vocab] of logits."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return result

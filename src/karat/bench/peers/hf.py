"""transformers on torch, in the type that the weights are stored in; quantised ones as the float32 they stand for."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from karat.bench.peers.api import PeerModel
from karat.bench.sides import Prompt, Sample
from karat.check.record.hf import word_for_cache

_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16}  # anything else: float32


class Transformers:
    name = "transformers"

    def __init__(self, model: PeerModel, version: str) -> None:
        self.version = f"{version}, torch {torch.__version__}"
        torch.set_num_threads(model.num_threads)
        dtype = _DTYPES.get(model.stored("model.embed_tokens.weight").dtype, torch.float32)
        fields = {key: value for key, value in model.raw_config.items() if key not in ("model_type", "architectures")}
        config = transformers.AutoConfig.for_model(model.config.model_type, **fields)
        self._model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        parameters = dict(self._model.named_parameters())  # a tied head is not listed
        assert parameters.keys() == model.weights.keys(), "transformers has other parameters"
        with torch.no_grad():
            for name, parameter in parameters.items():
                values = model.stored(name).to_array(np.dtype(np.float32))
                parameter.copy_(torch.from_numpy(values))
        self._cache: Any = None
        self._word = word_for_cache(self._model)
        self.details: dict[str, object] = {
            "threads": model.num_threads,
            "dtype": str(dtype).removeprefix("torch."),
            "attention": config._attn_implementation,
        }

    def prefill(self, prompt: Prompt) -> Sample:
        ids = torch.tensor([list(prompt)])
        before = perf_counter()
        with torch.inference_mode():
            self._model(input_ids=ids, use_cache=True, logits_to_keep=1)
        return Sample(perf_counter() - before)

    def start(self, prompts: Sequence[Prompt], num_steps: int) -> None:
        self._cache = transformers.DynamicCache()
        self._advance(torch.tensor([list(prompt) for prompt in prompts]))
        self._step()

    def steps(self, count: int) -> list[Sample]:
        return [self._step() for _ in range(count)]

    def _step(self) -> Sample:
        before = perf_counter()
        self._advance(self._next)
        return Sample(perf_counter() - before)

    def stop(self) -> None:
        self._cache = None

    def close(self) -> None:
        del self._model

    def logits(self, prompt: Sequence[int]) -> NDArray[np.float32]:
        with torch.inference_mode():
            logits = self._model(input_ids=torch.tensor([list(prompt)]), logits_to_keep=1).logits
        values: NDArray[np.float32] = logits[0, -1].float().numpy()
        return values

    def _advance(self, ids: torch.Tensor) -> None:
        """One forward pass over new tokens [seqs, tokens]; keeps the likeliest next tokens for the next pass."""
        with torch.inference_mode():
            out = self._model(input_ids=ids, use_cache=True, logits_to_keep=1, **{self._word: self._cache})
            self._next = out.logits[:, -1:].argmax(-1)


def load(model: PeerModel, version: str) -> Transformers:
    return Transformers(model, version)

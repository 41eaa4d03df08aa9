"""OpenVINO GenAI on the CPU, through its continuous batching, from a GGUF file that it converts when it loads.

By its defaults for precision it may round activations and cache to 8 bits, and multiply in bfloat16 if the processor
can. `load_float32` sets Karat's types: float32 with a float16 cache. A prompt is prefilled in one step. The prefix
cache is off, because with it OpenVINO would not compute the same prompt again.
"""

from collections.abc import Mapping, Sequence
from itertools import count as numbers
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import openvino
import openvino_genai
from numpy.typing import NDArray

from karat.bench.peers.api import PeerModel
from karat.bench.peers.gguf_file import write_peer_file
from karat.bench.sides import Prompt, Sample
from karat.errors import ExecutorError

FLOAT32: Mapping[str, object] = {
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    "KV_CACHE_PRECISION": "f16",
}


class OpenVino:
    def __init__(self, model: PeerModel, version: str, name: str, precision: Mapping[str, object]) -> None:
        self.name = name
        self.version = version
        self._folder = TemporaryDirectory(prefix="karat-bench-")
        path = Path(self._folder.name) / "model.gguf"
        write_peer_file(path, model)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = 2**31 - 1
        scheduler.max_num_seqs = 1024
        scheduler.enable_prefix_caching = False
        try:
            self._pipeline = openvino_genai.ContinuousBatchingPipeline(
                str(path), scheduler, "CPU", {"INFERENCE_NUM_THREADS": model.num_threads, **precision}
            )
        except RuntimeError as error:
            raise ExecutorError(f"OpenVINO GenAI {version} does not load the GGUF file made for it: {error}") from error
        self._ids = numbers()
        self._handles: list[openvino_genai.GenerationHandle] = []
        self.details: dict[str, object] = {"threads": model.num_threads, **precision}

    def prefill(self, prompt: Prompt) -> Sample:
        self._add(prompt, 1)
        before = perf_counter()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        seconds = perf_counter() - before
        self._handles.clear()
        return Sample(seconds)

    def start(self, prompts: Sequence[Prompt], num_steps: int) -> None:
        for prompt in prompts:
            self._add(prompt, num_steps + 2)
        self._pipeline.step()
        self._pipeline.step()

    def steps(self, count: int) -> list[Sample]:
        return [self._step() for _ in range(count)]

    def _step(self) -> Sample:
        before = perf_counter()
        self._pipeline.step()
        return Sample(perf_counter() - before)

    def stop(self) -> None:
        for handle in self._handles:
            handle.cancel()
        self._handles.clear()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()

    def close(self) -> None:
        del self._pipeline
        self._folder.cleanup()

    def logits(self, prompt: Sequence[int]) -> NDArray[np.float32] | None:
        return None

    def _add(self, prompt: Prompt, max_tokens: int) -> None:
        params = openvino_genai.GenerationConfig(max_new_tokens=max_tokens, ignore_eos=True, do_sample=False)
        ids = openvino.Tensor(np.array([list(prompt)], np.int64))
        self._handles.append(self._pipeline.add_request(next(self._ids), ids, params))


def load(model: PeerModel, version: str) -> OpenVino:
    return OpenVino(model, version, "openvino", {})


def load_float32(model: PeerModel, version: str) -> OpenVino:
    return OpenVino(model, version, "openvino-f32", FLOAT32)

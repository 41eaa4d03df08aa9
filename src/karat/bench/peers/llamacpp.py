"""llama.cpp through the low-level API of llama-cpp-python, measured as its own llama-bench and batched-bench do.

Its defaults hold: batches of 2048 in micro-batches of 512, flash attention chosen by itself, an f16 cache. A workload
gets a context of its own. A step decodes one token of every sequence with logits for all, and samples nothing.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from karat.bench.peers.api import PeerModel
from karat.bench.peers.gguf_file import write_peer_file
from karat.bench.sides import Prompt, Sample
from karat.errors import ExecutorError

_FLASH_ATTENTION = {-1: "auto", 0: "off", 1: "on"}


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _silent(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """Silences llama.cpp, which would log everything to stderr."""


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, model: PeerModel, version: str) -> None:
        self.version = f"llama-cpp-python {version}"
        self._num_threads = model.num_threads
        self._vocab_size = model.config.vocab_size
        self._context = None
        self._prompts: Sequence[Prompt] = ()
        llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._folder = TemporaryDirectory(prefix="karat-bench-")
        path = Path(self._folder.name) / "model.gguf"
        write_peer_file(path, model)
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise ExecutorError(f"llama.cpp ({self.version}) does not load the GGUF file made for it; is it too old?")
        params = llama_cpp.llama_context_default_params()
        self._batch_size = params.n_batch
        self._batch = llama_cpp.llama_batch_init(self._batch_size, 0, 1)
        self.details: dict[str, object] = {
            "threads": model.num_threads,
            "n_batch": params.n_batch,
            "n_ubatch": params.n_ubatch,
            "flash_attention": _FLASH_ATTENTION.get(params.flash_attn_type, str(params.flash_attn_type)),
            "system": llama_cpp.llama_print_system_info().decode(),
        }

    def prefill(self, prompt: Prompt) -> Sample:
        if not self._context:
            self._open(1, max(len(prompt), 1))
        elif llama_cpp.llama_n_ctx(self._context) < len(prompt):
            self._open(1, len(prompt))
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
        before = perf_counter()
        self._decode([(token, i, 0, i == len(prompt) - 1) for i, token in enumerate(prompt)])
        return Sample(perf_counter() - before)

    def start(self, prompts: Sequence[Prompt], num_steps: int) -> None:
        length = max(map(len, prompts))
        self._open(len(prompts), length + num_steps + 1)
        self._prompts, self._position = prompts, length
        self._decode(
            [
                (token, i, seq, i == len(prompt) - 1)
                for seq, prompt in enumerate(prompts)
                for i, token in enumerate(prompt)
            ]
        )
        self._step()

    def steps(self, count: int) -> list[Sample]:
        return [self._step() for _ in range(count)]

    def _step(self) -> Sample:
        at = self._position
        tokens = [(prompt[at % len(prompt)], at, seq, True) for seq, prompt in enumerate(self._prompts)]
        before = perf_counter()
        self._decode(tokens)
        seconds = perf_counter() - before
        self._position += 1
        return Sample(seconds)

    def stop(self) -> None:
        if self._context:
            llama_cpp.llama_free(self._context)
        self._context = None

    def close(self) -> None:
        self.stop()
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_model_free(self._model)
        self._folder.cleanup()

    def logits(self, prompt: Sequence[int]) -> NDArray[np.float32]:
        self.prefill(prompt)
        row = llama_cpp.llama_get_logits_ith(self._context, -1)
        values = np.ctypeslib.as_array(row, (self._vocab_size,)).astype(np.float32, copy=True)
        self.stop()
        return values

    def _open(self, num_seqs: int, tokens_each: int) -> None:
        self.stop()
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max = num_seqs
        params.n_ctx = num_seqs * (-(-tokens_each // 256) * 256)  # shares as llama.cpp rounds them
        params.n_threads = params.n_threads_batch = self._num_threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise ExecutorError(f"llama.cpp makes no context of {params.n_ctx} tokens for {num_seqs} sequences")

    def _decode(self, tokens: Sequence[tuple[int, int, int, bool]]) -> None:
        """Compute tokens, given as (id, position, sequence, logits wanted), in batches."""
        batch = self._batch
        for start in range(0, len(tokens), self._batch_size):
            part = tokens[start : start + self._batch_size]
            batch.n_tokens = len(part)
            for i, (token, position, seq, wanted) in enumerate(part):
                batch.token[i], batch.pos[i] = token, position
                batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, seq, wanted
            if code := llama_cpp.llama_decode(self._context, batch):
                raise ExecutorError(f"llama.cpp refuses a batch of {len(part)} tokens (code {code})")
        llama_cpp.llama_synchronize(self._context)


def load(model: PeerModel, version: str) -> LlamaCpp:
    return LlamaCpp(model, version)

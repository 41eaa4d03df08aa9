"""llama.cpp by the low-level API of llama-cpp-python: quantising a file, and logits with a cache of float32."""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

import llama_cpp
import numpy as np
from numpy.typing import NDArray

_F32 = 0  # of ggml's types
_FLASH_ATTENTION_OFF = 0


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """Silences llama.cpp, which would log everything to stderr."""


llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
llama_cpp.llama_backend_init()
VERSION = f"llama-cpp-python {llama_cpp.__version__}"


def quantise(source: Path, target: Path, file_type: int, *, pure: bool = False) -> None:
    """Does the work of `llama-quantize [--pure] source target TYPE`, on one thread."""
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread, options.pure = file_type, 1, pure
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(options))
    assert status == 0, f"llama.cpp does not quantise {source} to type {file_type}"


def tokeniser(path: Path) -> Callable[[str], list[int]]:
    """A function from a text to its ids, of a file that may be only a vocabulary; special tokens found, no BOS."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"llama.cpp does not load {path}"
    return partial(_tokenise, llama_cpp.llama_model_get_vocab(model))


def _tokenise(vocab: object, text: str) -> list[int]:
    data = text.encode()
    buffer = (llama_cpp.llama_token * (len(data) + 8))()
    count = llama_cpp.llama_tokenize(vocab, data, len(data), buffer, len(buffer), False, True)
    assert count >= 0
    return list(buffer[:count])


class LlamaCpp:
    """A model in llama.cpp with its defaults, but on one thread, with a float32 cache and without flash attention."""

    def __init__(self, path: Path, num_tokens: int = 256) -> None:
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        assert self._model, f"llama.cpp does not load {path}"
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = num_tokens
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = _F32
        params.flash_attn_type = _FLASH_ATTENTION_OFF
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        assert self._context, f"llama.cpp makes no context for {path}"
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self._batch = llama_cpp.llama_batch_init(num_tokens, 0, 1)
        self._num_tokens = 0

    def __enter__(self) -> "LlamaCpp":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits [tokens, vocab] of a text, computed in one batch."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        self._num_tokens = 0
        return self._decode(ids)

    def greedy(self, ids: Sequence[int], num_tokens: int) -> list[int]:
        """The tokens of the largest logits, one after the other."""
        tokens = [int(self.logits(ids)[-1].argmax())]
        while len(tokens) < num_tokens:
            tokens.append(int(self._decode(tokens[-1:])[-1].argmax()))
        return tokens

    def tokenise(self, text: str) -> list[int]:
        """The ids of a text, special tokens found in it, BOS not added."""
        return _tokenise(self._vocab, text)

    def _decode(self, ids: Sequence[int]) -> NDArray[np.float32]:
        batch = self._batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, self._num_tokens + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, True
        assert llama_cpp.llama_decode(self._context, batch) == 0
        self._num_tokens += len(ids)
        pointer = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, (len(ids), self.vocab_size)).copy()

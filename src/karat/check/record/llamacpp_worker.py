"""The process that runs llama.cpp for karat.check.record.llamacpp, and records its results as they are computed.

Flash attention is off and the cache is float32, so that scores exist. Scores are llama.cpp's products q · k with the
scale and the mask of its softmax. Before a product with a weight that is not float32, llama.cpp rounds activations
(karat.check.replay.noise).
"""

import ctypes
import json
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.record.executors import Steps
from karat.check.trace.format import Array, Trace, make_info
from karat.check.trace.selection import Selection, padded
from karat.check.trace.writing import write_trace
from karat.errors import ExecutorError

LARGEST_MESSAGE = 400  # characters of a worker's last words
KNOWN_VERSION = "0.3.36"  # of llama-cpp-python, whose ggml_tensor begins as `_Tensor`

# Tensors of llama.cpp's graphs by name, without the layer's number after the last hyphen. If several have one name, the
# last one counts (a product, then its sum with the bias). RoPE's result has its input's name; the op tells them apart.
# What reads a weight is known by that weight alone (the job's `results`), whatever its name is.
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "Qcur": "self_attn.q_proj",
    "Kcur": "self_attn.k_proj",
    "Vcur": "self_attn.v_proj",
    "Qcur_normed": "self_attn.q_norm",
    "Kcur_normed": "self_attn.k_norm",
    "Vcur_normed": "self_attn.v_norm",
    "kq_soft_max": "self_attn.weights",
    "kqv_out": "self_attn.attention",
    "attn_out": "attention_residual",
    "ffn_inp": "attention_residual",
    "sa_out": "attention_residual",
    "ffn_norm": "post_attention_layernorm",
    "attn_post_norm": "post_attention_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
    "ffn_moe_logits": "mlp.gate",
    "ffn_moe_topk": "mlp.chosen_ids",
    "ffn_moe_weighted": "mlp.chosen_weights",
    "ffn_moe_out": "mlp.experts",
    "ffn_shexp": "mlp.shared_expert.down_proj",
    "ffn_shexp_gate_inp": "mlp.shared_expert_gate",
    "ffn_shexp_out": "mlp.shared_expert_gated",
    "ffn_gate": "mlp.gate_proj",
    "ffn_gate_b": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_up_b": "mlp.up_proj",
    "ffn_swiglu": "mlp.act",
    "ffn_geglu": "mlp.act",
    "ffn_out": "mlp.down_proj",
    "ffn_moe_combined": "mlp_and_experts",
    "l_out": "",
}
_NAMES = {
    "embd": "model.embed_tokens",
    "inp_embd": "model.embed_tokens",
    "result_norm": "model.norm",
    "result_output": "lm_head",
    "inp_scaled": "model.embed_tokens_scaled",
}
_ROPE = {
    "Qcur": "self_attn.q_rope",
    "Kcur": "self_attn.k_rope",
    "Qcur_normed": "self_attn.q_rope",
    "Kcur_normed": "self_attn.k_rope",
    "Qcur_pos": "self_attn.q_rope",
    "Kcur_pos": "self_attn.k_rope",
}
_PRODUCTS = ("kq", "kq_scaled_2")  # q · k, and with a cap
# What a multiplier makes of a result has no name either.
_OF_SCALED = {"attn_out": "attention_scaled", "ffn_out": "mlp_scaled"}
_SCALED = re.compile(rf"({'|'.join(_OF_SCALED)})-(\d+)")
# The MLP beside experts has the names of one without, in the places of one of its own.
_SHARED = {"gate_proj", "up_proj", "act"}
_READERS = {"MUL_MAT": 0, "MUL": 1, "ADD": 1, "GET_ROWS": 0}  # ops, and which argument is a weight
# Of ops that give a name to what is not the result of that name: attention before its norm, q times the scale.
_OTHERS = {("MUL_MAT", "attn_out"), ("SCALE", "Qcur")}
_HEADS = ("token_embd.weight", "output.weight")
_NEVER_A_RESULT = ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")
_TYPES = {0: np.float32, 1: np.float16, 26: np.int32}  # ggml_type


class _Tensor(ctypes.Structure):
    """The beginning of ggml_tensor (ggml.h)."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
    )


class _Observer:
    """llama.cpp's evaluation callback: copies the results that have a canonical name."""

    def __init__(
        self,
        ggml: ctypes.CDLL,
        selection: Selection,
        head_dims: frozenset[int],
        version: str,
        results: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._ggml, self._selection, self._head_dims, self._version = ggml, selection, head_dims, version
        self._results = results
        self._head: Array | None = None  # what the head gave last, which may get a cap
        self.has_gelu = False
        self.parts: dict[str, list[Array]] = defaultdict(list)
        self._step: dict[str, Array] = {}
        self._products: NDArray[Any] = np.zeros(0)
        self._is_shared = False  # whether gate and up were those of an MLP beside experts
        self.fault: Exception | None = None
        ggml.ggml_get_name.restype = ggml.ggml_op_name.restype = ctypes.c_char_p
        ggml.ggml_get_data.restype = ctypes.c_void_p
        ggml.ggml_nbytes.restype = ctypes.c_size_t
        for function in (ggml.ggml_get_name, ggml.ggml_get_data, ggml.ggml_nbytes):
            function.argtypes = [ctypes.c_void_p]

    def __call__(self, address: int, ask: bool, _user_data: Any) -> bool:
        if not ask:
            try:
                self._see(address)
            except Exception as fault:  # noqa: BLE001 - an exception cannot pass through C; it is raised after the step
                self.fault = self.fault or fault
        return True

    def end_step(self, keys: int) -> None:
        """Keep the results of this step; keys of attention are the first `keys` places of the cache."""
        if self.fault is not None:
            raise self.fault
        for name, array in self._step.items():
            self.parts[name].append(array[..., :keys] if name.endswith((".scores", ".weights")) else array)
        self._step = {}

    def _see(self, address: int) -> None:
        tensor = _Tensor.from_address(address)
        label, op = self._name(address), self._ggml.ggml_op_name(tensor.op).decode()
        base, _, number = label.rpartition("-")
        if op in _NEVER_A_RESULT and base != "ffn_moe_topk":
            return
        self.has_gelu |= base == "ffn_geglu"
        weight = self._name(tensor.src[_READERS[op]]) if op in _READERS else ""
        if weight in self._results:
            self._keep(self._results[weight], self._of_weight(self._results[weight], address))
        elif op == "GET_ROWS" and weight == "token_embd.weight":
            self._keep("model.embed_tokens", self._values(address, 2))  # which has no name where it is scaled
        elif op == "MUL_MAT" and weight in _HEADS and label not in _NAMES:
            self._head = self._values(address, 2)
        elif op == "SCALE" and (found := _SCALED.fullmatch(self._scaled(tensor.src[0]))):
            self._keep(f"model.layers.{found[2]}.{_OF_SCALED[found[1]]}", self._values(address, 2))
        elif label in _NAMES:
            is_scaled = _NAMES[label] == "model.embed_tokens" and op == "SCALE"
            self._keep("model.embed_tokens_scaled" if is_scaled else _NAMES[label], self._values(address, 2))
            if label == "result_output" and self._head is not None and self._is_cap_of_head(tensor):
                self._keep("lm_head_uncapped", self._head)
        elif base in _PRODUCTS and self._selection.keeps(f"model.layers.{number}.self_attn.scores"):
            self._products = self._values(address, 3)  # the softmax may overwrite them
        elif (op, base) in _OTHERS or (op == "MUL_MAT" and weight.startswith("blk.")):  # of which several are rows
            return
        elif number.isdigit() and (base in _LAYER_NAMES or (op == "ROPE" and base in _ROPE)):
            prefix = f"model.layers.{number}"
            part = _ROPE[base] if op == "ROPE" else self._part(base, tensor)
            if base == "ffn_moe_weighted":  # the product with them: they are made in several ways before
                self._keep(f"{prefix}.{part}", self._values(tensor.src[1], 3)[..., 0])
                return
            by_head = op == "ROPE" or base == "kq_soft_max"
            by_head |= base.endswith("_normed") and tensor.ne[0] in self._head_dims  # or it is over all heads
            values = self._values(address, 3 if by_head else 2)
            if part == "self_attn.weights" and self._selection.keeps(f"{prefix}.self_attn.scores"):
                self._keep(f"{prefix}.self_attn.scores", self._scores(tensor))
            elif part.startswith("self_attn.") and part[10:11] in "qkv" and base[1:4] == "cur":
                values = self._by_head(values)
            self._keep(f"{prefix}.{part}".rstrip("."), values)

    def _of_weight(self, name: str, address: int) -> Array:
        """The values of a result `name` that is known by the weight that it reads."""
        if name.endswith(("gate_proj", "up_proj")):
            self._is_shared = ".shared_expert." in name
        is_normed = name.endswith(("q_norm", "k_norm")) and _Tensor.from_address(address).ne[0] in self._head_dims
        values = self._values(address, 3 if is_normed or name.endswith("per_layer_projection_norm") else 2)
        return self._by_head(values) if name.endswith(("q_proj", "k_proj", "v_proj")) else values

    def _by_head(self, values: Array) -> Array:
        """q, k or v [tokens, heads, head_dim], where all layers have heads of one size."""
        size = next(iter(self._head_dims))
        return values.reshape(len(values), -1, size) if len(self._head_dims) == 1 else values

    def _part(self, base: str, tensor: _Tensor) -> str:
        """The name in a layer of a result."""
        part, sources = _LAYER_NAMES[base], [self._name(source) for source in tensor.src[:2]]
        if base == "ffn_out" and sources[0].startswith("ffn_moe_out"):
            return "mlp"
        parent, _, own = part.rpartition(".")
        return f"{parent}.shared_expert.{own}" if own in _SHARED and self._is_shared else part

    def _scaled(self, address: int) -> str:
        """The name of what is scaled: of the last layer, rows of a result."""
        tensor = _Tensor.from_address(address)
        return self._name(tensor.src[0] if self._op(address) == "GET_ROWS" else address)

    def _is_cap_of_head(self, tensor: _Tensor) -> bool:
        """Whether it is cap · tanh(x / cap) of what the head gives, and not of a multiple."""
        for op in ("SCALE", "UNARY", "SCALE"):
            if self._ggml.ggml_op_name(tensor.op).decode() != op:
                return False
            tensor = _Tensor.from_address(tensor.src[0])
        return bool(self._ggml.ggml_op_name(tensor.op) == b"MUL_MAT")

    def _op(self, address: int) -> str:
        op: str = self._ggml.ggml_op_name(_Tensor.from_address(address).op).decode()
        return op

    def _name(self, address: int | None) -> str:
        return self._ggml.ggml_get_name(address).decode(errors="replace") if address else ""

    def _keep(self, name: str, values: Array) -> None:
        if self._selection.keeps(name):
            self._step[name] = values

    def _scores(self, softmax: _Tensor) -> Array:
        """q · k with the softmax's own scale and mask [heads, tokens, places]."""
        (scale,) = np.array(softmax.op_params[:1], np.int32).view(np.float32)
        scores: NDArray[Any] = self._products * scale
        if softmax.src[1]:
            mask = self._values(softmax.src[1], 2).astype(np.float32)
            scores = np.where(np.isneginf(mask[: scores.shape[1]]), np.float32(-np.inf), scores)
        return scores

    def _values(self, address: int, ndim: int) -> NDArray[Any]:
        """A copy of a tensor of `ndim` axes, the slowest first."""
        tensor = _Tensor.from_address(address)
        if tensor.type not in _TYPES:
            raise ExecutorError(f"{self._name(address)} has ggml type {tensor.type}")
        dtype = np.dtype(_TYPES[tensor.type])
        if any(n != 1 for n in tensor.ne[ndim:]):
            raise ExecutorError(f"{self._name(address)}: {list(tensor.ne)}, not {ndim} axes")
        num_bytes = sum((n - 1) * step for n, step in zip(tensor.ne, tensor.nb, strict=True)) + dtype.itemsize
        if num_bytes != self._ggml.ggml_nbytes(address):
            raise ExecutorError(
                f"llama-cpp-python {self._version} keeps its tensors in another way than those that are known here "
                f"({KNOWN_VERSION}): {self._name(address)} has {self._ggml.ggml_nbytes(address)} bytes, by its shape "
                f"{num_bytes}; install one of those"
            )
        raw = (ctypes.c_uint8 * num_bytes).from_address(self._ggml.ggml_get_data(address))
        shape, strides = tuple(tensor.ne[:ndim])[::-1], tuple(tensor.nb[:ndim])[::-1]
        values = np.ndarray(shape, dtype, raw, strides=strides)
        return values.astype(np.float32) if dtype == np.int32 else values.copy()  # ids of experts, as traces have them


def _work(path: Path, out: Path, job: Mapping[str, Any]) -> None:
    """Do one job: a trace of `ids`, or the ids of `texts`."""
    import llama_cpp

    messages: list[str] = []
    silent = llama_cpp.llama_log_callback(lambda _level, text, _data: messages.append(text.decode(errors="replace")))
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    options = llama_cpp.llama_model_default_params()
    options.n_gpu_layers = 0
    options.vocab_only = "texts" in job
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise SystemExit("it does not load this file: " + "".join(messages)[-LARGEST_MESSAGE:])
    if "texts" in job:
        out.write_text(json.dumps(_tokens(llama_cpp, llama_cpp.llama_model_get_vocab(model), job)))
    else:
        _trace(llama_cpp, model, out, job)


def _tokens(llama_cpp: Any, vocab: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of karat.check.record.llamacpp.LlamaTokens."""
    ids = {name: _ids(llama_cpp, vocab, text, add=True) for name, text in job["texts"].items()}
    ids |= {name: _ids(llama_cpp, vocab, text, add=False) for name, text in job["rendered"].items()}
    roles = {"bos": llama_cpp.llama_vocab_bos(vocab), "eos": llama_cpp.llama_vocab_eos(vocab)}
    count = llama_cpp.llama_vocab_n_tokens(vocab)
    ends = [i for i in range(count) if llama_cpp.llama_vocab_is_eog(vocab, i)]
    return {"ids": ids, "ends": ends, **{role: i if i >= 0 else None for role, i in roles.items()}}


def _ids(llama_cpp: Any, vocab: Any, text: str, *, add: bool) -> list[int]:
    """The ids of a text, special tokens in it read as such; with `add`, the tokens that the file adds around a text."""
    encoded = text.encode()
    found = (ctypes.c_int32 * (len(encoded) + 8))()
    count = llama_cpp.llama_tokenize(vocab, encoded, len(encoded), found, len(found), add, True)
    return list(found[: max(0, count)])


def _trace(llama_cpp: Any, model: Any, out: Path, job: Mapping[str, Any]) -> None:
    """Run the job of `record_llamacpp` and write its trace."""
    library = Path(llama_cpp.__file__).parent / "lib"
    name = {"darwin": "libggml-base.dylib", "win32": "ggml-base.dll"}.get(sys.platform, "libggml-base.so")
    layers = job["layers"]
    selection = Selection(None if layers is None else frozenset(layers), job["heads"], job["logit_rows"])
    num_heads = llama_cpp.llama_model_n_head(model)
    steps = Steps(tuple(job["ids"]), tuple(job["cuts"]), job["decode"])
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    observer = _Observer(
        ctypes.CDLL(str(library / name)),
        selection,
        _head_dims(llama_cpp, model, num_heads),
        llama_cpp.__version__,
        job["results"],
    )
    callback = llama_cpp.ggml_backend_sched_eval_callback(observer)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = steps.total
    params.flash_attn_type = 0
    params.type_k = params.type_v = 0  # GGML_TYPE_F32
    params.cb_eval = callback
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise SystemExit(f"it makes no context of {steps.total} tokens")
    batch = llama_cpp.llama_batch_init(steps.total, 0, 1)
    ids, done, starts = list(steps.prompt), 0, []
    while done < steps.total:
        if done >= len(ids):
            ids.append(int(observer.parts["lm_head"][-1][-1].argmax()))
        stop = steps.stop_after(done)
        batch.n_tokens = stop - done
        for i, position in enumerate(range(done, stop)):
            batch.token[i], batch.pos[i] = ids[position], position
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, True
        if code := llama_cpp.llama_decode(context, batch):
            raise SystemExit(f"it refuses a step of {stop - done} tokens (code {code})")
        observer.end_step(stop)
        starts.append(done)
        done = stop
    rows = tuple(selection.rows_for(steps.total, vocab))
    arrays = _joined(observer.parts, steps.total, selection.heads)
    partial = {}
    if len(rows) < steps.total:
        partial = {name: rows for name in ("lm_head", "model.norm") if name in arrays}
        arrays |= {name: arrays[name][list(rows)] for name in partial}
    info = make_info(
        ids,
        steps=tuple(starts),
        kv_dtype="float32",
        rows=partial,
        generated=tuple(ids[len(steps.prompt) :]) or None,
        heads={n: selection.heads for n in arrays if selection.heads and n.endswith((".scores", ".weights"))},
        sampling={"temperature": 0} if steps.decode else None,
        executor=f"llama.cpp of llama-cpp-python {llama_cpp.__version__}",
        activations="ggml" if observer.has_gelu else None,
    )
    write_trace(out, Trace(info, arrays))


def _head_dims(llama_cpp: Any, model: Any, num_heads: int) -> frozenset[int]:
    """The head dimensions that the file states, or the hidden size divided by the number of heads."""
    buffer = ctypes.create_string_buffer(64)

    def metadata(key: str) -> str | None:
        length = llama_cpp.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
        return buffer.value.decode() if length >= 0 else None

    arch = metadata("general.architecture")
    stated = [metadata(f"{arch}.attention.{key}") for key in ("key_length", "key_length_swa")]
    found = frozenset(int(each) for each in stated if each)
    return found or frozenset((int(llama_cpp.llama_model_n_embd(model)) // num_heads,))


def _joined(parts: Mapping[str, list[Array]], context: int, heads: tuple[int, ...] | None) -> dict[str, Array]:
    """One array for each name, from the parts of all steps."""
    arrays = {}
    for name, found in parts.items():
        if name.endswith((".scores", ".weights")):
            joined = padded(found, context, -np.inf if name.endswith("scores") else 0.0)
            arrays[name] = joined if heads is None else joined[list(heads)]
        else:
            arrays[name] = np.concatenate(found)
    return arrays


def main(arguments: Sequence[str]) -> None:
    """The worker's entry point; arguments: the GGUF file, the file for the result, the file with the job."""
    path, out, asked = map(Path, arguments)
    _work(path, out, json.loads(asked.read_text()))

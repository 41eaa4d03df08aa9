"""The memory that Ray is told an engine needs: what its own plan says, before any weight is read."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import ray

from karat.engine.async_llm import opening_of
from karat.engine.model_loading.load_plan import plan_load
from karat.errors import KaratError, Packed, packed, unpacked
from karat.kv.blocks import BLOCK_SIZE
from karat.models.opening import open_model
from karat.models.registry import read_config
from karat.ops import registry

_ALL = 1 << 60  # bytes: how much there is, Ray knows
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode


class Question(msgspec.Struct, frozen=True, array_like=True):
    """A model, and the options of AsyncLLM for it."""

    model: str | None
    options: dict[str, Any]


class Needed(msgspec.Struct, frozen=True, array_like=True):
    """Its memory, or why it cannot be known."""

    num_bytes: int
    error: Packed | None = None


def memory_of_engine(model: str | None, options: Mapping[str, Any]) -> int:
    """Bytes of memory that an engine takes at the least: weights, tables, states, steps, and a KV cache of the size
    that the options state, or else of one whole context. What it takes beyond that follows from what it finds.

    A model of the hub is fetched. Raises what loading would raise: for a model that is not here, or cannot run.
    """
    opening = opening_of(model, dict(options))
    asked = opening.options
    checkpoint = open_model(Path(opening.path), opening.overrides)
    config = read_config(checkpoint.config).reading(asked.max_model_len)
    if asked.num_blocks is None and asked.kv_cache_bytes is None:
        longest = asked.max_model_len or config.usual_context
        asked = replace(asked, num_blocks=-(-longest // BLOCK_SIZE))
    ops = registry.create(asked.executor, asked.compute_dtype, asked.executor_options)
    return plan_load(checkpoint, config, ops, asked, _ALL).memory_bytes


def memory_there(model: str | None, options: Mapping[str, Any]) -> int:
    """The same, where the model is: on a node of the cluster. Errors are those of there."""
    question = _encode(Question(model, dict(options)), enc_hook=as_text)
    found = _decode(ray.get(ray.remote(num_cpus=0)(_answer).remote(question)), type=Needed)
    if found.error is not None:
        raise unpacked(*found.error)
    return found.num_bytes


def _answer(question: bytes) -> bytes:
    asked = _decode(question, type=Question)
    try:
        return _encode(Needed(memory_of_engine(asked.model, asked.options)))
    except KaratError as error:
        return _encode(Needed(0, packed(error)))


def as_text(option: Any) -> str:
    """A path of the options, for msgspec's encoders."""
    if isinstance(option, Path):
        return str(option)
    raise TypeError(f"{type(option).__name__} is no option")

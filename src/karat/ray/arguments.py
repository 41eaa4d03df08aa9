"""Arguments: what an application is made of, from the command line of `serve run`, a YAML file or Python."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from karat.checkpoint.overrides import Overrides
from karat.engine.model_loading.llm_options import Options
from karat.errors import UsageError
from karat.ops.registry import OPTIONS
from karat.request import shown
from karat.server.keys import keys_in
from karat.server.settings import ServerSettings

_PLACES = 16  # of an engine, unless max_num_seqs says so


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of karat.ray.app. `options` are all others: those of AsyncLLM, as every replica has them.

    From `min_replicas` to `max_replicas` (None: min_replicas) have `cores` cores each (None: those of the machine that
    builds the application), one more for each `queued_tokens` tokens of prompts that wait: after `upscale_delay_s`
    seconds of that, and one less after `downscale_delay_s`. `ingresses` take requests. `slack_tokens`: see
    karat.ray.router. The others are options of `karat serve`.
    """

    model: str | None = None
    min_replicas: int = 1
    max_replicas: int | None = None
    cores: int | None = None
    ingresses: int = 1
    queued_tokens: int = 4096
    upscale_delay_s: float = 30
    downscale_delay_s: float = 600
    slack_tokens: int = 8192
    served_model_name: str | None = None
    api_key_file: str | None = None
    allowed_host: str | None = None
    allowed_origin: str | None = None
    default_max_tokens: int = 4096
    drain_s: float = 30
    max_queue: int = 4096
    options: dict[str, Any] = {}

    @property
    def most_replicas(self) -> int:
        return self.min_replicas if self.max_replicas is None else self.max_replicas

    @property
    def places(self) -> int:
        """Sequences that a replica computes at a time."""
        return int(self.options.get("max_num_seqs", _PLACES))

    def of_replica(self) -> "Arguments":
        """What a replica has to know. Those that were given the same are alike."""
        return Arguments(model=self.model, cores=self.cores, max_queue=self.max_queue, options=self.options)

    def engine_options(self) -> dict[str, Any]:
        """Options of AsyncLLM, where the engine has the cores of its replica."""
        return {"threads": self.cores, **self.options}

    def settings(self) -> ServerSettings:
        """Those of the server's app. KaratError for a file of keys that cannot be read."""
        name = self.model and (Path(self.model).stem if self.model.endswith(".gguf") else Path(self.model).name)
        return ServerSettings(
            model_names=(self.served_model_name or name or "karat-embedded",),
            api_keys=() if self.api_key_file is None else tuple(keys_in(Path(self.api_key_file))),
            allowed_hosts=_listed(self.allowed_host),
            allowed_origins=_listed(self.allowed_origin),
            default_max_tokens=self.default_max_tokens,
            drain_s=self.drain_s,
        )


def arguments_of(given: Mapping[str, Any], cores: int) -> Arguments:
    """The arguments that were given, whose values may be text. UsageError for one that is unknown or has another type.

    cores: for a replica, unless they say so.
    """
    own = {name: given[name] for name in given if name in Arguments.__struct_fields__ and name != "options"}
    options = {name: _plain(value) for name, value in given.items() if name not in own}
    known = {field.name for kind in (Options, Overrides) for field in fields(kind)} | {*OPTIONS, "tokenizer"}
    if unknown := [name for name in options if name not in known - {"seed", "executor_options"}]:
        raise UsageError(
            f"{shown(unknown[0])} is no argument of karat.ray.app; expected one of "
            f"{', '.join(sorted({*Arguments.__struct_fields__} - {'options'}))}, or an option of AsyncLLM"
        )
    try:
        made = msgspec.convert({"cores": cores, **own, "options": options}, Arguments, strict=False)
    except msgspec.ValidationError as fault:
        raise UsageError(f"arguments of karat.ray.app: {fault}") from None
    for name in ("min_replicas", "cores", "ingresses", "queued_tokens"):
        if getattr(made, name) < 1:
            raise UsageError(f"{name}={getattr(made, name)}: expected at least 1")
    if made.most_replicas < made.min_replicas:
        raise UsageError(f"max_replicas={made.max_replicas}: expected at least min_replicas={made.min_replicas}")
    return made


def read_arguments(message: bytes) -> Arguments:
    """Arguments as msgspec.msgpack has encoded them."""
    return msgspec.msgpack.decode(message, type=Arguments)


def _listed(names: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (names or "").split(",") if name.strip())


def _plain(value: Any) -> Any:
    """Text of the command line that reads as a number, true, false or null is that."""
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        return value
    return value if isinstance(found, str | list | dict) else found

"""Options that several commands share, as dataclasses of typer options, and the decorator that unfolds them."""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from karat.errors import UsageError

if TYPE_CHECKING:
    from karat.checkpoint.overrides import Overrides
    from karat.engine.model_loading.llm_options import GenerationSource


@dataclass(slots=True)
class Invocation:
    """Facts of one invocation; typer passes it on as `ctx.obj`. args: the words after `karat`."""

    debug: bool = False
    args: tuple[str, ...] = ()


def _remember_debug(ctx: typer.Context, value: bool) -> None:
    ctx.find_root().obj.debug |= value


Debug = Annotated[
    bool,
    typer.Option(
        "--debug", help="Show the Python traceback of an error, too (or KARAT_DEBUG=1).", callback=_remember_debug
    ),
]


def option(panel: str, metavar: str, text: str) -> Any:
    """An option named after its field."""
    return typer.Option(metavar=metavar, help=text, rich_help_panel=panel, show_default=False)


def flag(panel: str, name: str, text: str) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel, show_default=False)


SanitizeControlTokens = Annotated[
    bool,
    typer.Option("--sanitize-control-tokens", help="Control tokens in messages, such as <|im_end|>, stay text."),
]


GenerationConfig = Annotated[
    str | None,
    option("Model", "SOURCE", "Default sampling: auto (default), what the model's files say; or none of it."),
]


Device = Annotated[
    str | None, option("Model", "NAME", "Compute on cpu (default), cuda, cuda:1 or cuda-emulated; same bits.")
]
HostLayers = Annotated[
    int | None, option("Model", "N", "With --device cuda: the first N layers on the CPU, same bits.")
]


def generation_source(text: str | None) -> "GenerationSource":
    """Where default sampling comes from, as LLM has it. UsageError."""
    from karat.engine.model_loading.llm_options import Options

    return Options(generation_config=cast("GenerationSource", text or "auto")).generation_config


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """Options of every command, so that they may follow its name. `--debug` acts when it is parsed."""

    debug: Debug = False


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What the user says of the model itself, which wins over its files; None says nothing."""

    override: Annotated[
        list[str] | None,
        option("Model", "KEY=VALUE", "Instead of what config.json or a GGUF file says; null for none; repeatable."),
    ] = None
    rope_scaling: Annotated[
        str | None, option("Model", "KIND", "Read beyond the context it was trained for: yarn or linear.")
    ] = None
    rope_factor: Annotated[
        float | None, option("Model", "X", "And how many times as far, such as 4, with --rope-scaling.")
    ] = None

    def said(self) -> dict[str, Any]:
        """Arguments for LLM, and for karat.checkpoint.overrides.said: only what was on the command line."""
        return _given(
            hf_overrides=_pairs("--override", self.override, typed),
            rope_scaling=self.rope_scaling,
            rope_factor=self.rope_factor,
        )

    def overrides(self) -> "Overrides":
        """The same, for opening a model without LLM. Raises UsageError and TemplateError."""
        from karat.checkpoint.overrides import said

        return said(**self.said())


@dataclass(frozen=True, slots=True)
class OverrideOptions(ModelOptions):
    """And of its chat template."""

    chat_template: Annotated[
        str | None, option("Model", "FILE", "The chat template: a file (Jinja), its text, or chatml.")
    ] = None
    template_arg: Annotated[
        list[str] | None,
        option("Model", "KEY=VALUE", "A variable for the chat template, as enable_thinking=false; repeatable."),
    ] = None

    def said(self) -> dict[str, Any]:
        """As ModelOptions has it."""
        arguments = _pairs("--template-arg", self.template_arg, typed)
        return ModelOptions.said(self) | _given(chat_template=self.chat_template, chat_template_kwargs=arguments)

    def idle_texts(self, why: str) -> str | None:
        """What to tell a user who says something of the chat template to a command that has no use for it."""
        options = (("--chat-template", self.chat_template), ("--template-arg", self.template_arg))
        named = [name for name, value in options if value]
        return f"{' and '.join(named)} {'has' if len(named) == 1 else 'have'} no effect: {why}" if named else None

    def words(self) -> list[str]:
        """The words of the command line, for another command that has these options."""
        options = ((f"--{name.replace('_', '-')}", value) for name, value in given_fields(self).items())
        each = ((option, one) for option, value in options for one in (value if isinstance(value, list) else [value]))
        return [word for option, value in each for word in (option, str(value))]


@dataclass(frozen=True, slots=True)
class ComputeOptions(OverrideOptions):
    """The executor and the types: keyword arguments of `LLM`; None leaves the choice to it."""

    dtype: Annotated[str | None, option("Model", "TYPE", "Compute in float32 (default) or float64.")] = None
    kv_dtype: Annotated[
        str | None, option("Model", "TYPE", "Keep keys and values in float16, bfloat16, float32 or float64.")
    ] = None
    executor: Annotated[
        str | None, option("Model", "NAME", "Executor: auto (default) or one that `karat env` lists.")
    ] = None
    device: Device = None
    host_layers: HostLayers = None
    threads: Annotated[
        int | None, option("Model", "N", "Threads of the native executor (default: the physical cores).")
    ] = None
    activations: Annotated[
        list[str] | None, option("Model", "TYPE", "Read by weights in blocks: int16 (default), int24 or int8.")
    ] = None
    tensor_parallel_size: Annotated[
        int | None, option("Model", "N", "Share the model out over N processes: 2, 4 or 8.")
    ] = None

    def given(self) -> dict[str, Any]:
        """Arguments for LLM: only what was on the command line. Raises UsageError for several activations."""
        arguments = {name: value for name, value in given_fields(self).items() if name not in _OVERRIDING} | self.said()
        if given := arguments.pop("activations", None):
            if len(given) > 1:
                raise UsageError(f"--activations {given[0]} and {given[1]}: expected one, since one model is computed")
            arguments["activations"] = given[0]
        return arguments


@dataclass(frozen=True, slots=True)
class LoadOptions(ComputeOptions):
    """How a model is loaded: keyword arguments of `LLM`; None leaves the choice to it."""

    quantize: Annotated[str | None, option("Model", "FORMAT", "Quantise matrices while loading: q8_0 or q4_0.")] = None
    packed_cache: Annotated[
        Path | None, option("Model", "DIR", "Map the matrices from a file there, which is written the first time.")
    ] = None
    guard: Annotated[
        bool | None,
        flag("Model", "--guard", "Stop at the first NaN, infinity or impossible value, and say where."),
    ] = None
    max_model_len: Annotated[
        int | None, option("Model", "N", "Room for prompt and answer, in tokens (default: what the model allows).")
    ] = None

    generation_config: GenerationConfig = None
    no_enable_prefix_caching: Annotated[
        bool | None,
        flag("Model", "--no-enable-prefix-caching", "Compute beginnings again that prompts share with earlier ones."),
    ] = None

    state_cache_bytes: Annotated[
        int | None, option("Model", "N", "Memory for states that later prompts begin with, in bytes (0: none).")
    ] = None

    def given(self) -> dict[str, Any]:
        """Arguments for LLM: only what was on the command line. Raises UsageError for several activations."""
        arguments = ComputeOptions.given(self)
        if arguments.pop("no_enable_prefix_caching", False):
            arguments["enable_prefix_caching"] = False
        return arguments


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `karat serve` listens to, whom it lets in, and what it lets them take; None where the server decides."""

    host: Annotated[str | None, option("Server", "HOST", "Listen there (default: 127.0.0.1).")] = None
    port: Annotated[int | None, option("Server", "N", "Listen to this port (default: 8000; 0: any).")] = None
    unix_socket: Annotated[Path | None, option("Server", "PATH", "Listen there instead, for this user alone.")] = None
    served_model_name: Annotated[
        list[str] | None, option("Server", "NAME", "What clients call the model; repeatable.")
    ] = None
    api_key: Annotated[
        list[str] | None, option("Server", "KEY", "Only who sends it may ask; other users here may see it.")
    ] = None
    api_key_file: Annotated[Path | None, option("Server", "FILE", "The same, a key on each line of a file.")] = None
    tls_cert: Annotated[Path | None, option("Server", "FILE", "Certificate (PEM), for https.")] = None
    tls_key: Annotated[Path | None, option("Server", "FILE", "Its private key (PEM).")] = None
    receipt_key: Annotated[Path | None, option("Server", "FILE", "Sign receipts: an Ed25519 key (PEM).")] = None
    allowed_host: Annotated[
        list[str] | None, option("Server", "NAME", "A name in Host that is this server's; repeatable.")
    ] = None
    allowed_origin: Annotated[
        list[str] | None, option("Server", "URL", "A page's origin that may ask (CORS); repeatable; *: all.")
    ] = None
    log_format: Annotated[str | None, option("Server", "FORM", "Lines of the log: text (default) or json.")] = None
    default_max_tokens: Annotated[
        int | None, option("Limits", "N", "Of answers whose request names no length (default: 4096).")
    ] = None
    max_num_seqs: Annotated[int | None, option("Limits", "N", "Answers computed at a time (default: 16).")] = None
    kv_cache_bytes: Annotated[int | None, option("Limits", "N", "Memory of the KV cache, in bytes.")] = None
    max_step_ms: Annotated[
        int | None, option("Limits", "MS", "Of a step while answers stream (default: 200; 0: no bound).")
    ] = None
    max_queue: Annotated[int | None, option("Limits", "N", "Answers that may wait (default: 256).")] = None
    queue_timeout_s: Annotated[float | None, option("Limits", "S", "And for how long (default: without end).")] = None
    max_connections: Annotated[int | None, option("Limits", "N", "Open connections (default: 512).")] = None
    max_body_bytes: Annotated[int | None, option("Limits", "N", "Of a request's body (default: 16 MiB).")] = None
    max_head_bytes: Annotated[int | None, option("Limits", "N", "Of a request's headers (default: 32 KiB).")] = None
    body_timeout_s: Annotated[float | None, option("Limits", "S", "For a body to come (default: 30).")] = None
    head_timeout_s: Annotated[float | None, option("Limits", "S", "For headers to come (default: 10).")] = None
    write_timeout_s: Annotated[float | None, option("Limits", "S", "That a client may read nothing (default: 30).")] = (
        None
    )
    ping_s: Annotated[float | None, option("Limits", "S", "Between comments in a silent stream (default: 10).")] = None
    drain_s: Annotated[float | None, option("Limits", "S", "For requests under way at the end (default: 30).")] = None

    def engine(self) -> dict[str, Any]:
        """Arguments for AsyncLLM: only what was on the command line."""
        names = ("max_num_seqs", "kv_cache_bytes", "max_step_ms", "max_queue", "queue_timeout_s")
        return {name: value for name, value in given_fields(self).items() if name in names}


_OVERRIDING = frozenset(field.name for field in fields(OverrideOptions))


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value not in (None, {})}


def typed(text: str) -> Any:
    """The value of a text: JSON (true, 4, 1e6, null, an object), or llama.cpp's TYPE:VALUE; else the text itself."""
    kind, colon, rest = text.partition(":")
    try:
        match kind if colon else "":
            case "int":
                return int(rest)
            case "float":
                return float(rest)
            case "bool":
                return {"true": True, "false": False}[rest.lower()]
            case "str":
                return rest
    except (ValueError, KeyError):
        raise UsageError(f"{text!r}: expected a value of the type {kind} behind the colon") from None
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except (ValueError, RecursionError):
        return text


def _pairs(option: str, texts: list[str] | None, read: Callable[[str], Any]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option} {text!r}: expected KEY=VALUE")
        if key.strip() in pairs:
            raise UsageError(f"{option} {key.strip()}: is there twice; give one")
        pairs[key.strip()] = read(value.strip())
    return pairs


def given_fields(options: Any) -> dict[str, Any]:
    arguments = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: value for name, value in arguments.items() if value is not None and value != []}


def unfolded(command: Callable[..., None]) -> Callable[..., None]:
    """`command` as typer expects it: the fields of each dataclass of options are parameters of their own.

    CommonOptions are added.
    """
    groups: dict[str, type[Any]] = {}
    flat: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
        else:
            flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    for group in (*groups.values(), CommonOptions):
        for field in fields(group):
            flat.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
                )
            )

    @wraps(command)
    def typer_command(**arguments: Any) -> None:
        for field in fields(CommonOptions):
            del arguments[field.name]
        for name, group in groups.items():
            arguments[name] = group(**{field.name: arguments.pop(field.name) for field in fields(group)})
        command(**arguments)

    typer_command.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return typer_command

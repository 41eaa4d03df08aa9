"""The options of `karat bench serve`, checked as they are read."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from karat.errors import UsageError

if TYPE_CHECKING:
    from karat.bench.load.prompts import ConversationShape
    from karat.bench.load.session import TrafficPlan
    from karat.bench.load.summary import Goals

DEFAULT_CONCURRENCY = 16
_OWN_FIELDS = ("prompt", "messages", "stream", "max_tokens", "n")


def _option(panel: str, metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel=panel)


def _flag(panel: str, name: str, text: str) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel)


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Which servers."""

    url: Annotated[str | None, _option("Servers", "URL", "Ask this server, instead of serving MODEL.")] = None
    api_key_file: Annotated[Path | None, _option("Servers", "FILE", "Its key is the first line.")] = None
    model_name: Annotated[str | None, _option("Servers", "NAME", "What it calls the model (default: its first).")] = (
        None
    )
    peer: Annotated[
        tuple[str, str] | None,
        _option("Servers", "NAME PLACE", "In turns with llama-server and its path, or any name and a URL."),
    ] = None
    threads: Annotated[
        int | None, _option("Servers", "N", "Of servers started here (default: the physical cores).")
    ] = None
    device: Annotated[
        str | None, _option("Servers", "NAME", "Of karat serve: cpu (default), cuda, cuda:1 or cuda-emulated.")
    ] = None
    host_layers: Annotated[
        int | None, _option("Servers", "N", "Of karat serve with --device cuda: the first N layers on the CPU.")
    ] = None
    activations: Annotated[
        str | None, _option("Servers", "TYPE", "Of karat serve, weights in blocks: int16 (default), int24 or int8.")
    ] = None

    def words(self) -> list[str]:
        """What of this is said to karat serve."""
        given = {"--activations": self.activations, "--device": self.device, "--host-layers": self.host_layers}
        return [word for name, value in given.items() if value is not None for word in (name, str(value))]


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """When requests are sent, and how many."""

    concurrency: Annotated[
        list[int] | None, _option("Load", "N", "Clients at a time (default: 16); repeatable, a point each.")
    ] = None
    rate: Annotated[
        list[float] | None, _option("Load", "R", "Requests a second at random times (Poisson); repeatable.")
    ] = None
    sweep: Annotated[int, _option("Load", "N", "Then N rates, up to what the last load reached.")] = 0
    requests: Annotated[
        int | None, _option("Load", "N", "Conversations of a turn (default: 4 a client, at least 32).")
    ] = None
    repeat: Annotated[int, _option("Load", "N", "Turns of each load, with new prompts each.")] = 1
    warmup: Annotated[int, _option("Load", "N", "Conversations before, which do not count.")] = 1
    warm: Annotated[bool, _flag("Load", "--warm", "Each turn again with the same prompts, apart.")] = False
    timeout_s: Annotated[float, _option("Load", "S", "A request that takes longer has failed.")] = 600

    def plan(self, goals: "Goals") -> "TrafficPlan":
        """Raises UsageError."""
        from karat.bench.load.session import TrafficPlan
        from karat.bench.load.traffic import Traffic

        at_least_one = {"--requests": self.requests, "--repeat": self.repeat}
        for option, value in [*at_least_one.items(), *(("--concurrency", n) for n in self.concurrency or ())]:
            if value is not None and value < 1:
                raise UsageError(f"{option} {value}: expected at least 1")
        for option, value in {"--warmup": self.warmup, "--sweep": self.sweep}.items():
            if value < 0:
                raise UsageError(f"{option} {value}: expected at least 0")
        for option, number in [("--timeout-s", self.timeout_s), *(("--rate", each) for each in self.rate or ())]:
            if not 0 < number < float("inf"):
                raise UsageError(f"{option} {number}: expected a number above 0")
        concurrency = self.concurrency or ([] if self.rate else [DEFAULT_CONCURRENCY])
        return TrafficPlan(
            loads=[*(Traffic(concurrency=n) for n in concurrency), *(Traffic(rate=each) for each in self.rate or ())],
            num_requests=self.requests,
            repeat=self.repeat,
            warmup=self.warmup,
            warm=self.warm,
            sweep=self.sweep,
            goals=goals,
            timeout_s=self.timeout_s,
        )


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """What is asked."""

    chat: Annotated[bool, _flag("Prompts", "--chat", "By chat completions instead of completions.")] = False
    prompt_tokens: Annotated[str, _option("Prompts", "LENGTHS", "N, or a distribution (docs/cli.md).")] = "64"
    tokens: Annotated[str, _option("Prompts", "LENGTHS", "Of answers, likewise.")] = "64"
    prefix_tokens: Annotated[int, _option("Prompts", "N", "Each prompt begins with N shared tokens.")] = 0
    prefixes: Annotated[int, _option("Prompts", "N", "Different beginnings that are shared.")] = 1
    turns: Annotated[int, _option("Prompts", "N", "Of each conversation, with --chat.")] = 1
    dataset: Annotated[Path | None, _option("Prompts", "FILE", "Conversations in ShareGPT's form (JSON).")] = None
    tokenizer: Annotated[
        str | None, _option("Prompts", "MODEL", "Whose tokens are drawn and counted (default: MODEL's).")
    ] = None
    stop_at_end: Annotated[
        bool, _flag("Prompts", "--stop-at-end", "Answers may end early: ignore_eos is not sent.")
    ] = False
    body: Annotated[str | None, _option("Prompts", "JSON", "More fields of each request.")] = None
    seed: Annotated[int | None, _option("Prompts", "N", "Of prompts and times (default: a new one, stated).")] = None

    def shape(self) -> "ConversationShape":
        """Raises UsageError."""
        from karat.bench.load.lengths import Lengths
        from karat.bench.load.prompts import ConversationShape

        for option, value, least in (
            ("--prefix-tokens", self.prefix_tokens, 0),
            ("--prefixes", self.prefixes, 1),
            ("--turns", self.turns, 1),
            ("--seed", self.seed or 0, 0),
        ):
            if value < least:
                raise UsageError(f"{option} {value}: expected at least {least}")
        if self.turns > 1 and not self.chat:
            raise UsageError(f"--turns {self.turns} needs --chat: a completion has no turns")
        if self.dataset is not None and self.prefix_tokens:
            raise UsageError("--prefix-tokens belongs to prompts that are drawn; leave it out, or --dataset")
        return ConversationShape(
            prompt_tokens=Lengths.parse(self.prompt_tokens, "--prompt-tokens"),
            answer_tokens=Lengths.parse(self.tokens, "--tokens"),
            turns=self.turns,
            prefix_tokens=self.prefix_tokens,
            num_prefixes=self.prefixes,
        )

    def fields(self) -> dict[str, Any]:
        """The fields of each request's body, without the prompt, its length and the model. Raises UsageError."""
        import msgspec

        own: dict[str, Any] = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        if not self.stop_at_end:
            own["ignore_eos"] = True
        if self.body is None:
            return own
        try:
            more = msgspec.json.decode(self.body, type=dict[str, Any])
        except msgspec.DecodeError as fault:
            raise UsageError(f'--body {self.body}: {fault}; expected an object, such as {{"top_p": 0.9}}') from None
        if taken := [name for name in _OWN_FIELDS if name in more]:
            raise UsageError(f"--body: {', '.join(taken)} is set by the load itself; leave it out")
        return own | more

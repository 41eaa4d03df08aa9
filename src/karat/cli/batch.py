"""`karat batch`: many requests from a file, and their answers in another."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from karat.cli.exits import LINES_FAILED
from karat.cli.options import LoadOptions, flag, given_fields, option, typed
from karat.cli.progress import Progress
from karat.cli.terminal import note, require_folder_of
from karat.errors import OutputError, UsageError

if TYPE_CHECKING:
    from karat.batch_files.asking import PlaceToAsk
    from karat.batch_files.running import Batch, BatchMeter, Survey
    from karat.batch_files.sources import Source
    from karat.server.settings import ServerSettings

EXAMPLES = """
Examples

  karat batch in.jsonl -o out.jsonl -m ./model.gguf
  karat batch in.jsonl -o out.jsonl --url http://a:8000 --url http://b:8000
  karat batch a.parquet --column text --chat -o out.jsonl
"""
_EACH = 32  # requests of one server at a time
_TELL_EVERY_S = 60  # where progress is a line each time


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Where the prompts of a CSV or Parquet file are."""

    column: Annotated[str | None, option("Input", "NAME", "Of a .csv or .parquet file: the column of prompts.")] = None
    id_column: Annotated[str | None, option("Input", "NAME", "And that of custom_ids (default: row numbers).")] = None
    chat: Annotated[bool, flag("Input", "--chat", "A prompt there is a message in a chat.")] = False
    body: Annotated[
        str | None, option("Input", "JSON", 'Fields of each request that does not have them: {"max_tokens": 64}.')
    ] = None


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """What is written."""

    errors: Annotated[Path | None, option("Output", "FILE", "What failed (default: OUT with .errors.jsonl).")] = None
    no_times: Annotated[
        bool, flag("Output", "--no-times", "Leave out times, ids that servers made and cached tokens.")
    ] = False
    receipts: Annotated[bool, flag("Output", "--receipts", "A receipt in every answer.")] = False
    overwrite: Annotated[bool, flag("Output", "--overwrite", "Replace OUT if it is another run's.")] = False
    restart: Annotated[bool, flag("Output", "--restart", "Forget the answers of an earlier run.")] = False


@dataclass(frozen=True, slots=True)
class ServersOptions:
    """Servers that answer, instead of an engine here."""

    url: Annotated[list[str] | None, option("Servers", "URL", "Ask this server; repeatable.")] = None
    api_key: Annotated[str | None, option("Servers", "KEY", "Sent to each; other users here may see it.")] = None
    concurrency: Annotated[int | None, option("Servers", "N", "Requests of each at a time (default: 32).")] = None
    timeout_s: Annotated[float | None, option("Servers", "S", "For one answer (default: 3600).")] = None
    give_up_s: Annotated[float | None, option("Servers", "S", "That a server may answer nobody (default: 300).")] = None


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Engines on the nodes of a cluster of Ray."""

    ray: Annotated[
        str | None, option("Cluster", "ADDRESS", "Load MODEL on the nodes there: auto, HOST:PORT, ray://HOST:PORT.")
    ] = None
    cores_each: Annotated[int | None, option("Cluster", "N", "Cores of an engine (default: all of its node).")] = None
    engines: Annotated[int | None, option("Cluster", "N", "Engines at the most (default: as many as fit).")] = None


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine here."""

    served_model_name: Annotated[
        list[str] | None, option("Model", "NAME", "What the requests call the model; repeatable.")
    ] = None
    default_max_tokens: Annotated[
        int | None, option("Model", "N", "Of answers whose request names no length (default: 4096).")
    ] = None
    max_num_seqs: Annotated[int | None, option("Model", "N", "Answers computed at a time (default: 16).")] = None
    kv_cache_bytes: Annotated[int | None, option("Model", "N", "Memory of the KV cache, in bytes.")] = None


def batch(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Requests: .jsonl, .csv or .parquet.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="The answers, as JSON Lines.")],
    model: Annotated[
        str | None,
        typer.Option("-m", "--model", metavar="MODEL", help="Folder, GGUF file or name on the hub."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Keys the draws of requests without a seed.")] = 0,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only errors on stderr.")] = False,
    *,
    tables: TableOptions,
    results: ResultOptions,
    servers: ServersOptions,
    cluster: ClusterOptions,
    engine: EngineOptions,
    loading: LoadOptions,
) -> None:
    """Answer every request of a file, on this machine or by servers; see docs/batch.md.

    A line is one of OpenAI's batches (custom_id, method, url, body), or has prompt or messages and other fields of a
    request. Results come in the order of the input.

    Killed anywhere, the same command goes on: answers are kept in OUT.journal as they come. A request without a seed
    gets one from --seed and its custom_id, so neither order nor interruptions change an answer. What failed is in the
    file of errors, and is asked again by the same command.
    """
    if servers.url and (model is not None or loading.given() or given_fields(engine)):
        raise UsageError("both --url and a model to load here, or its options; give one")
    if servers.url and cluster.ray:
        raise UsageError("both --url and --ray; give one")
    if cluster.ray is None and given_fields(cluster):
        raise UsageError(f"--{next(iter(given_fields(cluster))).replace('_', '-')} needs --ray")
    if not servers.url and given_fields(servers):
        raise UsageError(f"--{next(iter(given_fields(servers))).replace('_', '-')} needs --url")
    if not source.is_file():
        raise UsageError(f"{source}: there is no such file; the requests are read more than once, so it must be one")
    errors = results.errors or output.with_suffix(".errors.jsonl")
    for path in (output, errors):
        require_folder_of(path)
    journal = output.with_name(f"{output.name}.journal")
    if results.restart:
        journal.unlink(missing_ok=True)
    if output.exists() and not journal.exists() and not results.overwrite:
        raise OutputError(f"{output}: exists, and no journal of an earlier run is beside it; --overwrite replaces it")
    records = _source(source, tables)
    from karat.batch_files.journal import Journal
    from karat.batch_files.lines import LineReading
    from karat.batch_files.running import Batch, BatchMeter, survey, write_results

    kept = Journal(journal)
    try:
        asked = Batch(records, LineReading(_defaults(tables.body)), seed, kept)
        found = survey(asked)
        if not quiet:
            _remark(found)
        meter = BatchMeter(found.num_requests - found.num_answered)
        progress = Progress(quiet=quiet, lines=True)
        try:
            if cluster.ray is None:
                tell = _telling(progress, meter)
                asyncio.run(_answer(asked, found, model, results, servers, engine, loading, meter, tell))
            else:
                settings, options = _engine(found, model, engine, loading)
                _answer_on_cluster(asked, model, options, settings, results, cluster, meter, _telling(progress, meter))
        finally:
            progress.clear()
        num_good, num_bad = write_results(asked, output, errors, times=not results.no_times)
    finally:
        kept.close()
    if not quiet:
        _summary(meter, num_good, num_bad, errors)
    if num_bad:
        raise typer.Exit(LINES_FAILED)


async def _answer(
    asked: "Batch",
    found: "Survey",
    model: str | None,
    results: ResultOptions,
    servers: ServersOptions,
    engine: EngineOptions,
    loading: LoadOptions,
    meter: "BatchMeter",
    tell: Callable[[str], None],
) -> None:
    """By servers, or the engine here."""
    from karat.batch_files.asking import PatientPlace, ServerThere
    from karat.batch_files.here import engine_here
    from karat.batch_files.running import answer_pending, facts_of
    from karat.engine.async_llm import AsyncLLM

    give_up_s = 300.0 if servers.give_up_s is None else servers.give_up_s
    places: Sequence[PlaceToAsk]
    async with AsyncExitStack() as stack:
        if servers.url:
            timeout_s = 3600.0 if servers.timeout_s is None else servers.timeout_s
            places = [
                ServerThere(url, api_key=servers.api_key, receipts=results.receipts, timeout_s=timeout_s)
                for url in servers.url
            ]
            num_each, fingerprint = servers.concurrency or _EACH, None
        else:
            settings, options = _engine(found, model, engine, loading)
            opening = engine_here(partial(AsyncLLM.open, model, **options), settings, receipts=results.receipts)
            here, llm = await stack.enter_async_context(opening)
            places, num_each, fingerprint = [here], 2 * llm.max_num_seqs, (await llm.fingerprint()).short
        asked.journal.settle(facts_of(asked, receipts=results.receipts, fingerprint=fingerprint))
        patient = [PatientPlace(place, give_up_s) for place in places]
        await answer_pending(asked, patient, num_each, meter, tell)


def _answer_on_cluster(
    asked: "Batch",
    model: str | None,
    options: dict[str, Any],
    settings: "ServerSettings",
    results: ResultOptions,
    cluster: ClusterOptions,
    meter: "BatchMeter",
    tell: Callable[[str], None],
) -> None:
    """By engines on a cluster of Ray."""
    try:
        from karat.ray.batch import answer_on_cluster
        from karat.ray.memory import memory_there
        from karat.ray.placement import places
        from karat.ray.pool import Job, connect
    except ImportError:
        raise UsageError("--ray needs Ray, which is not installed; pip install '.[ray]' in a clone") from None
    from karat.batch_files.running import facts_of

    assert cluster.ray is not None, "an address"
    asked.journal.settle(facts_of(asked, receipts=results.receipts, fingerprint=None))
    connect(cluster.ray)
    memory = memory_there(model, options)
    room = places(memory, cores=cluster.cores_each, most=cluster.engines)
    job = Job(
        model=model,
        options=options,
        model_names=settings.model_names,
        default_max_tokens=settings.default_max_tokens,
        receipts=results.receipts,
    )
    answer_on_cluster(asked, job, room, memory, meter, tell)


def _engine(
    found: "Survey", model: str | None, engine: EngineOptions, loading: LoadOptions
) -> "tuple[ServerSettings, dict[str, Any]]":
    """The server's settings and the options of an engine."""
    from karat.cli.serve import usual_name
    from karat.server.settings import ServerSettings

    names = tuple(engine.served_model_name or [usual_name(model)])
    if foreign := sorted(found.models - {*names}):
        raise UsageError(
            f"requests name the model {foreign[0]!r}; here is {', '.join(names)}; if that is what they mean, say so "
            f"with --served-model-name {foreign[0]}"
        )
    given = given_fields(engine)
    options = loading.given() | {name: given[name] for name in ("max_num_seqs", "kv_cache_bytes") if name in given}
    settings = ServerSettings(model_names=names)
    if engine.default_max_tokens is not None:
        settings = replace(settings, default_max_tokens=engine.default_max_tokens)
    return settings, options


def _source(path: Path, tables: TableOptions) -> "Source":
    from karat.batch_files.sources import TABLES, RequestLines, TableRows

    if path.suffix not in TABLES:
        if tables.column or tables.id_column or tables.chat:
            raise UsageError(f"{path}: --column, --id-column and --chat are for {' and '.join(TABLES)} files")
        return RequestLines(path)
    if tables.column is None:
        raise UsageError(f"{path}: which column has the prompts? say so with --column")
    return TableRows(path, tables.column, tables.id_column, chat=tables.chat)


def _defaults(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    value = typed(text)
    if not isinstance(value, dict):
        raise UsageError(f'--body {text!r:.80}: expected a JSON object, as {{"max_tokens": 64}}')
    return value


def _telling(progress: Progress, meter: "BatchMeter") -> Callable[[str], None]:
    """Progress twice a second on a terminal, and else a line a minute."""
    last = 0.0

    def tell(text: str) -> None:
        nonlocal last
        if progress.is_live or meter.elapsed_s - last >= _TELL_EVERY_S:
            last = meter.elapsed_s
            progress(text)

    return tell


def _remark(found: "Survey") -> None:
    text = f"{found.num_requests:,} requests"
    if found.num_answered:
        text += f", {found.num_answered:,} of them answered before"
    if found.num_edited:
        text += f", {found.num_edited:,} changed since they were answered, which are asked anew"
    if found.num_faults:
        text += f"; {found.num_faults:,} lines are none"
    note(text)


def _summary(meter: "BatchMeter", num_good: int, num_bad: int, errors: Path) -> None:
    from karat.batch_files.running import duration

    text = f"{num_good:,} answers"
    if meter.num_done:
        text += f", {meter.num_done:,} of them now: {meter.num_tokens:,} tokens in {duration(meter.elapsed_s)}"
        text += f", {meter.num_tokens / meter.elapsed_s:,.0f} a second"
    if num_bad:
        text += f"; {num_bad:,} failed: {errors}"
    note(text)

"""The result of `karat bench serve` for people: a table, ratios, and what must be known to read them."""

from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from karat.cli.terminal import bytes_text

_WIDTH = 1000  # of the paper, not of the table: no figure is cut
_HEAD = ("load", "", "req/s", "tok/s", "all tok/s", "TTFT", "TPOT", "ITL", "E2E", "tok/event", "cached", "failed")
_LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")


def as_table(result: Mapping[str, Any]) -> str:
    """Latencies are the median and the 99th percentile, in milliseconds."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    has_goals = any(figures["goodput"] for _, _, _, figures in _rows(result))
    for number, title in enumerate([*_HEAD, *(["good req/s"] if has_goals else [])]):
        table.add_column(title, justify="left" if number < 2 else "right", no_wrap=True)
    for point, kind, name, figures in _rows(result):
        table.add_row(*_cells(point, kind, name, figures))
    out = StringIO()
    console = Console(file=out, width=_WIDTH, color_system=None, highlight=False)
    console.print(f"{result['model']}: {result['about']}; seed {result['load']['seed']}", markup=False, soft_wrap=True)
    console.print(table)
    for line in [*_ratios(result), *_remarks(result)]:
        console.print(line, markup=False, soft_wrap=True)
    return out.getvalue()


def _rows(result: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str, str, Mapping[str, Any]]]:
    for point in result["points"]:
        for kind in ("cold", "warm"):
            for name, figures in (point[kind] or {}).items():
                yield point, kind, name, figures


def _load(point: Mapping[str, Any]) -> str:
    return f"{point['concurrency']} at a time" if point["rate"] is None else f"{point['rate']:.3g} a second"


def _cells(point: Mapping[str, Any], kind: str, name: str, figures: Mapping[str, Any]) -> list[str]:
    cells = [_load(point), name if kind == "cold" else f"{name}, warm"]
    cells += [_number(figures[key], ".2f") for key in ("requests_per_s",)]
    cells += [_number(figures[key], ".1f") for key in ("output_tokens_per_s", "total_tokens_per_s")]
    cells += [_milliseconds(figures[key]) for key in _LATENCIES]
    cells += [_number(figures["tokens_per_event"], ".2f"), _number(figures["cached_share"], ".0%")]
    cells.append(str(figures["requests"] - figures["completed"]))
    if goodput := figures["goodput"]:
        cells.append(f"{_number(goodput['requests_per_s'], '.2f')} ({_number(goodput['share'], '.0%')})")
    return cells


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _milliseconds(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "–"
    return " / ".join(f"{1000 * found[rank]:.{1 if found['p99'] < 0.1 else 0}f}" for rank in ("p50", "p99"))


def _ratios(result: Mapping[str, Any]) -> Iterator[str]:
    if len(result["servers"]) < 2:
        return
    first, second = (server["name"] for server in result["servers"])
    yield f"{first} over {second}: the median of the turns (least – most)"
    for point in result["points"]:
        for kind in ("cold", "warm"):
            found = point.get(f"{kind}_ratios") or {}
            shown = ", ".join(
                f"{name.replace('_', ' ')} {of['median']:.2f} ({of['min']:.2f} – {of['max']:.2f})"
                for name, of in found.items()
                if of and name in ("output_tokens_per_s", "ttft_p50", "ttft_p99", "tpot_p50", "itl_p50", "e2e_p50")
            )
            if shown:
                yield f"  {_load(point)}{', warm' if kind == 'warm' else ''}: {shown}"


def _remarks(result: Mapping[str, Any]) -> Iterator[str]:
    yield "latencies: median / 99 % in ms, of whole answers, from when a request was due"
    for point, kind, name, figures in _rows(result):
        where = f"{name}, {_load(point)}, {kind}"
        for error, count in figures["errors"].items():
            yield f"failed: {count} × {error} ({where})"
        if figures["without_usage"]:
            yield f"{where}: {figures['without_usage']} answers had no usage; their tokens are counted as events"
        late = figures["sent_late_s"]
        if late and late["p99"] > 0.01:
            yield f"{where}: the client sent 1 % of the requests more than {1000 * late['p99']:.0f} ms late"
        shares = result["load"]["prefix_tokens"] or result["load"]["turns"] > 1 or result["load"]["dataset"]
        if kind == "cold" and (figures["cached_share"] or 0) > 0.02 and not shares:
            yield f"{where}: {figures['cached_share']:.0%} of the prompts came from the cache, although they were new"
    for server in result["servers"]:
        if found := server["states"]:
            yield (
                f"{server['name']}: states take {bytes_text(found['bytes'])}; {found['kept']} of at most "
                f"{found['most_kept']} are kept for later prompts; {found['stateless_tokens']:,} tokens were in the "
                "cache without one"
            )
    costs = [figures["client_s_per_event"] for *_, figures in _rows(result) if figures["client_s_per_event"]]
    if costs:
        share = max(figures["client_share"] or 0 for *_, figures in _rows(result))
        yield (
            f"this client: at most {1e6 * max(costs):.0f} µs of a core for each event, progress and requests included; "
            f"at most {share:.0%} of a core"
        )

"""`karat check`: proves that a model runs right, or says what is wrong."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from karat.cli.exits import ends_in_verdict
from karat.cli.options import ComputeOptions, GenerationConfig, generation_source
from karat.cli.progress import Progress
from karat.cli.terminal import emit, note
from karat.errors import KaratError, OutputError, UsageError

if TYPE_CHECKING:
    from karat.check.model.checked import CheckedModel
    from karat.check.session.stage import Stage

EXAMPLES = """
Examples

  karat check                            the embedded model
  karat check ./my-model --tokens 64 --against reference
  karat check org/name --json --report check.html
  karat check model.gguf --original ./my-model      how far from the original
  karat check --invariance               same logits under every setting
  karat check ./my-model --tensor-parallel-size 4   ranks and one process

Exit code 0: exact, numerics or quantisation. 1: bug.
2: it could not be checked, and stderr says why.
"""


@ends_in_verdict
def check(
    ctx: typer.Context,
    load: ComputeOptions,
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A folder, a GGUF file, or org/name.")] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="reference (float64) only; hf or llama.cpp too (default: the one that fits, if installed); or a "
            "trace of this model, which is then judged.",
        ),
    ] = None,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="The text to compute.")] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="At most N tokens of it (default: 64); of a model without tokenizer, N ids drawn."
        ),
    ] = None,
    stories: Annotated[
        int | None, typer.Option(metavar="N", help="Stories to draw, each about a word drawn now (default: 8).")
    ] = None,
    layers: Annotated[str | None, typer.Option(metavar="I,J-K", help="Judge only these layers.")] = None,
    stages: Annotated[
        str | None, typer.Option("--stages", metavar="A,B", help="Only these stages (default: all).")
    ] = None,
    original: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The model that the file was made of: find values that no rounding gives, and measure the distance.",
        ),
    ] = None,
    hybrid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART",
            help="Ours in a transformers model: attention, mlp, norm, head, layer:K; or theirs in ours: theirs:mlp; "
            "repeatable.",
        ),
    ] = None,
    invariance: Annotated[
        bool, typer.Option("--invariance", help="Only the same-bits table of the native executor.")
    ] = False,
    save_trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --tensor-parallel-size: write the traces of all ranks, in one file."),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Draw the same words and ids again.")] = None,
    generation_config: GenerationConfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object at the end.")] = False,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all results as a page.")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress on stderr.")] = False,
) -> None:
    """Prove that a model runs right: tokens, weights, every op, logits, generation, health, same bits.

    Each op is compared with the same computed in float64, in multiples of a measured noise floor. The verdict is exact,
    numerics, quantisation, or bug with its name.
    """
    import secrets

    from karat.check.model.checked import open_model
    from karat.check.session.engines_beside import engines_beside
    from karat.check.session.session import STAGES, CheckPlan, CheckSession
    from karat.check.session.stage import meaning, overall
    from karat.check.stages.registry import run_stages
    from karat.cli.check_facts import gather, plain
    from karat.ops.registry import take_options

    is_trace = against not in (None, "reference", "hf", "llama.cpp")
    if is_trace and not Path(str(against)).is_file():
        raise UsageError(f"--against {against}: expected reference, hf, llama.cpp, or a trace that exists")
    if is_trace and (given := "--prompt" if prompt is not None else "--tokens" if tokens is not None else None):
        raise UsageError(f"{given} cannot be combined with --against {against}: its tokens are computed; leave it out")
    for name, value, least in (("--tokens", tokens, 2), ("--stories", stories, 1)):
        if value is not None and value < least:
            raise UsageError(f"{name} {value}: expected at least {least}")
    num_tokens = 64 if tokens is None else tokens
    computed: dict[str, Any] = {name: value for name, value in load.given().items() if name not in load.said()}
    computed["options"] = take_options(computed)
    overrides = load.overrides()
    size = computed.pop("tensor_parallel_size", None)
    if save_trace is not None and size is None:
        raise UsageError("--save-trace is for the traces of ranks: give --tensor-parallel-size too")
    if size is not None or invariance:
        unread = {
            "--against": against,
            "--prompt": prompt,
            "--stories": stories,
            "--layers": layers,
            "--stages": stages,
            "--original": original,
            "--hybrid": hybrid,
            "--seed": seed,
            "--generation-config": generation_config,
            "--report": report,
            "--invariance": (invariance and size is not None) or None,
        }
        if ignored := next((name for name, value in unread.items() if value is not None), None):
            alone = "--invariance" if size is None else "--tensor-parallel-size"
            raise UsageError(f"{ignored} cannot be combined with {alone}, which compares random tokens; leave it out")
    if size is not None:
        raise typer.Exit(
            _show_ranks(open_model(model, overrides), size, num_tokens, computed, trace=save_trace, as_json=as_json)
        )
    if invariance:
        raise typer.Exit(_show_invariance(open_model(model, overrides), num_tokens, computed, as_json=as_json))
    chosen = STAGES if stages is None else tuple(stages.split(","))
    if wrong := sorted(set(chosen) - set(STAGES)):
        raise UsageError(f"--stages {wrong[0]!r}: expected some of {','.join(STAGES)}")
    opened = open_model(model, overrides)
    beside = engines_beside(opened, against, hybrid or (), is_changed=overrides.changes_model)
    if beside.remark is not None:
        note(beside.remark)
    if report is not None and not report.parent.is_dir():
        raise OutputError(f"--report {report}: there is no folder {report.parent}; make it, or choose another place")
    drawn = secrets.randbelow(2**31) if seed is None else seed
    plan = CheckPlan(
        model=opened,
        other=Path(str(against)) if is_trace else None,
        hybrid=tuple(hybrid or ()),
        prompt=prompt,
        num_tokens=num_tokens,
        with_hf=beside.with_hf,
        with_llamacpp=beside.with_llamacpp,
        original=None if original is None else open_model(original),
        layers=None if layers is None else _layers(layers, opened.config.num_layers),
        stages=chosen,
        stories=8 if stories is None else stories,
        generation_config=generation_source(generation_config),
        seed=drawn,
        **computed,
    )
    progress = Progress(quiet=quiet)
    session = CheckSession(plan, progress)
    if session.drawn:
        note(f"{session.no_tokenizer}; so {len(session.ids)} token ids were drawn with --seed {drawn}")
    done = []
    for stage in run_stages(session):
        progress.clear()
        done.append(stage)
        if not as_json:
            emit(_lines(stage))
    verdict = overall(done)
    facts = gather(session, done, verdict, ctx.find_root().obj.args)
    if report is not None:
        from karat.check.report.page import page
        from karat.checkpoint.files import whole_file

        with whole_file(report) as file:
            file.write(page(session, done, facts).encode("utf-8", "backslashreplace"))
    if verdict == "quantisation" and original is None:
        note("the verdict covers this file only; --original MODEL measures its distance from the original weights")
    flagged = f"; flagged: {', '.join(facts['flagged'])}" if facts["flagged"] and verdict != "flagged" else ""
    if as_json:
        emit(json.dumps(plain(facts), indent=2, ensure_ascii=False) + "\n")
    else:
        said = meaning(verdict, facts["flagged"])
        emit((f"{said}\n" if said else "") + f"verdict: {verdict}{flagged}\n")
    if verdict in ("skipped", "flagged"):
        names = ", ".join(stage.name for stage in done)
        what = "nothing was checked" if verdict == "skipped" else "flags are no verdict"
        if verdict == "skipped" and any(stage.verdict != "skipped" for stage in done):
            raise KaratError("nothing was compared: health looks at a run alone; choose other --stages beside it")
        raise KaratError(f"{what}: {names} {verdict}, for the reasons given; choose other --stages")
    raise typer.Exit(1 if verdict == "bug" else 0)


def _layers(text: str, count: int) -> frozenset[int]:
    from karat.cli.trace import numbers

    chosen = frozenset(numbers("--layers", text) or ())
    if not chosen or max(chosen) >= count:
        raise UsageError(f"--layers {text}: the model has layers 0 to {count - 1}")
    return chosen


def _show_invariance(model: "CheckedModel", num_tokens: int, computed: dict[str, Any], *, as_json: bool) -> int:
    """Print one line for each setting; return the exit code. `computed` are arguments of invariance_of."""
    from karat.check.session.same_bits import invariance_of

    rows = []
    for row in invariance_of(model.checkpoint, num_tokens=num_tokens, **computed):
        rows.append({"setting": row.setting.name, "digest": row.digest, "same": row.same, "finite": row.finite})
        if not as_json:
            emit(f"{row.setting.name:36} {row.digest[:16]}  {row.word}\n")
    same = all(row["same"] and row["finite"] for row in rows)
    facts = {"verdict": "exact" if same else "bug", "tokens": num_tokens, "settings": rows}
    emit(json.dumps(facts, indent=2) + "\n" if as_json else f"verdict: {facts['verdict']}\n")
    return 0 if same else 1


def _show_ranks(
    model: "CheckedModel", size: int, num_tokens: int, chosen: dict[str, Any], *, trace: Path | None, as_json: bool
) -> int:
    """Show each stage when it is done; return the exit code. `chosen` are fields of the plan."""
    from karat.check.ranks.check import check_parallel
    from karat.check.ranks.session import ParallelPlan, overall

    plan = ParallelPlan(model=model, size=size, num_tokens=num_tokens, trace=trace, **chosen)
    stages = []
    for stage in check_parallel(plan):
        stages.append(stage)
        if not as_json:
            emit(
                "\n".join([f"{stage.name:11} {stage.verdict}", *(f"            {line}" for line in stage.lines)]) + "\n"
            )
    verdict = overall({stage.verdict for stage in stages})
    rows = [{"name": stage.name, "verdict": stage.verdict, "lines": list(stage.lines)} for stage in stages]
    facts = {"verdict": verdict, "model": str(plan.model.path), "ranks": size, "tokens": num_tokens, "stages": rows}
    emit(json.dumps(facts, indent=2, ensure_ascii=False) + "\n" if as_json else f"verdict: {verdict}\n")
    return 1 if verdict == "bug" else 0


def _lines(stage: "Stage") -> str:
    head = f"{stage.name:11} {stage.verdict:12} {stage.seconds:6.1f} s"
    return "\n".join([head, *(f"            {line}" for line in stage.lines)]) + "\n"

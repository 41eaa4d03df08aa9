"""The model card: `card.md` filled in with measured numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from training.evaluate import HeldOut, Inclusion
from training.reserved import BANDS
from training.state import Progress
from training.words import RESERVED_PERCENT

TEMPLATE = Path(__file__).with_name("card.md")
NUM_SAMPLES = 4


@dataclass(frozen=True)
class Measured:
    """Everything on the card that is measured rather than chosen; `reserved` and `trained` have one entry a seed."""

    held_out: dict[str, HeldOut]
    start: dict[str, HeldOut]
    reserved: list[Inclusion]
    trained: list[Inclusion]
    progress: Progress
    hardware: str


def render(measured: Measured, shape: dict[str, int | float], sampling: dict[str, float], documents: int) -> str:
    """The card's text. `shape` names the model's sizes as card.md does; KeyError if one is missing."""
    found, progress = measured.reserved, measured.progress
    uses = dict(zip(BANDS, [*(f"{least} or more" for least in BANDS.values())], strict=True))
    bands = "\n".join(f"| {band} | {uses[band]} | {share:.1%} |" for band, share in mean_shares(found).items())
    rows = "\n".join(
        f"| {n} | {m.num_tokens:,} | {m.loss:.4f} | {m.perplexity:.2f} |" for n, m in measured.held_out.items()
    )
    num_stories = sum(one.num_stories for one in found)
    start = list(measured.start.values())
    return TEMPLATE.read_text().format(
        **shape,
        **sampling,
        held_out_rows=rows,
        num_documents=f"{documents:,}",
        start_loss=start[0].loss,
        start_tiny=start[1].loss,
        reserved_percent=RESERVED_PERCENT,
        num_stories=num_stories,
        per_band=found[0].per_band,
        band_rows=bands,
        all_share=mean(mean_shares(found)),
        ended=sum(one.ended for one in found) / len(found),
        mean_tokens=sum(one.mean_tokens for one in found) / len(found),
        trained_share=mean(mean_shares(measured.trained)),
        num_samples=NUM_SAMPLES,
        samples=quoted(found[0].samples[:NUM_SAMPLES]),
        tokens=progress.tokens / 1e6,
        steps=progress.step,
        hours=progress.seconds / 3600,
        hardware=measured.hardware,
    )


def mean_shares(found: list[Inclusion]) -> dict[str, float]:
    """Share by band over several seeds."""
    return {band: sum(one.shares[band] for one in found) / len(found) for band in found[0].shares}


def mean(shares: dict[str, float]) -> float:
    return sum(shares.values()) / len(shares)


def quoted(samples: list[tuple[str, str]]) -> str:
    """Request and story as Markdown quotations."""
    return "\n\n".join(
        f"**{asked}**\n\n" + "\n".join(f"> {line}  " for line in told.split("\n")) for asked, told in samples
    )

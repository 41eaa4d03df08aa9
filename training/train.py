"""Train the embedded model: `python -m training.train --corpus DIR --init DIR --out DIR --minutes 90`.

Warm-up, a constant rate, then a linear decay over the last part of the budget. The state at the end of the
constant part is kept (`stable.safetensors`): a longer run continues from there with
`--resume OUT/stable.safetensors` and a new budget.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from training.batches import LEARN, SETTLE, Corpus, SampleMaker, stream
from training.evaluate import Sampling, held_out_loss, inclusion
from training.model import ModelConfig, StoryModel
from training.package import write_folder
from training.reserved import bands_of
from training.state import Progress, load_state, save_state
from training.strangers import Strangers

AVERAGE_DECAY = 0.995
WARMUP_STEPS = 60


@dataclass(frozen=True)
class Schedule:
    """The learning-rate factor as a function of the share of the budget that is used up."""

    minutes: float | None
    tokens: int | None
    decay_share: float

    def used(self, progress: Progress, start: Progress) -> float:
        if self.tokens is not None:
            return (progress.tokens - start.tokens) / self.tokens
        assert self.minutes is not None
        return (progress.seconds - start.seconds) / (60 * self.minutes)

    def factor(self, used: float, steps: int) -> float:
        """Linear warm-up over WARMUP_STEPS, 1, then linear to 0 over the last `decay_share`."""
        return min(1.0, (steps + 1) / WARMUP_STEPS, max(0.0, (1.0 - used) / self.decay_share))


def make_optimizers(model: nn.Module, matrix_rate: float, other_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the embedding, norms and biases."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=matrix_rate, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=other_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def show(progress: Progress, used: float, loss: float, rate: float, factor: float) -> None:
    """One line, rewritten in place on a terminal and printed now and then in a log."""
    left = progress_eta(progress, used)
    bar = "#" * int(used * 24)
    line = f"[{bar:<24}] {used:6.1%} step {progress.step} tokens {progress.tokens / 1e6:.2f}M loss {loss:.3f}"
    line += f" lr x{factor:.2f} {rate:,.0f} tok/s {left} left"
    if sys.stderr.isatty():
        print(f"\r{line}  ", end="", file=sys.stderr, flush=True)
    elif progress.step % 50 == 0:
        print(line, file=sys.stderr, flush=True)


def progress_eta(progress: Progress, used: float) -> str:
    """Time left, as h:mm:ss, assuming the speed so far."""
    seconds = int(progress.seconds * (1 - used) / max(used, 1e-6))
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def report(
    model: StoryModel, average: dict[str, Tensor], corpus: Corpus, tokenizer: Tokenizer, progress: Progress
) -> None:
    """Print held-out loss (first 40 documents) and word inclusion, of the averaged weights."""
    averaged = StoryModel(model.config)
    averaged.load_state_dict(average)
    losses = {
        n: held_out_loss(m, tokenizer, corpus.held_out[:40]).loss for n, m in (("now", model), ("average", averaged))
    }
    line = f"eval step {progress.step}: held-out loss " + ", ".join(f"{n} {v:.3f}" for n, v in losses.items())
    for name, reserved in (("trained words", False), ("reserved words", True)):
        bands = bands_of(corpus.lexicon, reserved)
        result = inclusion(averaged, tokenizer, bands, per_band=8, seed=progress.step)
        line += (
            f"; {name} "
            + " ".join(f"{band} {share:.0%}" for band, share in result.shares.items())
            + f" ended {result.ended:.0%}"
        )
    print("\n" + line + "\n  " + ": ".join(result.samples[0]).replace("\n", " ")[:400], file=sys.stderr, flush=True)


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    name = arguments.device if arguments.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    tokenizer = Tokenizer.from_file(str((arguments.init or arguments.tokenizer) / "tokenizer.json"))
    corpus = Corpus.load(arguments.corpus)
    print(
        f"{len(corpus.stories)} stories, {len(corpus.tales)} tale passages, {len(corpus.classics)} classic passages",
        file=sys.stderr,
    )
    model = StoryModel.from_folder(arguments.init) if arguments.init else StoryModel(ModelConfig())
    model.to(device)
    average = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizers = make_optimizers(model, arguments.matrix_rate, arguments.other_rate)
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    progress = load_state(arguments.resume, model, average, optimizers) if arguments.resume else Progress()
    start = Progress(**vars(progress)) if not arguments.resume_budget else Progress()
    schedule = Schedule(arguments.minutes, arguments.tokens, arguments.decay_share)
    strangers = Strangers.of(tokenizer, corpus.lexicon).to(device)
    loss_fn: Callable[[Tensor, Tensor, Tensor, Strangers, Tensor], Tensor] = (
        torch.compile(model.loss, dynamic=True) if arguments.compile else model.loss
    )
    maker = SampleMaker(corpus, tokenizer, LEARN)
    stable_saved = False
    last_report = last_save = clock = time.monotonic()
    smooth, speed = 0.0, 0.0
    for chunk, batch in stream(maker, arguments.seed, arguments.batch_tokens, progress.chunk):
        used = schedule.used(progress, start)
        if used >= 1.0:
            break
        if used >= 1.0 - arguments.decay_share and not stable_saved:
            if progress.step > start.step or not arguments.resume_budget:
                save_state(out / "stable.safetensors", model, average, optimizers, progress)
            stable_saved = True
        maker.mixture = LEARN if used < 1.0 - arguments.decay_share else SETTLE
        factor = schedule.factor(used, progress.step - start.step)
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
        targets = batch.targets.to(device)
        with torch.autocast(device.type, torch.bfloat16):
            # By the step, so that a run that was resumed goes on with the same.
            drawn = strangers.draw(model.model.embed_tokens.weight, arguments.seed << 32 | progress.step)
            loss = loss_fn(batch.token_ids.to(device), targets, batch.weights.to(device), strangers, drawn)
            loss = loss / (targets >= 0).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            decay = min(AVERAGE_DECAY, progress.step / (progress.step + 10))
            torch._foreach_lerp_(list(average.values()), list(model.parameters()), 1 - decay)
        now = time.monotonic()
        progress.step, progress.tokens, progress.chunk = progress.step + 1, progress.tokens + batch.num_tokens, chunk
        progress.seconds += now - clock
        speed = 0.95 * speed + 0.05 * batch.num_tokens / (now - clock) if speed else batch.num_tokens / (now - clock)
        clock = now
        smooth = 0.97 * smooth + 0.03 * loss.item() if smooth else loss.item()
        show(progress, used, smooth, speed, factor)
        if now - last_report > 60 * arguments.eval_minutes:
            report(model, average, corpus, tokenizer, progress)
            last_report = time.monotonic()
        if now - last_save > 120:
            save_state(out / "last.safetensors", model, average, optimizers, progress)
            last_save = time.monotonic()
    save_state(out / "last.safetensors", model, average, optimizers, progress)
    report(model, average, corpus, tokenizer, progress)
    write_folder(out / "model", model, arguments.init or arguments.tokenizer, Sampling())
    print(f"done: {out / 'model'} (weights), {out / 'stable.safetensors'} (to train on from)", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.train", description="Train the embedded model.")
    parser.add_argument(
        "--corpus", type=Path, required=True, help="folder with tinystories.txt and the other three texts"
    )
    parser.add_argument("--init", type=Path, help="Hugging Face folder to start from (default: random weights)")
    parser.add_argument(
        "--tokenizer", type=Path, default=Path("src/karat/embedded"), help="folder of tokenizer.json without --init"
    )
    parser.add_argument("--out", type=Path, default=Path("train-run"), help="folder for states and the final model")
    parser.add_argument("--resume", type=Path, help="a state file (last.safetensors, stable.safetensors) to go on from")
    parser.add_argument(
        "--resume-budget", action="store_true", help="count the budget from the run's first step, not from --resume"
    )
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, help="budget of training time")
    budget.add_argument("--tokens", type=int, help="budget of tokens (reproducible)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--batch-tokens", type=int, default=6144)
    parser.add_argument("--matrix-rate", type=float, default=2e-3, help="Muon's learning rate")
    parser.add_argument("--other-rate", type=float, default=1.5e-3, help="AdamW's learning rate")
    parser.add_argument("--decay-share", type=float, default=0.3, help="share of the budget spent decaying the rate")
    parser.add_argument("--eval-minutes", type=float, default=10.0)
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="torch.compile (needs a C++ compiler)"
    )
    train(parser.parse_args())


if __name__ == "__main__":
    main()

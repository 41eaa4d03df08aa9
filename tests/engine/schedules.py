"""A scheduler with sequences for it, and what the engine would do with a step."""

from collections.abc import Callable

from karat.engine.scheduling.scheduler import Chunk, Scheduler
from karat.engine.scheduling.sequence import Sequence
from karat.kv.blocks import BlockPool
from karat.kv.sizes import GroupSize


def make(
    num_blocks: int = 16,
    block_size: int = 4,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 16,
    max_prompt_logits: int = 8,
    share_prefixes: bool = False,
    *windowed: GroupSize,
) -> Scheduler:
    """Of one cache group with all tokens, and others that follow."""
    return Scheduler(
        BlockPool([GroupSize(num_blocks), *windowed], block_size),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_prompt_logits=max_prompt_logits,
        share_prefixes=share_prefixes,
    )


def sequence(
    seq_id: int,
    prompt_len: int,
    max_new: int = 0,
    *,
    prompt_logits: bool = False,
    priority: int = 0,
    is_beside: bool = False,
) -> Sequence:
    return Sequence(
        seq_id,
        [0] * prompt_len,
        prompt_len,
        max_len=prompt_len + max_new,
        num_read=0 if prompt_logits else prompt_len - 1,
        priority=priority,
        is_beside=is_beside,
    )


def text(seq_id: int, tokens: str, max_new: int = 0, *, prompt_logits: bool = False) -> Sequence:
    """A sequence whose prompt is spelt out."""
    prompt = list(tokens.encode())
    num_read = 0 if prompt_logits else len(prompt) - 1
    return Sequence(seq_id, prompt, len(prompt), max_len=len(prompt) + max_new, num_read=num_read)


def compute(
    scheduler: Scheduler,
    chunks: list[Chunk],
    done: Callable[[Sequence], bool] = lambda seq: False,
    sample: Callable[[], int] = lambda: 0,
) -> None:
    """What the engine does with a step: read the wanted logits, sample where the last token is in, end what is done."""
    for chunk in chunks:
        wanted = chunk.seq.wanted(chunk.num_tokens)
        scheduler.advance(chunk, chunk.num_tokens)
        last = chunk.seq.num_pending == 0
        assert last == (len(wanted) > 0 and wanted[-1] == len(chunk.seq.token_ids) - 1)
        if wanted:
            chunk.seq.num_read = wanted.stop
        if last:
            if done(chunk.seq):
                scheduler.remove(chunk.seq)
            else:
                chunk.seq.token_ids.append(sample())


def sizes(chunks: list[Chunk]) -> dict[int, int]:
    return {chunk.seq.seq_id: chunk.num_tokens for chunk in chunks}

"""Steps of sequences whose layers keep states."""

import numpy as np

from karat.batch import ForwardBatch


def steps_of(lens: list[int], cuts: list[list[int]]) -> list[tuple[ForwardBatch, list[tuple[int, slice]]]]:
    """Batches in which the sequences of `lens` tokens are cut into chunks of cuts[i] tokens, and whose rows they have.

    Sequence i has the slots 2 i and 2 i + 1 of states, which it writes in turn.
    """
    done, turns, found = [0] * len(lens), [0] * len(lens), []
    queues = [list(cut) for cut in cuts]
    while any(queues):
        live = [seq for seq, queue in enumerate(queues) if queue]
        counts = [queues[seq].pop(0) for seq in live]
        ends = np.cumsum([0, *counts])
        reads = [2 * seq + (turns[seq] + 1) % 2 if done[seq] else -1 for seq in live]
        writes = [2 * seq + turns[seq] % 2 for seq in live]
        spans = [(seq, slice(done[seq], done[seq] + count)) for seq, count in zip(live, counts, strict=True)]
        for seq, count in zip(live, counts, strict=True):
            done[seq] += count
            turns[seq] += 1
        batch = ForwardBatch.of(
            1,
            token_ids=[0] * int(ends[-1]),
            positions=np.concatenate([np.arange(span.start, span.stop) for _, span in spans]),
            query_starts=ends,
            context_lens=[done[seq] for seq in live],
            logit_rows=[],
            slots=[],
            block_tables=[],
            state_reads=reads,
            state_writes=writes,
        )
        batch.validate(cached_lens=[span.start for _, span in spans], caches=[], vocab_size=1, num_states=2 * len(lens))
        found.append((batch, spans))
    return found


def random_cuts(seed: int, lens: list[int]) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    found = []
    for length in lens:
        cut = []
        while sum(cut) < length:
            cut.append(min(int(rng.choice([1, 2, 3, 7, 64])), length - sum(cut)))
        found.append(cut)
    return found

// The columns of a batch, in order. `python -m tools.batch_columns` makes this file of karat.batch.
#pragma once

// X(name, length)
#define KARAT_COLUMNS(X)    \
    X(token_ids, tokens)    \
    X(positions, tokens)    \
    X(query_starts, bounds) \
    X(context_lens, seqs)   \
    X(logit_rows, rows)     \
    X(state_reads, seqs)    \
    X(state_writes, seqs)
// Those of each cache group.
#define KARAT_GROUP_COLUMNS(X) \
    X(slots, tokens)           \
    X(block_tables, table)

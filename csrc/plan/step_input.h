// What a step brings: one array of integers, and views of its columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "contract/kernels.h"
#include "plan/columns.h"

namespace karat {

#define KARAT_VIEW(name, length) const std::int32_t* name;

// The columns of a cache group.
struct GroupColumns {
    KARAT_GROUP_COLUMNS(KARAT_VIEW)
    std::size_t max_blocks;
};

// The inputs of a step (karat.batch.ForwardBatch).
struct StepInput {
    std::size_t num_tokens, num_seqs, num_wanted, block_size;
    KARAT_COLUMNS(KARAT_VIEW)
    std::vector<GroupColumns> groups;
    // For an observer of attention: null, or [score_heads, tokens of sequence score_seq, its context].
    float* scores = nullptr;
    std::size_t score_seq = 0, score_heads = 0;

    // The numbers must outlive the step. Throws std::invalid_argument unless they have a batch's form.
    StepInput(const std::int32_t* numbers, std::size_t count);

    // The step as kernels see it: with the blocks of one cache group.
    BatchView batch(std::size_t group) const {
        const GroupColumns& own = groups[group];
        return {num_tokens, num_seqs,     own.max_blocks, block_size,      positions,
                own.slots,  query_starts, context_lens,   own.block_tables};
    }
};

#undef KARAT_VIEW

// The names of the columns, in order; those of cache groups come last.
std::vector<std::string> step_columns();

}  // namespace karat

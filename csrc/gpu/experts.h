// Mixtures of experts: which experts a row goes to, and the sum of what they give (contract/kernels.h).
#pragma once

#include "gpu/panels.h"
#include "simd/routing.h"

namespace karat::gpu {

// A thread has a row.
struct RouteRow {
    RouteShape a;
    bool by_logit, over_chosen;

    KARAT_INLINE void operator()(int row) const {
        const std::size_t at = static_cast<std::size_t>(row), experts = static_cast<std::size_t>(a.experts);
        float* const scores = a.scratch + 3 * at * experts;
        route_row(a.logits + at * experts, experts, a.how, by_logit, over_chosen, a.ids + at * a.how.chosen,
                  a.weights + at * a.how.chosen, scores, scores + experts, scores + 2 * experts);
    }
};

// Adds the biases of its expert to a pair's product. An item is a number of it; experts of others are left out.
struct AddBiases {
    BiasesShape a;

    KARAT_INLINE void operator()(int i) const {
        const int expert = a.chosen.ids[i / a.columns] - a.chosen.first;
        if (expert < 0 || expert >= a.chosen.count) return;
        const std::size_t bias = static_cast<std::size_t>(expert) * a.columns + i % a.columns;
        a.pairs[i] = a.pairs[i] + value_at<float>(a.biases + bias);
    }
};

// A thread has a column of a row. Ids of a row differ from each other.
struct SumOfExperts {
    ExpertsShape a;

    KARAT_INLINE void operator()(int item) const {
        const int row = item / a.columns, column = item % a.columns, count = a.chosen.per_row;
        const std::int32_t* const ids = a.chosen.ids + static_cast<std::size_t>(row) * count;
        float sums[kMaxLeaves];
        std::int32_t last = -1;  // of the ids, from `first` on, that were added
#pragma unroll
        for (int leaf = 0; leaf < static_cast<int>(kMaxLeaves); ++leaf) {
            sums[leaf] = 0;
            if (leaf >= a.num_leaves) continue;
            for (;;) {
                int at = -1;
                for (int i = 0; i < count; ++i) {
                    const std::int32_t id = ids[i] - a.chosen.first;
                    if (id > last && id < a.leaf_ends[leaf] && (at < 0 || id < ids[at] - a.chosen.first)) at = i;
                }
                if (at < 0) break;
                last = ids[at] - a.chosen.first;
                const std::size_t pair = static_cast<std::size_t>(row) * count + at;
                sums[leaf] = fma(value_at<float>(a.weights + pair),
                                 value_at<float>(a.pairs + pair * a.columns + column), sums[leaf]);
            }
        }
#pragma unroll
        for (int step = 1; step < static_cast<int>(kMaxLeaves); step *= 2)
#pragma unroll
            for (int leaf = 0; leaf < static_cast<int>(kMaxLeaves); leaf += 2 * step)
                if (step < a.num_leaves && leaf < a.num_leaves) sums[leaf] = sums[leaf] + sums[leaf + step];
        a.out[static_cast<std::size_t>(row) * a.columns + column] = sums[0];
    }
};

}  // namespace karat::gpu

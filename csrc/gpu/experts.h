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
        const int row = item / a.columns, column = item % a.columns;
        const int of_pair = a.leaves.by_columns ? a.leaves.count : 1;  // leaves
        float sums[kMaxLeaves];
        int last = -1;
#pragma unroll
        for (int leaf = 0; leaf < static_cast<int>(kMaxLeaves); ++leaf) {
            sums[leaf] = 0;
            if (leaf >= a.leaves.count) continue;
            if (a.leaves.by_columns) last = -1;
            const int end = a.leaves.by_columns ? a.chosen.count : a.leaves.ends[leaf];
            const int which = a.leaves.by_columns ? leaf : 0;
            sums[leaf] = chain(row, end, last, [&](int, std::size_t pair) {
                return value_at<float>(a.pairs + (pair * of_pair + which) * a.columns + column);
            });
        }
#pragma unroll
        for (int step = 1; step < static_cast<int>(kMaxLeaves); step *= 2)
#pragma unroll
            for (int leaf = 0; leaf < static_cast<int>(kMaxLeaves); leaf += 2 * step)
                if (step < a.leaves.count && leaf < a.leaves.count) sums[leaf] = sums[leaf] + sums[leaf + step];
        float* const to = a.out + static_cast<std::size_t>(row) * a.columns + column;
        *to = sums[0];
        if (!a.biases) return;
        last = -1;
        *to = sums[0] + chain(row, a.chosen.count, last, [&](int expert, std::size_t) {
                  return value_at<float>(a.biases + static_cast<std::size_t>(expert) * a.columns + column);
              });
    }

private:
    // The chain of what f(expert, pair) gives for a row's experts after `last` and before `end`, in order of id.
    template <class F>
    KARAT_INLINE float chain(int row, int end, int& last, const F& f) const {
        const int count = a.chosen.per_row;
        const std::int32_t* const ids = a.chosen.ids + static_cast<std::size_t>(row) * count;
        float sum = 0;
        for (;;) {
            int at = -1;
            for (int i = 0; i < count; ++i) {
                const int id = ids[i] - a.chosen.first;
                if (id > last && id < end && (at < 0 || id < ids[at] - a.chosen.first)) at = i;
            }
            if (at < 0) return sum;
            last = ids[at] - a.chosen.first;
            const std::size_t pair = static_cast<std::size_t>(row) * count + at;
            sum = fma(value_at<float>(a.weights + pair), f(last, pair), sum);
        }
    }
};

}  // namespace karat::gpu

// Mixtures of experts: which experts a row goes to, and the sum of what they give (contract/kernels.h).
#pragma once

#include "gpu/panels.h"
#include "simd/exp.h"

namespace karat::gpu {

KARAT_INLINE float exp_of(float x) {
    f32x16 power[] = {set1(x)};
    exp(power);
    return power[0].v;
}

// A thread has a row. The chosen logits are kept in `weights` until they are powers.
struct RouteRow {
    const float* logits;  // [rows, experts]
    int experts, chosen;
    bool renormalised;
    std::int32_t* ids;  // [rows, chosen], as weights
    float* weights;

    // Whether a logit comes before another; a NaN comes after every number.
    static KARAT_INLINE bool comes_before(float a, float b) { return a > b || (a == a && b != b); }

    KARAT_INLINE void operator()(int row) const {
        const float* const of = logits + static_cast<std::size_t>(row) * experts;
        std::int32_t* const id_of = ids + static_cast<std::size_t>(row) * chosen;
        float* const largest = weights + static_cast<std::size_t>(row) * chosen;
        for (int id = 0, kept = 0; id < experts; ++id) {
            const float logit = of[id];
            if (kept == chosen && !comes_before(logit, largest[kept - 1])) continue;
            int at = kept < chosen ? kept++ : kept - 1;
            for (; at > 0 && comes_before(logit, largest[at - 1]); --at) {
                largest[at] = largest[at - 1];
                id_of[at] = id_of[at - 1];
            }
            largest[at] = logit;
            id_of[at] = id;
        }
        const float top = largest[0];
        for (int i = 0; i < chosen; ++i) largest[i] = exp_of(largest[i] - top);
        float total = 0;
        if (renormalised)
            for (int i = 0; i < chosen; ++i) total += largest[i];
        else
            for (int id = 0; id < experts; ++id) total += exp_of(of[id] - top);
        for (int i = 0; i < chosen; ++i) largest[i] = largest[i] / total;
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

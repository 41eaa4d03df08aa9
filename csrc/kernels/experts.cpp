// Mixtures of experts: which experts a row goes to, and the sum of what they give (kernels.h).
#include "kernels/kernels_isa.h"
#include "simd/exp.h"
#include "simd/simd.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// Whether a logit comes before another; a NaN comes after every number.
bool comes_before(float a, float b) { return a > b || (a == a && b != b); }

// x[i] = exp(x[i] - top)
void powers(float* x, float top, std::size_t n) {
    for (std::size_t i = 0; i < n; i += kLanes) {
        const int count = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
        f32x16 lanes[] = {load_first(x + i, count) - set1(top)};
        exp(lanes);
        store_first(x + i, lanes[0], count);
    }
}

// The largest `chosen` logits with their ids, in order; of equal ones the smaller id comes first.
void choose(const float* logits, std::size_t experts, std::size_t chosen, std::int32_t* ids, float* largest) {
    std::size_t kept = 0;
    for (std::size_t id = 0; id < experts; ++id) {
        if (kept == chosen && !comes_before(logits[id], largest[kept - 1])) continue;
        std::size_t at = kept < chosen ? kept++ : kept - 1;
        for (; at > 0 && comes_before(logits[id], largest[at - 1]); --at) {
            largest[at] = largest[at - 1];
            ids[at] = ids[at - 1];
        }
        largest[at] = logits[id];
        ids[at] = static_cast<std::int32_t>(id);
    }
}

}  // namespace

void route(const float* logits, std::size_t rows, std::size_t experts, std::size_t chosen, bool renormalised,
           std::int32_t* ids, float* weights, float* scratch) {
    for (std::size_t row = 0; row < rows; ++row, logits += experts, ids += chosen, weights += chosen) {
        choose(logits, experts, chosen, ids, weights);
        const float top = weights[0];
        powers(weights, top, chosen);
        const float* of = weights;
        if (!renormalised) {
            for (std::size_t id = 0; id < experts; ++id) scratch[id] = logits[id];
            powers(scratch, top, experts);
            of = scratch;
        }
        float total = 0;
        for (std::size_t i = 0; i < (renormalised ? chosen : experts); ++i) total += of[i];
        for (std::size_t i = 0; i < chosen; ++i) weights[i] = weights[i] / total;
    }
}

void sum_of_experts(const float* const* rows, const float* weights, const std::uint32_t* leaf_ends,
                    std::size_t num_leaves, std::size_t n, float* out) {
    for (std::size_t i = 0; i < n; i += kLanes) {
        const int count = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
        f32x16 sums[kMaxLeaves];
        std::size_t row = 0;
        for (std::size_t leaf = 0; leaf < num_leaves; ++leaf) {
            sums[leaf] = zero();
            for (; row < leaf_ends[leaf]; ++row)
                sums[leaf] = fma(set1(weights[row]), load_first(rows[row] + i, count), sums[leaf]);
        }
        for (std::size_t step = 1; step < num_leaves; step *= 2)
            for (std::size_t leaf = 0; leaf < num_leaves; leaf += 2 * step) sums[leaf] = sums[leaf] + sums[leaf + step];
        store_first(out + i, sums[0], count);
    }
}

}  // namespace karat::KARAT_ISA_NAMESPACE

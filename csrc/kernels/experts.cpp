// Mixtures of experts: which experts a row goes to, and the sum of what they give (kernels.h).
#include "kernels/kernels_isa.h"
#include "simd/routing.h"
#include "simd/simd.h"

namespace karat::KARAT_ISA_NAMESPACE {

void route(const float* logits, std::size_t rows, std::size_t experts, const Routing& how, std::int32_t* ids,
           float* weights, float* scratch) {
    for (std::size_t row = 0; row < rows; ++row, logits += experts, ids += how.chosen, weights += how.chosen)
        route_row(logits, experts, how, how.by_logit(), how.over_chosen(), ids, weights, scratch, scratch + experts,
                  scratch + 2 * experts);
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

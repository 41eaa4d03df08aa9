#include "plan/ops/all_reduce.h"

#include "plan/step.h"

namespace karat {
namespace {

constexpr std::size_t kPiece = 256;  // floats summed at a time: every level of the tree stays in the nearest cache

// Adds `n` floats at `at` of the slots of ranks first … first + count - 1 (a power of two), along the tree.
void tree_sum(const StepContext& s, std::uint32_t collective, int first, int count, std::size_t at, std::size_t n,
              float* out) {
    if (count == 2) return s.kernels.add(s.slot(first, collective) + at, s.slot(first + 1, collective) + at, out, n);
    float right[kPiece];
    tree_sum(s, collective, first, count / 2, at, n, out);
    tree_sum(s, collective, first + count / 2, count / 2, at, n, right);
    s.kernels.add(out, right, out, n);
}

}  // namespace

void AllReduceOp::run(StepContext& s, int thread) {
    if (!s.exchange(collective, thread)) return;
    const auto range = s.share(s.rows(out), thread);
    for (std::size_t row = range.first; row < range.last; ++row)
        for (std::size_t column = 0; column < width; column += kPiece) {
            const std::size_t at = row * width + column, n = width - column < kPiece ? width - column : kPiece;
            float* to = s.data(out) + at;
            tree_sum(s, collective, 0, s.num_ranks(), at, n, to);
            if (bias) s.kernels.add(to, bias->values.data() + column, to, n);
            if (residual) s.kernels.add(to, s.data(*residual) + at, to, n);
        }
}

}  // namespace karat

// Linear layers over packed matrices (kernels.h, LinearArgs): which kernel a step's number of tokens gets. All of them
// add the same numbers in the same order.
#include "linear.h"

namespace karat::KARAT_ISA_NAMESPACE {

std::size_t linear_scratch_floats() { return Scratch::kFloats; }

void linear(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch) {
    if (args.tokens == 1) return one_token(args, first, last);
    if constexpr (kFewTokens > 0)
        if (args.tokens <= kFewTokens && !args.weight->info().in_pairs) {
            const std::size_t wide = args.weight->num_wide(), end = wide < last ? wide : last;
            if (first < end) {
                few_tokens(args, first, end, scratch);
                first = end;
            }
        }
    many_tokens(args, first, last, scratch);
}

void linear_both(const LinearArgs& a, const LinearArgs& b, std::size_t first, std::size_t last, float* scratch) {
    if (a.tokens == 1) return one_token_of_both(a, b, first, last);
    if (a.weight->info().in_pairs) return many_tokens_of_both(a, b, first, last, scratch);
    linear(a, first, last, scratch);
    linear(b, first, last, scratch);
}

void sums_of_16(const float* x, float* out, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[i] = fold(load(x + 16 * i));
}

}  // namespace karat::KARAT_ISA_NAMESPACE

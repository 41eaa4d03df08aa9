// Linear layers over packed matrices (kernels.h, LinearArgs): which kernel a step's number of tokens gets. All of them
// add the same numbers in the same order.
#include "kernels/linear.h"

namespace karat::KARAT_ISA_NAMESPACE {

std::size_t linear_scratch_floats() {
    return LinearScratch::kFloats > NibbleScratch::kFloats ? LinearScratch::kFloats : NibbleScratch::kFloats;
}

namespace {

// Gives the wide ones of panels first … last - 1 to `few_tokens`, if there are at most `most` tokens. Returns the first
// panel that is left.
std::size_t few_tokens_of_wide([[maybe_unused]] const LinearArgs& args, std::size_t first,
                               [[maybe_unused]] std::size_t last, [[maybe_unused]] std::size_t most,
                               [[maybe_unused]] float* scratch) {
    if constexpr (kFewTokens > 0 || kFewByNibbles > 0) {
        const std::size_t wide = args.weight->num_wide(), end = wide < last ? wide : last;
        if (first < end && args.tokens <= most) {
            few_tokens(args, first, end, scratch);
            return end;
        }
    }
    return first;
}

// By nibbles, up to this many tokens are as fast one by one where `few_tokens` does not serve them: in panels that are
// not wide, and in all panels without AVX-512.
inline constexpr std::size_t kOneByOne = kFewByNibbles > 0 ? kFewByNibbles : 4;

void one_by_one(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch) {
    for (std::size_t panel = first; panel < last; ++panel)  // whose weights stay in the cache
        for (std::size_t token = 0; token < args.tokens; ++token) {
            LinearArgs one = args;
            one.x += token * args.x_stride;
            if (args.x_sums) one.x_sums += token * (args.weight->columns / 16);
            one.out += token * args.out_stride;
            if (args.residual) one.residual += token * args.out_stride;
            one.tokens = 1;
            one_token(one, panel, panel + 1, scratch);
        }
}

}  // namespace

void linear(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch) {
    if (args.tokens == 1) return one_token(args, first, last, scratch);
    if (const FormatInfo& info = args.weight->info(); !info.by_nibbles) {
        const std::size_t most = info.block_columns == 1 ? kTuning.few_float_tokens : kFewTokens;
        return many_tokens(args, few_tokens_of_wide(args, first, last, most, scratch), last, scratch);
    }
    if (args.tokens > kOneByOne) return many_tokens_by_nibbles(args, args, first, last, scratch);
    one_by_one(args, few_tokens_of_wide(args, first, last, kFewByNibbles, scratch), last, scratch);
}

void linear_both(const LinearArgs& a, const LinearArgs& b, std::size_t first, std::size_t last, float* scratch) {
    if (a.tokens == 1) return one_token_of_both(a, b, first, last, scratch);
    if (a.tokens > kOneByOne && a.weight->info().by_nibbles && a.weight->format == b.weight->format)
        return many_tokens_by_nibbles(a, b, first, last, scratch);
    linear(a, first, last, scratch);
    linear(b, first, last, scratch);
}

void sums_of_16(const float* x, float* out, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[i] = fold(load(x + 16 * i));
}

}  // namespace karat::KARAT_ISA_NAMESPACE

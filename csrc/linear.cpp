// Linear layers over packed matrices (kernels.h, LinearArgs): which kernel a step's number of tokens gets. All of them
// add the same numbers in the same order.
#include "linear.h"

namespace karat::KARAT_ISA_NAMESPACE {

std::size_t linear_scratch_floats() {
    return Scratch::kFloats > NibbleScratch::kFloats ? Scratch::kFloats : NibbleScratch::kFloats;
}

namespace {

// So many tokens are as well taken one by one, by nibbles.
#if defined(KARAT_AVX512)
inline constexpr std::size_t kOneByOne = 8;
#else
inline constexpr std::size_t kOneByOne = 4;
#endif

void linear_by_nibbles(const LinearArgs& a, const LinearArgs& b, std::size_t first, std::size_t last, float* scratch) {
    if (a.tokens > kOneByOne) return many_tokens_by_nibbles(a, b, first, last, scratch);
    const auto of_token = [](LinearArgs args, std::size_t token) {
        args.x += token * args.x_stride;
        if (args.x_sums) args.x_sums += token * (args.weight->columns / 16);
        args.out += token * args.out_stride;
        if (args.residual) args.residual += token * args.out_stride;
        args.tokens = 1;
        return args;
    };
    for (std::size_t panel = first; panel < last; panel += 2) {  // whose weights stay in the cache
        const std::size_t end = panel + 2 < last ? panel + 2 : last;
        for (std::size_t token = 0; token < a.tokens; ++token)
            &a == &b ? one_token(of_token(a, token), panel, end)
                     : one_token_of_both(of_token(a, token), of_token(b, token), panel, end);
    }
}

}  // namespace

void linear(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch) {
    if (args.tokens == 1) return one_token(args, first, last);
    if (args.weight->info().by_nibbles) return linear_by_nibbles(args, args, first, last, scratch);
    if constexpr (kFewTokens > 0)
        if (args.tokens <= kFewTokens) {
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
    if (a.weight->info().by_nibbles && a.weight->format == b.weight->format)
        return linear_by_nibbles(a, b, first, last, scratch);
    linear(a, first, last, scratch);
    linear(b, first, last, scratch);
}

void sums_of_16(const float* x, float* out, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[i] = fold(load(x + 16 * i));
}

}  // namespace karat::KARAT_ISA_NAMESPACE

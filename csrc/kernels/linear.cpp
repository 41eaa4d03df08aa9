// Linear layers of stored floats (kernels.h, LinearArgs): which kernel a step's number of tokens gets. All of them add
// the same numbers in the same order.
#include "kernels/linear.h"

namespace karat::KARAT_ISA_NAMESPACE {

void linear(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch) {
    if (args.tokens == 1) return one_token(args, first, last);
    if (args.tokens <= kTuning.few_float_tokens) {
        const std::size_t wide = args.weight->num_wide(), end = wide < last ? wide : last;
        if (first < end) {
            few_tokens(args, first, end);
            first = end;
        }
    }
    many_tokens(args, first, last, scratch);
}

void linear_both(const LinearArgs& a, const LinearArgs& b, std::size_t first, std::size_t last, float* scratch) {
    if (a.tokens == 1) return one_token_of_both(a, b, first, last);
    linear(a, first, last, scratch);
    linear(b, first, last, scratch);
}

}  // namespace karat::KARAT_ISA_NAMESPACE

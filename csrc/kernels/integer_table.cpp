// Linear layers of integers (kernels.h, IntegerKernels), and the table of one instruction set's. Compiled once for
// each.
#include "kernels/integer.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

void linear_of_integers(const LinearArgs& a, std::size_t first, std::size_t last, float* scratch) {
#if defined(KARAT_PASSES)
    constexpr std::size_t kDirect[] = {0, kDirectTokens<1>, kDirectTokens<2>, kDirectTokens<3>};  // by Activations
    constexpr std::size_t kOfDigits[] = {0, kRowsOfDigits<1>, kRowsOfDigits<2>, kRowsOfDigits<3>};
    const int width = static_cast<int>(a.activations);
    if (a.tokens <= kDirect[width] && a.digits_rows <= kOfDigits[width]) return few_tokens_of_integers(a, first, last);
#endif
    many_tokens_of_integers(a, first, last, scratch);
}

std::size_t row_bytes(Activations activations, std::size_t columns) {
    constexpr std::size_t kBlock[] = {0, DigitBlock<1>::kBytes, DigitBlock<2>::kBytes, DigitBlock<3>::kBytes};
    return columns / kDigitColumns * kBlock[static_cast<int>(activations)];
}

}  // namespace

const IntegerKernels integer_kernels = {
    .scratch_bytes = integer_scratch_bytes,
    .panels_at_once = 1,
    .row_bytes = row_bytes,
    .quantise = quantise,
    .quantise_row = quantise_row,
    .linear = linear_of_integers,
};

}  // namespace karat::KARAT_ISA_NAMESPACE

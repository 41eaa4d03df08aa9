// Codes as subnormal numbers: in a lane that holds nothing else, a code at bits `at` … is the float32 code * 2^(at -
// 149), and a multiply-add takes it as it is: a mask is all that a code needs before it is multiplied. Zen 4 multiplies
// subnormal numbers as fast as others (benchmarks/subnormal.cpp), and the build for it serves all makers but Intel,
// whose cores are known to need microcode, 150 cycles and more.
//
// x is scaled, by a power of two that depends on the column, so that all products of a sub-block are 2^-kPartPower of
// what they count. Every number that comes up is a multiple of the smallest subnormal number then, and none overflows,
// as long as what is not zero of x lies between the limits below. So sums are rounded where those of the contract are
// (kernels.h), and the scale of the sub-block takes the power away. That needs codes that are not negative, as they are
// where minima are.
#pragma once

#include "formats/formats.h"

#if defined(KARAT_AVX512) && !defined(KARAT_TWO_PORTS)
#define KARAT_SUBNORMALS
#endif

namespace karat::KARAT_ISA_NAMESPACE {

inline constexpr int kPartPower = 60;
inline constexpr float kPartScale = 0x1p60f;

#if defined(KARAT_SUBNORMALS)
// Formats for which that is so, but for those that are multiplied by nibbles.
template <class Fmt>
inline constexpr bool kAsSubnormals = [] {
    if constexpr (requires { Fmt::Codes::kWidth; }) return Fmt::kHasMinimum;
    return false;
}();

// The codes of columns 4 c … 4 c + 3 of sub-block s, in the four bytes of a word (others beside them), and the first of
// their bits in a byte.
template <class Fmt>
KARAT_INLINE i32x16 four_codes(const Block& b, int s, int c) {
    if constexpr (requires { Fmt::Codes::kBytesBias; }) return Fmt::Codes::bytes(b, s, c);
    else return b.word(Fmt::Codes::word_of(s, c));
}
template <class Fmt>
constexpr KARAT_INLINE int bit_of(int s, int c) {
    if constexpr (requires { Fmt::Codes::kBytesBias; }) return 0;
    else return Fmt::Codes::bit_of(s, c);
}

// As far as bit 23, the first of the exponent, each bit of a small float32 counts twice the one before. Words whose
// code lies further up are shifted.
inline constexpr int kSubnormalShift = 12;
template <class Fmt>
constexpr KARAT_INLINE bool is_shifted(int s, int c, int j) {
    return bit_of<Fmt>(s, c) + 8 * j + Fmt::Codes::kWidth > 24;
}
template <class Fmt>
constexpr KARAT_INLINE int subnormal_at(int s, int c, int j) {
    return bit_of<Fmt>(s, c) + 8 * j - (is_shifted<Fmt>(s, c, j) ? kSubnormalShift : 0);
}
template <class Fmt>
KARAT_INLINE f32x16 subnormal(const Block& b, int s, int c, int j) {
    i32x16 word = four_codes<Fmt>(b, s, c);
    if (is_shifted<Fmt>(s, c, j)) word = word >> kSubnormalShift;
    return as_float(word & iset1(((1 << Fmt::Codes::kWidth) - 1) << subnormal_at<Fmt>(s, c, j)));
}

// The power of two that scales each column of a block.
namespace {
constexpr float power_of_two(int n) { return n == 0 ? 1 : 2 * power_of_two(n - 1); }
template <class Fmt>
constexpr auto kPowers = [] {
    Floats<Fmt::kColumns> powers{};
    for (int k = 0; k < Fmt::kColumns; ++k)
        powers.at[k] = power_of_two(149 - kPartPower - subnormal_at<Fmt>(k / Fmt::kSub, k % Fmt::kSub / 4, k % 4));
    return powers;
}();
}  // namespace

// The limits of what is not zero. Below, the last bit of x times a code is the smallest subnormal number; above, x
// times the largest power would overflow.
inline constexpr int kLowestPower = -149 + 23 + kPartPower, kHighestPower = 128 - (149 - kPartPower);
static_assert(kLowestPower == -66 && kHighestPower == 39);

// x [columns] to `scaled`; false if some of it lies beyond the limits.
template <class Fmt>
KARAT_INLINE bool scale_x(const float* x, std::size_t columns, float* scaled) {
    constexpr std::int32_t lowest = (127 + kLowestPower) << 23, beyond = (127 + kHighestPower) << 23;
    bool all = true;
    for (std::size_t k = 0; k < columns; k += kLanes) {
        const f32x16 value = load(x + k);
        store(scaled + k, value * load(kPowers<Fmt>.at + k % Fmt::kColumns));
        all &= zero_or_between(as_int(value) & iset1(0x7fffffff), lowest, beyond);
    }
    return all;
}
#endif

}  // namespace karat::KARAT_ISA_NAMESPACE

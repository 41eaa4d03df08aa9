// How rows of x become integers (activations.h), whatever layout they are written in.
#pragma once

#include "contract/activations.h"
#include "simd/integers.h"

namespace karat::KARAT_ISA_NAMESPACE {

inline constexpr int kMinExponent = -102, kMaxExponent = 105;  // of powers

template <int kDigits>
inline constexpr std::int32_t kLimit = kDigits == 1   ? 127
                                       : kDigits == 2 ? 32639
                                                      : 8355710;

// Whether a power is the block's maximum / the limit, not a power of two.
template <int kDigits>
inline constexpr bool kByMaximum = kDigits != 2;

// Blocks are quantised eight at a time, because what is known of each is made for all of them at once: in such a
// vector lanes 2 b and 2 b + 1 belong to block b, or to the halves of it, of 16 columns.
inline constexpr int kBlocks = kLanes / 2;
using Halves = i32x16[kLanes];

KARAT_INLINE i32x16 sums_of(const Halves& halves) {
    return across(halves, [](i32x16 a, i32x16 b) __attribute__((always_inline)) { return a + b; });
}
KARAT_INLINE i32x16 two_to_the(i32x16 exponent) { return (exponent + iset1(127)) << 23; }  // its bits
KARAT_INLINE i32x16 if_negative(i32x16 a) { return shift_signed(a, 31); }  // all bits of a lane, or none
KARAT_INLINE i32x16 chosen(i32x16 which, i32x16 yes, i32x16 no) { return no ^ ((yes ^ no) & which); }

// Of eight blocks: powers, what q is made with, and whether x fits. q is x * factor, or x / factor if kByMaximum.
template <int kDigits>
struct Powers {
    float power[kLanes], factor[kLanes];
    std::int32_t fits[kLanes];  // all bits, or none

    // From the bits of their largest magnitudes. Bits of floats that are not negative are in the order of the floats,
    // those of infinity and NaN above all others.
    KARAT_INLINE explicit Powers(i32x16 bits) {
        const i32x16 least = two_to_the(iset1(kMinExponent)), most = two_to_the(iset1(kMaxExponent));
        const i32x16 is_finite = if_negative(bits - iset1(0x7f800000));
        const f32x16 largest = as_float(bits & is_finite);
        i32x16 of, by;
        if constexpr (kByMaximum<kDigits>) {
            of = by = larger(as_int(largest / set1(kLimit<kDigits>)), least);
        } else {  // the smallest power at which the largest, rounded, is at most the limit
            constexpr int kBits = 15;
            const i32x16 mantissa = (bits & iset1(0x7fffff)) | iset1((126 + kBits) << 23);
            const i32x16 is_above = if_negative(iset1(kLimit<2>) - to_nearest(as_float(mantissa)));
            const i32x16 exponent = larger((bits >> 23) - iset1(126 + kBits) - is_above, iset1(kMinExponent));
            of = two_to_the(exponent);
            by = two_to_the(iset1(0) - exponent);
        }
        const f32x16 scaled = kByMaximum<kDigits> ? largest / as_float(by) : largest * as_float(by);
        const i32x16 has_any = if_negative(as_int(set1(0.5f)) - as_int(scaled)), one = as_int(set1(1));
        const i32x16 both = is_finite & if_negative(of - most - iset1(1));
        istore(fits, both);
        istore(factor, by);
        istore(power, chosen(both, chosen(has_any, of, one), iset1(0x7fc00000)));  // NaN; 1 where all integers are 0
    }
};

// Eight blocks of x: their integers, in vectors of 16 columns, and sums over these.
template <int kDigits>
struct RoundedBlocks {
    Halves q;
    float power[kLanes];  // of block b: [2 b]
    std::int32_t sums[kLanes];

    KARAT_INLINE explicit RoundedBlocks(const float* x) {
        for (int i = 0; i < kLanes; ++i) q[i] = as_int(load(x + i * kLanes)) & iset1(0x7fffffff);
        for (int i = 0; i < kLanes; i += 2) q[i] = q[i + 1] = larger(q[i], q[i + 1]);
        const Powers<kDigits> powers(
            across(q, [](i32x16 a, i32x16 b) __attribute__((always_inline)) { return larger(a, b); }));
        for (int i = 0; i < kLanes; ++i) {
            const f32x16 value = as_float(as_int(load(x + i * kLanes)) & iset1(powers.fits[i]));
            const f32x16 factor = broadcast(powers.factor + i);
            q[i] = to_nearest(kByMaximum<kDigits> ? value / factor : value * factor);
        }
        std::memcpy(power, powers.power, sizeof power);
        istore(sums, sums_of(q));
    }
    // power * the sum of q.
    KARAT_INLINE float value(std::size_t block) const {
        return static_cast<float>(sums[2 * block] + sums[2 * block + 1]) * power[2 * block];
    }
};

// Calls f(row, column, blocks, count) for the strips of rows first … last - 1 of x: eight blocks from `column` on, of
// which `count` are of the row.
template <class F>
KARAT_INLINE void for_strips(const float* x, std::size_t columns, std::size_t first, std::size_t last, const F& f) {
    static_assert(kStripColumns == kBlocks * kDigitColumns);
    for (std::size_t row = first; row < last; ++row)
        for (std::size_t k = 0; k < columns; k += kStripColumns) {
            const float* const from = x + row * columns + k;
            if (const std::size_t left = columns - k; left < kStripColumns) {
                float strip[kStripColumns] = {};
                std::memcpy(strip, from, left * sizeof *strip);
                f(row, k, strip, left / kDigitColumns);
            } else {
                f(row, k, from, std::size_t{kBlocks});
            }
        }
}

}  // namespace karat::KARAT_ISA_NAMESPACE

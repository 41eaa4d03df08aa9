// How fast a state decays (`decay` in contract/kernels.h).
#pragma once

#include "simd/exp.h"

namespace karat::KARAT_ISA_NAMESPACE {

// log(1 + x) for 0 <= x <= 1, within 2 units in the last place: 2 artanh(s) with s = x / (2 + x) <= 1/3, of whose
// series the terms to s^15 are summed. The first that is left out is below 2^-29 of the sum.
KARAT_INLINE f32x16 log_of_one_plus(f32x16 x) {
    const f32x16 s = x / (set1(2.0f) + x), square = s * s, twice = s + s;
    f32x16 rest = set1(0x1.111112p-4f);                                          // 1/15
    constexpr float terms[] = {0x1.3b13b2p-4f, 0x1.745d18p-4f, 0x1.c71c72p-4f,   // 1/13, 1/11, 1/9
                               0x1.24924ap-3f, 0x1.99999ap-3f, 0x1.555556p-2f};  // 1/7, 1/5, 1/3
    for (const float term : terms) rest = fma(rest, square, set1(term));
    return fma(twice * square, rest, twice);
}

// exp(rate * softplus(y)); with `of_log` of -exp(rate).
KARAT_INLINE f32x16 decay_of(f32x16 y, f32x16 rate, bool of_log) {
    f32x16 rates[] = {rate};
    if (of_log) {
        exp(rates);
        rates[0] = zero() - rates[0];
    }
    f32x16 power[] = {select(y < zero(), y, zero() - y)};
    exp_of_no_positive(power);
    f32x16 result[] = {rates[0] * (larger(zero(), y) + log_of_one_plus(power[0]))};
    exp(result);
    return result[0];
}

}  // namespace karat::KARAT_ISA_NAMESPACE

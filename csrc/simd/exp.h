// exp, the same bits everywhere: a library's own differs from version to version.
#pragma once

#if defined(KARAT_ONE_LANE)
#include "simd/lane.h"
#else
#include "simd/tuning.h"
#endif

namespace karat::KARAT_ISA_NAMESPACE {

// All functions take N vectors step by step: one vector's steps wait for each other, and a core does not look far
// enough ahead to find the next vector's. kTuning.exp_vectors is the N that was fastest.

// The part that both functions share. x = n ln 2 + r with |r| <= ln 2 / 2: `value` is the polynomial in r (the Taylor
// terms to r^7, by Horner), `shifted` is 0x4b400000 + n.
template <int N>
struct PolynomialOfExp {
    f32x16 value[N];
    i32x16 shifted[N];

    KARAT_INLINE explicit PolynomialOfExp(const f32x16 (&x)[N]) {
        const f32x16 shifter = set1(0x1.8p23f);
        f32x16 n[N], r[N];
        for (int i = 0; i < N; ++i)
            n[i] = fma(x[i], set1(0x1.715476p+0f), shifter);  // x / ln 2, rounded: in the low bits
        for (int i = 0; i < N; ++i) shifted[i] = as_int(n[i]);
        for (int i = 0; i < N; ++i) n[i] = n[i] - shifter;
        for (int i = 0; i < N; ++i)
            r[i] = fma(n[i], set1(-0x1.62e4p-1f), x[i]);  // ln 2 in two parts: n times the first is exact
        for (int i = 0; i < N; ++i) r[i] = fma(n[i], set1(-0x1.7f7d1cp-20f), r[i]);
        for (int i = 0; i < N; ++i) value[i] = set1(0x1.a01a02p-13f);
        constexpr float terms[] = {0x1.6c16c2p-10f, 0x1.111112p-7f, 0x1.555556p-5f, 0x1.555556p-3f, 0.5f, 1.0f, 1.0f};
        for (const float term : terms)
            for (int i = 0; i < N; ++i) value[i] = fma(value[i], r[i], set1(term));
    }
};

// e^x to within 2 units in the last place; exp(0) is 1, below -87.33 it is 0, above 88.72 infinite, NaN stays NaN.
template <int N>
KARAT_INLINE void exp(f32x16 (&x)[N]) {
    const f32x16 lowest = set1(-87.33f), highest = set1(88.72f);
    f32x16 inside[N];
    for (int i = 0; i < N; ++i) inside[i] = select(x[i] < lowest, lowest, select(highest < x[i], highest, x[i]));
    const PolynomialOfExp<N> p(inside);
    for (int i = 0; i < N; ++i) {  // 2^128 takes two factors
        const i32x16 exponent = p.shifted[i] - iset1(0x4b400000), half = shift_signed(exponent, 1);
        const f32x16 low = as_float((half + iset1(127)) << 23), high = as_float((exponent - half + iset1(127)) << 23);
        const f32x16 result = p.value[i] * low * high;
        x[i] = select(x[i] < lowest, zero(), select(highest < x[i], set1(float_of(0x7f800000)), result));
    }
}

// The same bits for x <= 0 (and NaN), in 19 operations instead of 30; AVX-512 takes 17. An operation that underflows
// takes a core many times as long, even where its result is not used. So values whose exponential is 0 are clamped
// first; AVX-512 does not compute their last product instead.
template <int N>
KARAT_INLINE void exp_of_no_positive(f32x16 (&x)[N]) {
    const f32x16 lowest = set1(-87.33f);
    mask16 is_zero[N];
    for (int i = 0; i < N; ++i) is_zero[i] = x[i] < lowest;
#if !defined(KARAT_AVX512)
    for (int i = 0; i < N; ++i) x[i] = larger(lowest, x[i]);
#endif
    const PolynomialOfExp<N> p(x);
    for (int i = 0; i < N; ++i) x[i] = times_power_of_two(p.value[i], p.shifted[i], is_zero[i]);
}

}  // namespace karat::KARAT_ISA_NAMESPACE

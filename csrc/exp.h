// exp, the same bits everywhere: a library's own differs from version to version.
#pragma once

#include "simd.h"

namespace karat::KARAT_ISA_NAMESPACE {

// What both functions below share: x = n ln 2 + r with |r| <= ln 2 / 2; the polynomial in r (the Taylor terms to r^7, by
// Horner), and 0x4b400000 + n.
struct PolynomialOfExp {
    f32x16 value;
    i32x16 shifted;
};
KARAT_INLINE PolynomialOfExp polynomial_of_exp(f32x16 x) {
    const f32x16 shifter = set1(0x1.8p23f);
    const f32x16 shifted = fma(x, set1(0x1.715476p+0f), shifter);  // x / ln 2, rounded to an integer in the low bits
    const f32x16 n = shifted - shifter;
    f32x16 r = fma(n, set1(-0x1.62e4p-1f), x);  // ln 2 in two parts: n times the first is exact
    r = fma(n, set1(-0x1.7f7d1cp-20f), r);
    f32x16 p = set1(0x1.a01a02p-13f);
    p = fma(p, r, set1(0x1.6c16c2p-10f));
    p = fma(p, r, set1(0x1.111112p-7f));
    p = fma(p, r, set1(0x1.555556p-5f));
    p = fma(p, r, set1(0x1.555556p-3f));
    p = fma(p, r, set1(0.5f));
    p = fma(p, r, set1(1.0f));
    p = fma(p, r, set1(1.0f));
    return {p, as_int(shifted)};
}

// e^x to within 2 units in the last place; exp(0) is 1, below -87.33 it is 0, above 88.72 infinite, NaN stays NaN.
KARAT_INLINE f32x16 exp(f32x16 x) {
    const f32x16 lowest = set1(-87.33f), highest = set1(88.72f);
    const PolynomialOfExp p = polynomial_of_exp(select(x < lowest, lowest, select(highest < x, highest, x)));
    const i32x16 exponent = p.shifted - iset1(0x4b400000), half = shift_signed(exponent, 1);  // 2^128 takes two factors
    const f32x16 low = as_float((half + iset1(127)) << 23), high = as_float((exponent - half + iset1(127)) << 23);
    const f32x16 result = p.value * low * high;
    return select(x < lowest, zero(), select(highest < x, set1(float_of(0x7f800000)), result));
}

// The same bits for x <= 0 (and NaN), with less to watch for.
KARAT_INLINE f32x16 exp_of_no_positive(f32x16 x) {
    const f32x16 lowest = set1(-87.33f);
    const mask16 is_zero = x < lowest;
    const PolynomialOfExp p = polynomial_of_exp(select(is_zero, lowest, x));
    return select(is_zero, zero(), p.value * as_float((p.shifted << 23) + iset1(127 << 23)));
}

}  // namespace karat::KARAT_ISA_NAMESPACE

// tanh, the same bits everywhere, and what it caps.
#pragma once

#include "simd/exp.h"

namespace karat::KARAT_ISA_NAMESPACE {

// tanh(y) to within 2 units in the last place; NaN stays NaN.
KARAT_INLINE f32x16 tanh(f32x16 y) {
    const i32x16 sign = as_int(y) & iset1(static_cast<std::int32_t>(0x80000000));
    const f32x16 size = as_float(as_int(y) ^ sign), square = y * y;
    f32x16 rest = set1(-0x1.75e266p-8f);  // (tanh(y) / y - 1) / y², fitted on |y| < 0.625: 0.07 of 2^-24 off
    constexpr float terms[] = {0x1.5226c2p-6f, -0x1.b83c6p-5f, 0x1.110728p-3f, -0x1.555532p-2f};
    for (const float term : terms) rest = fma(rest, square, set1(term));
    f32x16 power[] = {size + size};
    exp(power);
    const f32x16 large = set1(1.0f) - set1(2.0f) / (power[0] + set1(1.0f));
    return select(size < set1(0.625f), fma(y * square, rest, y), as_float(as_int(large) | sign));
}

// cap * tanh(x / cap)
KARAT_INLINE f32x16 capped(f32x16 x, f32x16 cap) { return cap * tanh(x / cap); }

}  // namespace karat::KARAT_ISA_NAMESPACE

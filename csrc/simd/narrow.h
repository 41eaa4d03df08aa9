// float32 rounded to the 16-bit types of a KV cache, to nearest even.
#pragma once

#if defined(KARAT_ONE_LANE)
#include "simd/lane.h"
#else
#include "simd/simd.h"
#endif

namespace karat::KARAT_ISA_NAMESPACE {

// Infinite beyond the largest float16.
KARAT_INLINE std::uint16_t f16_of(float value) {
    const std::uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00);
    if (magnitude >= 0x47800000) return static_cast<std::uint16_t>(sign | 0x7c00);
    if (magnitude < 0x38800000) {  // a denormal half: adding 0.5 leaves its bits at the end of the mantissa
        const std::uint32_t shifted = bits_of(float_of(magnitude) + 0.5f);
        return static_cast<std::uint16_t>(sign | (shifted - 0x3f000000));
    }
    const std::uint32_t rounded = magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1);
    return static_cast<std::uint16_t>(sign | rounded >> 13);
}

KARAT_INLINE std::uint16_t bf16_of(float value) {
    const std::uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace karat::KARAT_ISA_NAMESPACE

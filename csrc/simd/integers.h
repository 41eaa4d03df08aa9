// Integer operations on all lanes that only rows of integers (kernels/integer_rows.cpp) and codes need.
#pragma once

#include "simd/simd.h"

namespace karat::KARAT_ISA_NAMESPACE {

#if defined(KARAT_AVX512)
KARAT_INLINE i32x16 larger(i32x16 a, i32x16 b) { return KARAT_ALL(max_epi32); }
// To the nearest integers, of even ones in ties.
KARAT_INLINE i32x16 to_nearest(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
// The lowest byte of each lane.
KARAT_INLINE void store_low_bytes(void* p, i32x16 a) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
#elif defined(KARAT_AVX2)
KARAT_INLINE i32x16 larger(i32x16 a, i32x16 b) { return KARAT_ALL(max_epi32); }
KARAT_INLINE i32x16 to_nearest(f32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
KARAT_INLINE void store_low_bytes(void* p, i32x16 a) {
    const __m256i low = _mm256_set1_epi32(255);
    const __m256i halves = _mm256_packus_epi32(_mm256_and_si256(a.lo, low), _mm256_and_si256(a.hi, low));
    const __m256i in_order = _mm256_permute4x64_epi64(halves, 0xd8);
    _mm_storeu_si128(static_cast<__m128i*>(p),
                     _mm_packus_epi16(_mm256_castsi256_si128(in_order), _mm256_extracti128_si256(in_order, 1)));
}
#elif defined(KARAT_NEON)
KARAT_INLINE i32x16 larger(i32x16 a, i32x16 b) {
    for (std::size_t i = 0; i < kRegisters; ++i) a.v[i] = vmaxq_s32(a.v[i], b.v[i]);
    return a;
}
KARAT_INLINE i32x16 to_nearest(f32x16 a) {
    i32x16 r;
    for (std::size_t i = 0; i < kRegisters; ++i) r.v[i] = vcvtnq_s32_f32(a.v[i]);
    return r;
}
KARAT_INLINE void store_low_bytes(void* p, i32x16 a) {
    const int16x8_t low = vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]));
    vst1q_s8(static_cast<std::int8_t*>(p), vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
#else
// a - b fits 32 bits.
KARAT_INLINE i32x16 larger(i32x16 a, i32x16 b) { return a - ((a - b) & shift_signed(a - b, 31)); }
// |a| < 2^23.
KARAT_INLINE i32x16 to_nearest(f32x16 a) {
    float values[kLanes];
    store(values, a);
    std::int32_t nearest[kLanes];
    for (int i = 0; i < kLanes; ++i) {
        const auto magnitude = static_cast<std::int32_t>((__builtin_fabsf(values[i]) + 0x1p23f) - 0x1p23f);
        nearest[i] = values[i] < 0 ? -magnitude : magnitude;
    }
    return iload(nearest);
}
KARAT_INLINE void store_low_bytes(void* p, i32x16 a) {
    std::uint32_t lanes[kLanes];
    std::memcpy(lanes, &a, sizeof lanes);
    std::uint8_t bytes[kLanes];
    for (int i = 0; i < kLanes; ++i) bytes[i] = static_cast<std::uint8_t>(lanes[i]);
    std::memcpy(p, bytes, sizeof bytes);
}
#endif

// The lowest byte of each lane, as a signed number.
KARAT_INLINE i32x16 low_digit(i32x16 a) { return shift_signed(a << 24, 24); }

// Lane i is f of all lanes of of[i], in any order.
#if defined(KARAT_AVX512) || defined(KARAT_AVX2)
// f of two halves of a beside f of two halves of b: those of b go to the lanes whose number has bit kBit.
template <int kBit, class F>
KARAT_INLINE i32x16 joined(i32x16 a, i32x16 b, const F& f) {
    if constexpr (kBit == 1) return f(KARAT_ALL(unpacklo_epi32), KARAT_ALL(unpackhi_epi32));
    if constexpr (kBit == 2) return f(KARAT_ALL(unpacklo_epi64), KARAT_ALL(unpackhi_epi64));
#if defined(KARAT_AVX512)
    const auto low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    if constexpr (kBit == 4)
        return f({_mm512_permutex2var_epi64(a.v, low, b.v)}, {_mm512_permutex2var_epi64(a.v, high, b.v)});
    return f({_mm512_shuffle_i64x2(a.v, b.v, 0x44)}, {_mm512_shuffle_i64x2(a.v, b.v, 0xee)});
#else
    if constexpr (kBit == 4)
        return f({_mm256_permute2x128_si256(a.lo, b.lo, 0x20), _mm256_permute2x128_si256(a.hi, b.hi, 0x20)},
                 {_mm256_permute2x128_si256(a.lo, b.lo, 0x31), _mm256_permute2x128_si256(a.hi, b.hi, 0x31)});
    return f({a.lo, b.lo}, {a.hi, b.hi});
#endif
}
template <class F>
KARAT_INLINE i32x16 across(const i32x16 (&of)[kLanes], const F& f) {
    i32x16 some[kLanes / 2];
    for (int i = 0; i < 8; ++i) some[i] = joined<8>(of[i], of[i + 8], f);
    for (int i = 0; i < 4; ++i) some[i] = joined<4>(some[i], some[i + 4], f);
    for (int i = 0; i < 4; i += 2) some[i] = joined<1>(some[i], some[i + 1], f);
    return joined<2>(some[0], some[2], f);
}
#else
template <class F>
KARAT_INLINE i32x16 across(const i32x16 (&of)[kLanes], const F& f) {
    std::int32_t lanes[kLanes][kLanes], column[kLanes];
    std::memcpy(lanes, &of, sizeof lanes);
    i32x16 all;
    for (int k = 0; k < kLanes; ++k) {
        for (int i = 0; i < kLanes; ++i) column[i] = lanes[i][k];
        all = k == 0 ? iload(column) : f(all, iload(column));
    }
    return all;
}
#endif

// Bytes looked up by the numbers 0 … 15 in the bytes of `index`.
template <const std::uint8_t (&kBytes)[16]>
KARAT_INLINE i32x16 byte_table() {
    std::uint8_t table[4 * kLanes];
    for (int i = 0; i < 4; ++i) std::memcpy(table + 16 * i, kBytes, sizeof kBytes);
    return iload(table);
}
#if defined(KARAT_AVX512) || defined(KARAT_AVX2)
KARAT_INLINE i32x16 bytes_of_table(i32x16 a, i32x16 b) { return KARAT_ALL(shuffle_epi8); }
#elif defined(KARAT_NEON)
KARAT_INLINE i32x16 bytes_of_table(i32x16 table, i32x16 index) {
    for (std::size_t i = 0; i < kRegisters; ++i)
        index.v[i] =
            vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(table.v[i]), vreinterpretq_u8_s32(index.v[i])));
    return index;
}
#else
KARAT_INLINE i32x16 bytes_of_table(i32x16 table, i32x16 index) {
    std::uint8_t bytes[16], at[4 * kLanes];
    std::memcpy(bytes, &table, sizeof bytes);
    std::memcpy(at, &index, sizeof at);
    for (std::uint8_t& byte : at) byte = bytes[byte];
    return iload(at);
}
#endif

}  // namespace karat::KARAT_ISA_NAMESPACE

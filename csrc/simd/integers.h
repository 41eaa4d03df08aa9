// Integer operations on all lanes that only rows of integers (kernels/integer_rows.cpp) and codes need.
#pragma once

#include "simd/simd.h"

namespace karat::KARAT_ISA_NAMESPACE {

#if defined(KARAT_AVX512)
// The largest lane of both, signed.
KARAT_INLINE std::int32_t largest_lane(i32x16 a, i32x16 b) {
    return _mm512_reduce_max_epi32(_mm512_max_epi32(a.v, b.v));
}
KARAT_INLINE std::int32_t sum_of_lanes(i32x16 a) { return _mm512_reduce_add_epi32(a.v); }
// To the nearest integers, of even ones in ties.
KARAT_INLINE i32x16 to_nearest(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
// The lowest byte of each lane.
KARAT_INLINE void store_low_bytes(void* p, i32x16 a) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
#elif defined(KARAT_AVX2)
KARAT_INLINE std::int32_t largest_lane(i32x16 a, i32x16 b) {
    const __m256i eight = _mm256_max_epi32(_mm256_max_epi32(a.lo, a.hi), _mm256_max_epi32(b.lo, b.hi));
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
KARAT_INLINE std::int32_t sum_of_lanes(i32x16 a) {
    const __m256i eight = _mm256_add_epi32(a.lo, a.hi);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
KARAT_INLINE i32x16 to_nearest(f32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
KARAT_INLINE void store_low_bytes(void* p, i32x16 a) {
    const __m256i low = _mm256_set1_epi32(255);
    const __m256i halves = _mm256_packus_epi32(_mm256_and_si256(a.lo, low), _mm256_and_si256(a.hi, low));
    const __m256i in_order = _mm256_permute4x64_epi64(halves, 0xd8);
    _mm_storeu_si128(static_cast<__m128i*>(p),
                     _mm_packus_epi16(_mm256_castsi256_si128(in_order), _mm256_extracti128_si256(in_order, 1)));
}
#else
KARAT_INLINE std::int32_t largest_lane(i32x16 a, i32x16 b) {
    std::int32_t lanes[2 * kLanes];
    std::memcpy(lanes, &a, sizeof a);
    std::memcpy(lanes + kLanes, &b, sizeof b);
    std::int32_t largest = lanes[0];
    for (const std::int32_t lane : lanes) largest = largest < lane ? lane : largest;
    return largest;
}
KARAT_INLINE std::int32_t sum_of_lanes(i32x16 a) {
    std::int32_t lanes[kLanes], sum = 0;
    std::memcpy(lanes, &a, sizeof lanes);
    for (const std::int32_t lane : lanes) sum += lane;
    return sum;
}
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

// Bytes looked up by the numbers 0 … 15 in the bytes of `index`.
#if defined(KARAT_AVX512)
KARAT_INLINE i32x16 byte_table(const std::uint8_t (&bytes)[16]) {
    return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)))};
}
KARAT_INLINE i32x16 bytes_of_table(i32x16 table, i32x16 index) { return {_mm512_shuffle_epi8(table.v, index.v)}; }
#elif defined(KARAT_AVX2)
KARAT_INLINE i32x16 byte_table(const std::uint8_t (&bytes)[16]) {
    const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    return {both, both};
}
KARAT_INLINE i32x16 bytes_of_table(i32x16 table, i32x16 index) {
    return {_mm256_shuffle_epi8(table.lo, index.lo), _mm256_shuffle_epi8(table.lo, index.hi)};
}
#else
KARAT_INLINE i32x16 byte_table(const std::uint8_t (&bytes)[16]) {
    i32x16 table;
    for (int i = 0; i < 4; ++i) std::memcpy(reinterpret_cast<std::uint8_t*>(&table) + 16 * i, bytes, sizeof bytes);
    return table;
}
KARAT_INLINE i32x16 bytes_of_table(i32x16 table, i32x16 index) {
    std::uint8_t bytes[16], at[4 * kLanes];
    std::memcpy(bytes, &table, sizeof bytes);
    std::memcpy(at, &index, sizeof at);
    for (std::uint8_t& byte : at) byte = bytes[byte];
    std::memcpy(&index, at, sizeof at);
    return index;
}
#endif

}  // namespace karat::KARAT_ISA_NAMESPACE

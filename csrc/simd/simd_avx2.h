// The lanes of simd.h, which alone includes this file, for AVX2: two registers.
#pragma once

namespace karat::KARAT_ISA_NAMESPACE {

struct f32x16 { __m256 lo, hi; };
struct i32x16 { __m256i lo, hi; };
struct mask16 { __m256 lo, hi; };

#define KARAT_BOTH(f, ...) f(a.lo __VA_OPT__(, ) __VA_ARGS__), f(a.hi __VA_OPT__(, ) __VA_ARGS__)
KARAT_INLINE f32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
KARAT_INLINE f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
KARAT_INLINE void store(float* p, f32x16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
KARAT_INLINE f32x16 load_f16(const void* p) {
    const auto* q = static_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
KARAT_INLINE f32x16 load_bf16(const void* p) {
    const auto* q = static_cast<const __m128i*>(p);
    const __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(q)), hi = _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}
KARAT_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
KARAT_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
KARAT_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
KARAT_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
KARAT_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
KARAT_INLINE i32x16 iset1(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
KARAT_INLINE i32x16 iload(const void* p) {
    const auto* q = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
KARAT_INLINE i32x16 iload_bytes(const void* p) {
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))};
}
KARAT_INLINE void istore(void* p, i32x16 a) {
    auto* q = static_cast<__m256i*>(p);
    _mm256_storeu_si256(q, a.lo);
    _mm256_storeu_si256(q + 1, a.hi);
}
KARAT_INLINE i32x16 operator&(i32x16 a, i32x16 b) {
    return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
KARAT_INLINE i32x16 operator|(i32x16 a, i32x16 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
KARAT_INLINE i32x16 operator^(i32x16 a, i32x16 b) {
    return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
KARAT_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
KARAT_INLINE i32x16 operator-(i32x16 a, i32x16 b) {
    return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
KARAT_INLINE i32x16 operator<<(i32x16 a, int n) { return {KARAT_BOTH(_mm256_slli_epi32, n)}; }
KARAT_INLINE i32x16 operator>>(i32x16 a, int n) { return {KARAT_BOTH(_mm256_srli_epi32, n)}; }

KARAT_INLINE i32x16 shift_signed(i32x16 a, int n) { return {KARAT_BOTH(_mm256_srai_epi32, n)}; }
KARAT_INLINE f32x16 to_float(i32x16 a) { return {KARAT_BOTH(_mm256_cvtepi32_ps)}; }
KARAT_INLINE i32x16 as_int(f32x16 a) { return {KARAT_BOTH(_mm256_castps_si256)}; }
KARAT_INLINE f32x16 as_float(i32x16 a) { return {KARAT_BOTH(_mm256_castsi256_ps)}; }
KARAT_INLINE mask16 operator<(f32x16 a, f32x16 b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
KARAT_INLINE f32x16 larger(f32x16 a, f32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
KARAT_INLINE f32x16 select(mask16 m, f32x16 yes, f32x16 no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
#undef KARAT_BOTH

KARAT_INLINE f32x16 f16_of_low_halves(i32x16 a) {
    const i32x16 low = a & iset1(0xffff);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low.lo, low.hi), 0xd8);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(packed)), _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1))};
}

}  // namespace karat::KARAT_ISA_NAMESPACE

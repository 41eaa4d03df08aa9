// The lanes of simd.h, which alone includes this file, for AVX-512: one register.
#pragma once

namespace karat::KARAT_ISA_NAMESPACE {

struct f32x16 { __m512 v; };
struct i32x16 { __m512i v; };
struct mask16 { __mmask16 v; };

KARAT_INLINE f32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
KARAT_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
KARAT_INLINE f32x16
broadcast(const float* p) {  // as an integer: on Zen 4 a load alone, where a float's also takes a shuffle
    std::int32_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return {_mm512_castsi512_ps(_mm512_set1_epi32(bits))};
}
KARAT_INLINE void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
KARAT_INLINE f32x16 load_f16(const void* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
KARAT_INLINE f32x16 load_bf16(const void* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
KARAT_INLINE f32x16 f16_of_low_halves(i32x16 a) { return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(a.v))}; }
KARAT_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
KARAT_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
KARAT_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
KARAT_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
KARAT_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
KARAT_INLINE i32x16 iset1(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
KARAT_INLINE i32x16 iload(const void* p) { return {_mm512_loadu_si512(p)}; }
KARAT_INLINE i32x16 iload_bytes(const void* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
KARAT_INLINE void istore(void* p, i32x16 a) { _mm512_storeu_si512(p, a.v); }
KARAT_INLINE i32x16 operator&(i32x16 a, i32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
KARAT_INLINE i32x16 operator|(i32x16 a, i32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
KARAT_INLINE i32x16 operator^(i32x16 a, i32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
KARAT_INLINE i32x16 operator+(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
KARAT_INLINE i32x16 operator-(i32x16 a, i32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
// A shift by a number in a register would take ports of the multiply-add (Intel: both, Zen 4: those alone), by numbers
// of each lane it does not.
KARAT_INLINE i32x16 operator<<(i32x16 a, int n) {
    return {__builtin_constant_p(n) ? _mm512_slli_epi32(a.v, static_cast<unsigned>(n))
                                    : _mm512_sllv_epi32(a.v, _mm512_set1_epi32(n))};
}
KARAT_INLINE i32x16 operator>>(i32x16 a, int n) {
    return {__builtin_constant_p(n) ? _mm512_srli_epi32(a.v, static_cast<unsigned>(n))
                                    : _mm512_srlv_epi32(a.v, _mm512_set1_epi32(n))};
}
KARAT_INLINE i32x16 shift_signed(i32x16 a, int n) { return {_mm512_srai_epi32(a.v, static_cast<unsigned>(n))}; }
KARAT_INLINE f32x16 to_float(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
KARAT_INLINE i32x16 as_int(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
KARAT_INLINE f32x16 as_float(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
KARAT_INLINE mask16 operator<(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
KARAT_INLINE f32x16 larger(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
KARAT_INLINE f32x16 times_power_of_two(f32x16 a, i32x16 n, mask16 is_zero) {  // by one instruction; see simd.h
    const __m512 exponent = _mm512_sub_ps(_mm512_castsi512_ps(n.v), _mm512_set1_ps(0x1.8p23f));
    return {_mm512_maskz_scalef_ps(static_cast<__mmask16>(~is_zero.v), a.v, exponent)};
}
KARAT_INLINE f32x16 select(mask16 m, f32x16 yes, f32x16 no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }

}  // namespace karat::KARAT_ISA_NAMESPACE

// The lanes of simd.h, which alone includes this file, for AVX-512: one register.
#pragma once

namespace karat::KARAT_ISA_NAMESPACE {

struct f32x16 { __m512 v; };
struct i32x16 { __m512i v; };
struct mask16 { __mmask16 v; };

KARAT_INLINE f32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
KARAT_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
KARAT_INLINE f32x16 broadcast(const float* p) {  // as an integer: on Zen 4 a load alone, where a float's also takes a shuffle
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
KARAT_INLINE i32x16 operator&(i32x16 a, i32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
KARAT_INLINE i32x16 operator|(i32x16 a, i32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
KARAT_INLINE i32x16 operator^(i32x16 a, i32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
KARAT_INLINE i32x16 operator+(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
KARAT_INLINE i32x16 operator-(i32x16 a, i32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
KARAT_INLINE i32x16 operator<<(i32x16 a, int n) { return {_mm512_slli_epi32(a.v, static_cast<unsigned>(n))}; }
KARAT_INLINE i32x16 operator>>(i32x16 a, int n) { return {_mm512_srli_epi32(a.v, static_cast<unsigned>(n))}; }
KARAT_INLINE i32x16 shift_signed(i32x16 a, int n) { return {_mm512_srai_epi32(a.v, static_cast<unsigned>(n))}; }
KARAT_INLINE f32x16 to_float(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
KARAT_INLINE i32x16 as_int(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
KARAT_INLINE f32x16 as_float(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
KARAT_INLINE mask16 operator<(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
KARAT_INLINE f32x16 select(mask16 m, f32x16 yes, f32x16 no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }

// Sixteen integers of at most 8 bits (here 32, mostly the sixteen twice), looked up by the bits of each lane that begin at
// bit `at` (up to 12) of its low (0) or high (1) half.
struct Lut { __m512i v; };  // as bfloat16
KARAT_INLINE Lut make_lut(const float* values) {
    const __m512i low = _mm512_loadu_si512(values), high = _mm512_loadu_si512(values + 16);
    return {_mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(low, 16))),
                               _mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16)), 1)};
}
KARAT_INLINE f32x16 wanted_half(__m512i both, int half) {  // looked up at once, by the compiler if both are wanted
    return {_mm512_castsi512_ps(half ? _mm512_and_si512(both, _mm512_set1_epi32(-65536)) : _mm512_slli_epi32(both, 16))};
}
KARAT_INLINE f32x16 look_up(Lut lut, i32x16 word, int half, int at) {
    return wanted_half(_mm512_permutexvar_epi16(_mm512_srli_epi32(word.v, static_cast<unsigned>(at)), lut.v), half);
}
// Sixty-four, by six bits.
struct WideLut { Lut low, high; };
KARAT_INLINE WideLut make_wide_lut(const float* values) { return {make_lut(values), make_lut(values + 32)}; }
KARAT_INLINE f32x16 look_up(WideLut lut, i32x16 word, int half, int at) {
    const __m512i index = _mm512_srli_epi32(word.v, static_cast<unsigned>(at));
    return wanted_half(_mm512_permutex2var_epi16(lut.low.v, index, lut.high.v), half);
}

// (a & mask) ^ bits
KARAT_INLINE i32x16 masked_xor(i32x16 a, std::int32_t mask, std::int32_t bits) {
    return {_mm512_ternarylogic_epi32(a.v, _mm512_set1_epi32(mask), _mm512_set1_epi32(bits), 0x6a)};
}

}  // namespace karat::KARAT_ISA_NAMESPACE

// Sixteen float32 lanes, the same on every instruction set: one AVX-512 register, two of AVX2, four of NEON, or an array.
//
// Everything here lies in the namespace of the instruction set it is compiled for (see kernels.h). Each operation is one
// IEEE operation a lane, rounded once, so results do not depend on which of the four is in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

// KARAT_GENERIC forbids intrinsics, whatever the compiler is told of the machine.
#if !defined(KARAT_GENERIC)
#if defined(__AVX2__)
#include <immintrin.h>
#if defined(__AVX512F__)
#define KARAT_AVX512
#else
#define KARAT_AVX2
#endif
#elif defined(__aarch64__)
#include <arm_neon.h>
#define KARAT_NEON
#endif
#endif

#define KARAT_INLINE inline __attribute__((always_inline))

namespace karat::KARAT_ISA_NAMESPACE {

inline constexpr int kLanes = 16;

KARAT_INLINE float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

KARAT_INLINE std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// IEEE half precision to float32, exactly; a signalling NaN becomes quiet, as the hardware's conversion makes it.
KARAT_INLINE float float_of_f16(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
    const std::uint32_t exponent = (half >> 10) & 31, mantissa = half & 1023;
    if (exponent == 31) return float_of(sign | 0x7f800000 | (mantissa ? 0x400000 | (mantissa << 13) : 0));
    if (exponent == 0) {
        const float small = static_cast<float>(mantissa) * 0x1p-24f;
        return sign ? -small : small;
    }
    return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

#if defined(KARAT_AVX512)

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

#elif defined(KARAT_AVX2)

struct f32x16 { __m256 lo, hi; };
struct i32x16 { __m256i lo, hi; };
struct mask16 { __m256 lo, hi; };

#define KARAT_BOTH(f, ...) f(a.lo __VA_OPT__(,) __VA_ARGS__), f(a.hi __VA_OPT__(,) __VA_ARGS__)
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
KARAT_INLINE void istore(void* p, i32x16 a) {
    auto* q = static_cast<__m256i*>(p);
    _mm256_storeu_si256(q, a.lo);
    _mm256_storeu_si256(q + 1, a.hi);
}
KARAT_INLINE i32x16 operator&(i32x16 a, i32x16 b) {
    return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
KARAT_INLINE i32x16 operator|(i32x16 a, i32x16 b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
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
KARAT_INLINE f32x16 select(mask16 m, f32x16 yes, f32x16 no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
#undef KARAT_BOTH

// Bytes of each lane, moved within it: byte i becomes byte (from >> 8 i) & 255, or zero if that is 128 or more.
KARAT_INLINE i32x16 move_bytes(i32x16 a, std::uint32_t from) {
    const std::int32_t f = static_cast<std::int32_t>(from);
    const std::int32_t lane = 0x04040404;
    const __m256i order = _mm256_setr_epi32(f, f + lane, f + 2 * lane, f + 3 * lane, f, f + lane, f + 2 * lane, f + 3 * lane);
    return {_mm256_shuffle_epi8(a.lo, order), _mm256_shuffle_epi8(a.hi, order)};
}
// Byte j of each lane: all ones where bit 4 c + j of the lane is set, else 0.
KARAT_INLINE i32x16 bytes_of_bits(i32x16 a, int c) {
    const i32x16 bit = c % 2 ? iset1(static_cast<std::int32_t>(0x80402010)) : iset1(0x08040201);
    const i32x16 own = move_bytes(a, static_cast<std::uint32_t>(c / 2) * 0x01010101u) & bit;
    return {_mm256_cmpeq_epi8(own.lo, bit.lo), _mm256_cmpeq_epi8(own.hi, bit.hi)};
}
KARAT_INLINE f32x16 f16_of_low_halves(i32x16 a) {
    const i32x16 low = a & iset1(0xffff);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low.lo, low.hi), 0xd8);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(packed)), _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1))};
}

struct Lut { __m256i v; };  // as bytes, 128 more than they are, so that they are positive
KARAT_INLINE Lut make_lut(const float* values) {
    alignas(16) std::uint8_t bytes[16];
    for (int i = 0; i < 16; ++i) bytes[i] = static_cast<std::uint8_t>(static_cast<int>(values[i]) + 128);
    return {_mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)))};
}

#elif defined(KARAT_NEON)

#define KARAT_EACH(type, expression)                                  \
    type r;                                                           \
    for (std::size_t i = 0; i < kRegisters; ++i) r.v[i] = expression; \
    return r
inline constexpr std::size_t kRegisters = 4;

struct f32x16 { float32x4_t v[kRegisters]; };
struct i32x16 { int32x4_t v[kRegisters]; };
struct mask16 { uint32x4_t v[kRegisters]; };

KARAT_INLINE f32x16 set1(float x) { KARAT_EACH(f32x16, vdupq_n_f32(x)); }
KARAT_INLINE f32x16 load(const float* p) { KARAT_EACH(f32x16, vld1q_f32(p + 4 * i)); }
KARAT_INLINE void store(float* p, f32x16 a) {
    for (std::size_t i = 0; i < kRegisters; ++i) vst1q_f32(p + 4 * i, a.v[i]);
}
KARAT_INLINE uint8x16_t bytes_at(const void* p) { return vld1q_u8(static_cast<const std::uint8_t*>(p)); }
KARAT_INLINE uint16x4_t halves_at(const void* p) {
    return vreinterpret_u16_u8(vld1_u8(static_cast<const std::uint8_t*>(p)));
}
KARAT_INLINE f32x16 load_f16(const void* p) {
    const auto* q = static_cast<const std::uint8_t*>(p);
    KARAT_EACH(f32x16, vcvt_f32_f16(vreinterpret_f16_u16(halves_at(q + 8 * i))));
}
KARAT_INLINE f32x16 load_bf16(const void* p) {
    const auto* q = static_cast<const std::uint8_t*>(p);
    KARAT_EACH(f32x16, vreinterpretq_f32_u32(vshll_n_u16(halves_at(q + 8 * i), 16)));
}
KARAT_INLINE f32x16 operator+(f32x16 a, f32x16 b) { KARAT_EACH(f32x16, vaddq_f32(a.v[i], b.v[i])); }
KARAT_INLINE f32x16 operator-(f32x16 a, f32x16 b) { KARAT_EACH(f32x16, vsubq_f32(a.v[i], b.v[i])); }
KARAT_INLINE f32x16 operator*(f32x16 a, f32x16 b) { KARAT_EACH(f32x16, vmulq_f32(a.v[i], b.v[i])); }
KARAT_INLINE f32x16 operator/(f32x16 a, f32x16 b) { KARAT_EACH(f32x16, vdivq_f32(a.v[i], b.v[i])); }
KARAT_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { KARAT_EACH(f32x16, vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
KARAT_INLINE i32x16 iset1(std::int32_t x) { KARAT_EACH(i32x16, vdupq_n_s32(x)); }
KARAT_INLINE i32x16 iload(const void* p) {
    const auto* q = static_cast<const std::uint8_t*>(p);
    KARAT_EACH(i32x16, vreinterpretq_s32_u8(bytes_at(q + 16 * i)));
}
KARAT_INLINE i32x16 operator&(i32x16 a, i32x16 b) { KARAT_EACH(i32x16, vandq_s32(a.v[i], b.v[i])); }
KARAT_INLINE i32x16 operator|(i32x16 a, i32x16 b) { KARAT_EACH(i32x16, vorrq_s32(a.v[i], b.v[i])); }
KARAT_INLINE i32x16 operator^(i32x16 a, i32x16 b) { KARAT_EACH(i32x16, veorq_s32(a.v[i], b.v[i])); }
KARAT_INLINE i32x16 operator+(i32x16 a, i32x16 b) { KARAT_EACH(i32x16, vaddq_s32(a.v[i], b.v[i])); }
KARAT_INLINE i32x16 operator-(i32x16 a, i32x16 b) { KARAT_EACH(i32x16, vsubq_s32(a.v[i], b.v[i])); }
KARAT_INLINE i32x16 operator<<(i32x16 a, int n) { KARAT_EACH(i32x16, vshlq_s32(a.v[i], vdupq_n_s32(n))); }
KARAT_INLINE i32x16 operator>>(i32x16 a, int n) {
    KARAT_EACH(i32x16, vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a.v[i]), vdupq_n_s32(-n))));
}
KARAT_INLINE i32x16 shift_signed(i32x16 a, int n) { KARAT_EACH(i32x16, vshlq_s32(a.v[i], vdupq_n_s32(-n))); }
KARAT_INLINE f32x16 to_float(i32x16 a) { KARAT_EACH(f32x16, vcvtq_f32_s32(a.v[i])); }
KARAT_INLINE i32x16 as_int(f32x16 a) { KARAT_EACH(i32x16, vreinterpretq_s32_f32(a.v[i])); }
KARAT_INLINE f32x16 as_float(i32x16 a) { KARAT_EACH(f32x16, vreinterpretq_f32_s32(a.v[i])); }
KARAT_INLINE mask16 operator<(f32x16 a, f32x16 b) { KARAT_EACH(mask16, vcltq_f32(a.v[i], b.v[i])); }
KARAT_INLINE f32x16 select(mask16 m, f32x16 yes, f32x16 no) {
    KARAT_EACH(f32x16, vbslq_f32(m.v[i], yes.v[i], no.v[i]));
}

struct Lut { uint8x16x4_t v; };
KARAT_INLINE Lut make_lut(const float* values) {
    return {{{bytes_at(values), bytes_at(values + 4), bytes_at(values + 8), bytes_at(values + 12)}}};
}
KARAT_INLINE f32x16 look_up(Lut lut, i32x16 word, int half, int at) {  // bytes: those of value n are 4 n … 4 n + 3
    const i32x16 first = ((word >> (16 * half + at)) & iset1(15)) << 2;
    KARAT_EACH(f32x16, vreinterpretq_f32_u8(vqtbl4q_u8(lut.v, vreinterpretq_u8_s32(vaddq_s32(
                           vmulq_n_s32(first.v[i], 0x01010101), vdupq_n_s32(0x03020100))))));
}
#undef KARAT_EACH

#else

// Single floats, in loops of constant length that a compiler unrolls.
#define KARAT_EACH(type, expression)                   \
    type r;                                            \
    for (int i = 0; i < kLanes; ++i) r.v[i] = expression; \
    return r

struct f32x16 { float v[kLanes]; };
struct i32x16 { std::uint32_t v[kLanes]; };  // unsigned: sums wrap
struct mask16 { std::uint32_t v[kLanes]; };

KARAT_INLINE void store(float* p, f32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
KARAT_INLINE f32x16 load(const float* p) {
    f32x16 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
KARAT_INLINE i32x16 iload(const void* p) {
    i32x16 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
KARAT_INLINE f32x16 load_f16(const void* p) {
    std::uint16_t half[kLanes];
    std::memcpy(half, p, sizeof half);
    KARAT_EACH(f32x16, float_of_f16(half[i]));
}
KARAT_INLINE f32x16 load_bf16(const void* p) {
    std::uint16_t half[kLanes];
    std::memcpy(half, p, sizeof half);
    KARAT_EACH(f32x16, float_of(static_cast<std::uint32_t>(half[i]) << 16));
}
KARAT_INLINE f32x16 set1(float x) { KARAT_EACH(f32x16, x); }
KARAT_INLINE i32x16 iset1(std::int32_t x) { KARAT_EACH(i32x16, static_cast<std::uint32_t>(x)); }
KARAT_INLINE f32x16 operator+(f32x16 a, f32x16 b) { KARAT_EACH(f32x16, a.v[i] + b.v[i]); }
KARAT_INLINE f32x16 operator-(f32x16 a, f32x16 b) { KARAT_EACH(f32x16, a.v[i] - b.v[i]); }
KARAT_INLINE f32x16 operator*(f32x16 a, f32x16 b) { KARAT_EACH(f32x16, a.v[i] * b.v[i]); }
KARAT_INLINE f32x16 operator/(f32x16 a, f32x16 b) { KARAT_EACH(f32x16, a.v[i] / b.v[i]); }
KARAT_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { KARAT_EACH(f32x16, __builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
KARAT_INLINE i32x16 operator&(i32x16 a, i32x16 b) { KARAT_EACH(i32x16, a.v[i] & b.v[i]); }
KARAT_INLINE i32x16 operator|(i32x16 a, i32x16 b) { KARAT_EACH(i32x16, a.v[i] | b.v[i]); }
KARAT_INLINE i32x16 operator^(i32x16 a, i32x16 b) { KARAT_EACH(i32x16, a.v[i] ^ b.v[i]); }
KARAT_INLINE i32x16 operator+(i32x16 a, i32x16 b) { KARAT_EACH(i32x16, a.v[i] + b.v[i]); }
KARAT_INLINE i32x16 operator-(i32x16 a, i32x16 b) { KARAT_EACH(i32x16, a.v[i] - b.v[i]); }
KARAT_INLINE i32x16 operator<<(i32x16 a, int n) { KARAT_EACH(i32x16, a.v[i] << n); }
KARAT_INLINE i32x16 operator>>(i32x16 a, int n) { KARAT_EACH(i32x16, a.v[i] >> n); }
KARAT_INLINE i32x16 shift_signed(i32x16 a, int n) {
    KARAT_EACH(i32x16, static_cast<std::uint32_t>(static_cast<std::int32_t>(a.v[i]) >> n));
}
KARAT_INLINE f32x16 to_float(i32x16 a) {
    KARAT_EACH(f32x16, static_cast<float>(static_cast<std::int32_t>(a.v[i])));
}
KARAT_INLINE i32x16 as_int(f32x16 a) { KARAT_EACH(i32x16, bits_of(a.v[i])); }
KARAT_INLINE f32x16 as_float(i32x16 a) { KARAT_EACH(f32x16, float_of(a.v[i])); }
KARAT_INLINE mask16 operator<(f32x16 a, f32x16 b) { KARAT_EACH(mask16, a.v[i] < b.v[i] ? 0xffffffffu : 0); }
KARAT_INLINE f32x16 select(mask16 m, f32x16 yes, f32x16 no) {
    KARAT_EACH(f32x16, float_of((bits_of(yes.v[i]) & m.v[i]) | (bits_of(no.v[i]) & ~m.v[i])));
}

struct Lut { const float* values; };
KARAT_INLINE Lut make_lut(const float* values) { return {values}; }
KARAT_INLINE f32x16 look_up(Lut lut, i32x16 word, int half, int at) {
    const i32x16 index = word >> (16 * half + at);
    KARAT_EACH(f32x16, lut.values[index.v[i] & 15]);
}
#undef KARAT_EACH

#endif

// Byte j (0 … 3) of each lane, as an integer.
KARAT_INLINE i32x16 byte_of(i32x16 a, int j) { return (a >> (8 * j)) & iset1(255); }

#if !defined(KARAT_AVX2)
// Byte j of each lane: all ones where bit 4 c + j of the lane is set, else 0.
KARAT_INLINE i32x16 bytes_of_bits(i32x16 a, int c) {
    const i32x16 four = (a >> (4 * c)) & iset1(15);
    const i32x16 own = (four | (four << 7) | (four << 14) | (four << 21)) & iset1(0x01010101);
    return (own << 8) - own;
}
#endif

#if !defined(KARAT_AVX512)
// All lanes *p.
KARAT_INLINE f32x16 broadcast(const float* p) { return set1(*p); }

// Byte j of each lane as a number less `bias`, where j is a constant.
KARAT_INLINE f32x16 number_of_byte(i32x16 a, int j, float bias) {
#if defined(KARAT_AVX2)
    const i32x16 byte = move_bytes(a, 0x80808000u + static_cast<std::uint32_t>(j));
#else
    const i32x16 byte = byte_of(a, j);
#endif
    if (bias == 0) return to_float(byte);
    return as_float(byte | iset1(0x4b000000)) - set1(0x1p23f + bias);
}
#endif

#if defined(KARAT_AVX2)
inline constexpr int kLutBias = 128;  // added to what a Lut holds as bytes
// For the low halves of all bytes of a word, bytes of that many more.
KARAT_INLINE i32x16 look_up_bytes(Lut lut, i32x16 word) {
    const i32x16 index = word & iset1(0x0f0f0f0f);
    return {_mm256_shuffle_epi8(lut.v, index.lo), _mm256_shuffle_epi8(lut.v, index.hi)};
}
KARAT_INLINE f32x16 look_up(Lut lut, i32x16 word, int half, int at) {
    return number_of_byte(look_up_bytes(lut, word >> (at % 8)), 2 * half + at / 8, kLutBias);
}
#endif

#if !defined(KARAT_AVX512) && !defined(KARAT_AVX2)
// Each lane's low 16 bits, a half, as float32.
KARAT_INLINE f32x16 f16_of_low_halves(i32x16 a) {
    std::uint32_t words[kLanes];
    std::memcpy(words, &a, sizeof words);
    std::uint16_t halves[kLanes];
    for (int i = 0; i < kLanes; ++i) halves[i] = static_cast<std::uint16_t>(words[i]);
    return load_f16(halves);
}
#endif

#if defined(KARAT_AVX512)
// (a & mask) ^ bits
KARAT_INLINE i32x16 masked_xor(i32x16 a, std::int32_t mask, std::int32_t bits) {
    return {_mm512_ternarylogic_epi32(a.v, _mm512_set1_epi32(mask), _mm512_set1_epi32(bits), 0x6a)};
}
#else
KARAT_INLINE i32x16 masked_xor(i32x16 a, std::int32_t mask, std::int32_t bits) { return (a & iset1(mask)) ^ iset1(bits); }
#endif

KARAT_INLINE f32x16 zero() { return set1(0.0f); }

// The first n lanes; the others are read as 0, and not written.
KARAT_INLINE f32x16 load_first(const float* p, int n) {
    float all[kLanes] = {};
    for (int i = 0; i < n; ++i) all[i] = p[i];
    return load(all);
}
KARAT_INLINE void store_first(float* p, f32x16 a, int n) {
    if (n >= kLanes) return store(p, a);
    float all[kLanes];
    store(all, a);
    for (int i = 0; i < n; ++i) p[i] = all[i];
}

// Lanes folded in halves: lane[l] += lane[l + 8], then + 4, + 2, + 1.
KARAT_INLINE float fold(f32x16 a) {
    float lane[kLanes];
    store(lane, a);
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int l = 0; l < half; ++l) lane[l] = lane[l] + lane[l + half];
    return lane[0];
}

KARAT_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

}  // namespace karat::KARAT_ISA_NAMESPACE

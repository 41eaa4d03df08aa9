// Sixteen float32 lanes, the same on every instruction set: one AVX-512 register, two of AVX2, four of NEON, or an
// array.
//
// Everything here lies in the namespace of the instruction set it is compiled for (see kernels.h). Each operation is
// one IEEE operation a lane, rounded once, so results do not depend on which of the four is in use.
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
#define KARAT_NOINLINE __attribute__((noinline))

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

}  // namespace karat::KARAT_ISA_NAMESPACE

#if defined(KARAT_AVX512)
#include "simd/simd_avx512.h"
#elif defined(KARAT_AVX2)
#include "simd/simd_avx2.h"
#elif defined(KARAT_NEON)
#include "simd/simd_neon.h"
#else
#include "simd/simd_generic.h"
#endif

// An instruction that AVX-512 and AVX2 have alike, of all lanes of a and b.
#if defined(KARAT_AVX512)
#define KARAT_ALL(instruction) {_mm512_##instruction(a.v, b.v)}
#elif defined(KARAT_AVX2)
#define KARAT_ALL(instruction) {_mm256_##instruction(a.lo, b.lo), _mm256_##instruction(a.hi, b.hi)}
#endif

namespace karat::KARAT_ISA_NAMESPACE {

// Operations composed of the above. An instruction set with a shorter way has it in its own header.

#if !defined(KARAT_AVX512) && !defined(KARAT_AVX2)
// Each lane's low 16 bits, a half, as float32.
KARAT_INLINE f32x16 f16_of_low_halves(i32x16 a) {
    std::uint32_t words[kLanes];
    std::memcpy(words, &a, sizeof words);
    std::uint16_t halves[kLanes];
    for (int i = 0; i < kLanes; ++i) halves[i] = static_cast<std::uint16_t>(words[i]);
    return load_f16(halves);
}

// a where b < a, else b.
KARAT_INLINE f32x16 larger(f32x16 a, f32x16 b) { return select(b < a, a, b); }
#endif

#if !defined(KARAT_AVX512)
// a * 2^n, where the lanes of n are the bits of 1.5 * 2^23 + n, and -126 <= n <= 127; 0 in the lanes of `is_zero`.
KARAT_INLINE f32x16 times_power_of_two(f32x16 a, i32x16 n, mask16 is_zero) {
    return select(is_zero, set1(0.0f), a * as_float((n << 23) + iset1(127 << 23)));
}

// All lanes *p.
KARAT_INLINE f32x16 broadcast(const float* p) { return set1(*p); }

#endif

KARAT_INLINE f32x16 zero() { return set1(0.0f); }

// The first n lanes; the others are read as 0, and not written.
KARAT_INLINE f32x16 load_first(const float* p, int n) {
    if (n >= kLanes) return load(p);
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

// Reduces all lanes to one, in halves: f(lane[l], lane[l + 8]) changes its first argument, then lanes 4, 2 and 1 apart.
template <int Lanes, class F>
KARAT_INLINE float in_halves(const float* lane, const F& f) {
    using Half __attribute__((vector_size(Lanes / 2 * sizeof(float)))) = float;
    Half low, high;
    std::memcpy(&low, lane, sizeof low);
    std::memcpy(&high, lane + Lanes / 2, sizeof high);
    f(low, high);
    float half[Lanes / 2];
    std::memcpy(half, &low, sizeof half);
    if constexpr (Lanes == 2) return half[0];
    else return in_halves<Lanes / 2>(half, f);
}
template <class F>
KARAT_INLINE float in_halves(f32x16 a, const F& f) {
    float lane[kLanes];
    store(lane, a);
    __asm__("" : "+m"(lane));  // or the compiler keeps `a` in memory in the loop that makes it
    return in_halves<kLanes>(lane, f);
}

// Lanes folded in halves: lane[l] += lane[l + 8], then + 4, + 2, + 1.
KARAT_INLINE float fold(f32x16 a) {
    return in_halves(a, [](auto& x, const auto& y) __attribute__((always_inline)) { x = x + y; });
}

// The largest lane, where none is NaN.
KARAT_INLINE float largest_of(f32x16 a) {
    return in_halves(a, [](auto& x, const auto& y) __attribute__((always_inline)) { x = x < y ? y : x; });
}

// Where a line is prefetched to; `once`: without the levels behind the first.
enum class Into { first_level, first_level_once, second_level };
template <Into into>
KARAT_INLINE void prefetch(const void* p) {
    __builtin_prefetch(p, 0, into == Into::first_level ? 3 : into == Into::second_level ? 2 : 0);
}
KARAT_INLINE void prefetch(const void* p) { prefetch<Into::first_level>(p); }
KARAT_INLINE void prefetch_far(const void* p) { prefetch<Into::second_level>(p); }

}  // namespace karat::KARAT_ISA_NAMESPACE

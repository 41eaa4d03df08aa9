// Vectors of one lane: what formats.h and exp.h need of simd.h where a thread of a GPU has a row or a number of its own
// (KARAT_ONE_LANE). One source for nvcc and for g++, which compiles the emulation (gpu/simt.h).
//
// Each operation is one IEEE operation, rounded once. nvcc is given -fmad=false -ftz=false -prec-div=true
// -prec-sqrt=true, g++ -ffp-contract=off.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define KARAT_INLINE __device__ __forceinline__
#else
#define KARAT_INLINE inline __attribute__((always_inline))
#include <stdexcept>
#endif

namespace karat::KARAT_ISA_NAMESPACE {

KARAT_INLINE float float_of(std::uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
KARAT_INLINE std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

KARAT_INLINE float fma(float a, float b, float c) {
#if defined(__CUDACC__)
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

// IEEE half precision to float32, exactly.
KARAT_INLINE float float_of_f16(std::uint16_t half) {
#if defined(__CUDACC__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
#else
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16, magnitude = half & 0x7fff;
    if (magnitude >= 0x7c00) return float_of(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    if (magnitude < 0x400) return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24f));
    return float_of(sign | ((magnitude << 13) + 0x38000000));
#endif
}

// A value of global memory. The emulation refuses an address that the GPU would.
template <class T>
KARAT_INLINE T value_at(const void* p) {
#if defined(__CUDACC__)
    return *static_cast<const T*>(p);
#else
    if (reinterpret_cast<std::uintptr_t>(p) % alignof(T)) throw std::out_of_range("a misaligned load");
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
#endif
}

inline constexpr int kLanes = 1;
struct f32x16 { float v; };
struct i32x16 { std::uint32_t v; };  // unsigned: sums wrap
struct mask16 { bool v; };

KARAT_INLINE f32x16 load(const float* p) { return {value_at<float>(p)}; }
KARAT_INLINE f32x16 load_first(const float* p, int) { return load(p); }
KARAT_INLINE void store_first(float* p, f32x16 a, int) { *p = a.v; }
KARAT_INLINE f32x16 load_f16(const void* p) { return {float_of_f16(value_at<std::uint16_t>(p))}; }
KARAT_INLINE f32x16 load_bf16(const void* p) {
    return {float_of(static_cast<std::uint32_t>(value_at<std::uint16_t>(p)) << 16)};
}
KARAT_INLINE i32x16 iload(const void* p) { return {value_at<std::uint32_t>(p)}; }
KARAT_INLINE i32x16 iload_bytes(const void* p) { return {value_at<std::uint8_t>(p)}; }
KARAT_INLINE f32x16 set1(float x) { return {x}; }
KARAT_INLINE i32x16 iset1(std::int32_t x) { return {static_cast<std::uint32_t>(x)}; }
KARAT_INLINE f32x16 zero() { return {0.0f}; }

KARAT_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {a.v + b.v}; }
KARAT_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {a.v - b.v}; }
KARAT_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {a.v * b.v}; }
KARAT_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {a.v / b.v}; }
KARAT_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {fma(a.v, b.v, c.v)}; }
KARAT_INLINE i32x16 operator&(i32x16 a, i32x16 b) { return {a.v & b.v}; }
KARAT_INLINE i32x16 operator|(i32x16 a, i32x16 b) { return {a.v | b.v}; }
KARAT_INLINE i32x16 operator^(i32x16 a, i32x16 b) { return {a.v ^ b.v}; }
KARAT_INLINE i32x16 operator+(i32x16 a, i32x16 b) { return {a.v + b.v}; }
KARAT_INLINE i32x16 operator-(i32x16 a, i32x16 b) { return {a.v - b.v}; }
KARAT_INLINE i32x16 operator<<(i32x16 a, int n) { return {a.v << n}; }
KARAT_INLINE i32x16 operator>>(i32x16 a, int n) { return {a.v >> n}; }
KARAT_INLINE i32x16 shift_signed(i32x16 a, int n) {
    return {static_cast<std::uint32_t>(static_cast<std::int32_t>(a.v) >> n)};
}
KARAT_INLINE f32x16 to_float(i32x16 a) { return {static_cast<float>(static_cast<std::int32_t>(a.v))}; }
KARAT_INLINE i32x16 as_int(f32x16 a) { return {bits_of(a.v)}; }
KARAT_INLINE f32x16 as_float(i32x16 a) { return {float_of(a.v)}; }
KARAT_INLINE mask16 operator<(f32x16 a, f32x16 b) { return {a.v < b.v}; }
KARAT_INLINE f32x16 select(mask16 m, f32x16 yes, f32x16 no) { return m.v ? yes : no; }
KARAT_INLINE f32x16 larger(f32x16 a, f32x16 b) { return select(b < a, a, b); }
KARAT_INLINE f32x16 times_power_of_two(f32x16 a, i32x16 n, mask16 is_zero) {
    return select(is_zero, zero(), a * as_float((n << 23) + iset1(127 << 23)));
}
KARAT_INLINE f32x16 f16_of_low_halves(i32x16 a) { return {float_of_f16(static_cast<std::uint16_t>(a.v))}; }

// Sixteen bytes, looked up by the numbers 0 … 15 in the bytes of `index`.
struct ByteTable { std::uint32_t words[4]; };

template <const std::uint8_t (&kBytes)[16]>
KARAT_INLINE ByteTable byte_table() {
    constexpr auto word = [](int i) {
        return static_cast<std::uint32_t>(kBytes[i] | kBytes[i + 1] << 8 | kBytes[i + 2] << 16) |
               static_cast<std::uint32_t>(kBytes[i + 3]) << 24;
    };
    constexpr std::uint32_t first = word(0), second = word(4), third = word(8), fourth = word(12);
    return {{first, second, third, fourth}};
}

KARAT_INLINE i32x16 bytes_of_table(const ByteTable& table, i32x16 index) {
#if defined(__CUDACC__)  // both halves of the table are looked up, by three bits; the fourth chooses
    const std::uint32_t low = index.v & 0x07070707u, pairs = low | low >> 4;
    const std::uint32_t selector = (pairs & 0xff) | (pairs >> 8 & 0xff00);
    const std::uint32_t upper = (index.v >> 3 & 0x01010101u) * 255u;
    return {(__byte_perm(table.words[0], table.words[1], selector) & ~upper) |
            (__byte_perm(table.words[2], table.words[3], selector) & upper)};
#else
    std::uint32_t found = 0;
    for (int at = 0; at < 32; at += 8) {
        const std::uint32_t number = index.v >> at & 15;
        found |= (table.words[number / 4] >> 8 * (number % 4) & 255) << at;
    }
    return {found};
#endif
}

}  // namespace karat::KARAT_ISA_NAMESPACE

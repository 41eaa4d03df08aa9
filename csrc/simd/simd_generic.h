// The lanes of simd.h, which alone includes this file, for any machine: single floats, in loops of constant length that
// a compiler unrolls.
#pragma once

namespace karat::KARAT_ISA_NAMESPACE {

#define KARAT_EACH(type, expression)                      \
    type r;                                               \
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
KARAT_INLINE i32x16 iload_bytes(const void* p) {
    std::uint8_t bytes[kLanes];
    std::memcpy(bytes, p, sizeof bytes);
    KARAT_EACH(i32x16, bytes[i]);
}
KARAT_INLINE void istore(void* p, i32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
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
KARAT_INLINE f32x16 to_float(i32x16 a) { KARAT_EACH(f32x16, static_cast<float>(static_cast<std::int32_t>(a.v[i]))); }
KARAT_INLINE i32x16 as_int(f32x16 a) { KARAT_EACH(i32x16, bits_of(a.v[i])); }
KARAT_INLINE f32x16 as_float(i32x16 a) { KARAT_EACH(f32x16, float_of(a.v[i])); }
KARAT_INLINE mask16 operator<(f32x16 a, f32x16 b) { KARAT_EACH(mask16, a.v[i] < b.v[i] ? 0xffffffffu : 0); }
KARAT_INLINE f32x16 select(mask16 m, f32x16 yes, f32x16 no) {
    KARAT_EACH(f32x16, float_of((bits_of(yes.v[i]) & m.v[i]) | (bits_of(no.v[i]) & ~m.v[i])));
}
#undef KARAT_EACH

}  // namespace karat::KARAT_ISA_NAMESPACE

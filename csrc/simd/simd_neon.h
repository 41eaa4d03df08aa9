// The lanes of simd.h, which alone includes this file, for NEON: four registers.
#pragma once

namespace karat::KARAT_ISA_NAMESPACE {

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
KARAT_INLINE i32x16 iload_bytes(const void* p) {
    std::int32_t wide[kLanes];
    for (int i = 0; i < kLanes; ++i) wide[i] = static_cast<const std::uint8_t*>(p)[i];
    return iload(wide);
}
KARAT_INLINE void istore(void* p, i32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
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
#undef KARAT_EACH

}  // namespace karat::KARAT_ISA_NAMESPACE

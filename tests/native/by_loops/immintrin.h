// The intrinsics that the builds for AVX2 and AVX-512 with VNNI or tiles multiply integers with, as loops for any
// machine.
//
// It stands for the compiler's header of this name (CMakeLists.txt), so the kernels are compiled as they are.
// Intrinsics that their headers name, and that linear layers of integers do not use, are declared only: a kernel that
// begins to use one cannot be linked.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#define BY_LOOPS inline __attribute__((always_inline))
#define BY_LOOPS_VECTOR(name, type, bytes) using name = type __attribute__((vector_size(bytes)))
BY_LOOPS_VECTOR(__m256, float, 32);
BY_LOOPS_VECTOR(__m512, float, 64);
BY_LOOPS_VECTOR(__m128i, std::uint32_t, 16);
BY_LOOPS_VECTOR(__m256i, std::uint32_t, 32);
BY_LOOPS_VECTOR(__m512i, std::uint32_t, 64);
using __mmask16 = std::uint16_t;

namespace by_loops {

// The bytes of a vector as lanes of type T, and back.
template <class T, class V>
struct Lanes {
    static constexpr int kCount = sizeof(V) / sizeof(T);
    T at[kCount];

    BY_LOOPS Lanes() {}
    BY_LOOPS Lanes(V v) { std::memcpy(at, &v, sizeof v); }
    BY_LOOPS operator V() const {
        V v;
        std::memcpy(&v, at, sizeof v);
        return v;
    }
};

template <class V>
BY_LOOPS V load(const void* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
template <class V>
BY_LOOPS void store(void* p, V v) {
    std::memcpy(p, &v, sizeof v);
}
// Vectors of as many bytes.
template <class To, class From>
BY_LOOPS To as(From v) {
    static_assert(sizeof(To) == sizeof(From));
    return load<To>(&v);
}
template <class V, class T>
BY_LOOPS V all(T x) {
    Lanes<T, V> r;
    for (T& lane : r.at) lane = x;
    return r;
}
template <class V>
BY_LOOPS V fma(V a, V b, V c) {
    Lanes<float, V> r, of_a(a), of_b(b), of_c(c);
    for (int i = 0; i < r.kCount; ++i) r.at[i] = __builtin_fmaf(of_a.at[i], of_b.at[i], of_c.at[i]);
    return r;
}
template <class V>
BY_LOOPS V largest(V a, V b) {
    Lanes<std::int32_t, V> r(a), of_b(b);
    for (int i = 0; i < r.kCount; ++i) r.at[i] = r.at[i] < of_b.at[i] ? of_b.at[i] : r.at[i];
    return r;
}
// Each lane as another type, converted.
template <class To, class T, class From, class V>
BY_LOOPS To converted(V v) {
    Lanes<From, V> of(v);
    Lanes<T, To> r;
    static_assert(of.kCount == r.kCount);
    for (int i = 0; i < r.kCount; ++i) r.at[i] = static_cast<T>(of.at[i]);
    return r;
}
template <class To, class V>
BY_LOOPS To nearest(V v) {
    Lanes<float, V> of(v);
    Lanes<std::int32_t, To> r;
    for (int i = 0; i < r.kCount; ++i) r.at[i] = static_cast<std::int32_t>(__builtin_rintf(of.at[i]));
    return r;
}
template <class To, class V>
BY_LOOPS To of_halves(V v) {
    Lanes<std::uint16_t, V> of(v);
    Lanes<float, To> r;
    for (int i = 0; i < r.kCount; ++i) {
        const std::uint32_t half = of.at[i], shifted = (half & 0x7fff) << 13, sign = (half & 0x8000) << 16;
        const bool is_number = (half & 0x7c00) != 0x7c00;
        const float magnitude = load<float>(&shifted) * 0x1p112f;  // exact
        const std::uint32_t number = load<std::uint32_t>(&magnitude);
        const std::uint32_t other = 0x7f800000 | shifted | (half & 0x3ff ? 0x400000 : 0);
        const std::uint32_t bits = sign | (is_number ? number : other);
        r.at[i] = load<float>(&bits);
    }
    return r;
}
// Bytes of each 16 of `v`: those that `index` has the numbers of, or 0 where its highest bit is set.
template <class V>
BY_LOOPS V shuffle_bytes(V v, V index) {
    Lanes<std::uint8_t, V> r, of(v), from(index);
    for (int i = 0; i < r.kCount; ++i) r.at[i] = from.at[i] & 128 ? 0 : of.at[(i & ~15) | (from.at[i] & 15)];
    return r;
}
// vpdpbusd: four products of an unsigned byte and a signed one are added to each lane.
template <class V>
BY_LOOPS V dpbusd(V sum, V a, V b) {
    Lanes<std::uint32_t, V> r(sum);
    Lanes<std::uint8_t, V> of_a(a);
    Lanes<std::int8_t, V> of_b(b);
    for (int i = 0; i < of_a.kCount; ++i) r.at[i / 4] += static_cast<std::uint32_t>(of_a.at[i] * of_b.at[i]);
    return r;
}
// vpdpwssd: two products of signed words are added to each lane.
template <class V>
BY_LOOPS V dpwssd(V sum, V a, V b) {
    Lanes<std::uint32_t, V> r(sum);
    Lanes<std::int16_t, V> of_a(a), of_b(b);
    for (int i = 0; i < of_a.kCount; ++i) r.at[i / 2] += static_cast<std::uint32_t>(of_a.at[i] * of_b.at[i]);
    return r;
}
// In each 16 bytes, words `first` to `first` + 3 in another order: two bits of `n` a word.
template <class V>
BY_LOOPS V shuffle_words(V v, int n, int first) {
    Lanes<std::uint16_t, V> r(v), of(v);
    for (int i = 0; i < r.kCount; ++i)
        if (const int at = i % 8 - first; at >= 0 && at < 4) r.at[i] = of.at[i - at + (n >> (2 * at) & 3)];
    return r;
}
// In each 16 bytes the lanes of T of one half of a and of b, in turn.
template <class T, class V>
BY_LOOPS V unpack(V a, V b, int half) {
    constexpr int kHalf = 8 / sizeof(T);
    Lanes<T, V> r, of[2] = {Lanes<T, V>(a), Lanes<T, V>(b)};
    for (int i = 0; i < r.kCount; ++i)
        r.at[i] = of[i % 2].at[i / (2 * kHalf) * 2 * kHalf + half * kHalf + i / 2 % kHalf];
    return r;
}
// Lanes of T of a and, behind them, of b: those that `index` has the numbers of.
template <class T>
BY_LOOPS __m512i choose(__m512i a, __m512i index, __m512i b) {
    Lanes<T, __m512i> r, from(index), of[2] = {Lanes<T, __m512i>(a), Lanes<T, __m512i>(b)};
    for (int i = 0; i < r.kCount; ++i) r.at[i] = of[from.at[i] / r.kCount % 2].at[from.at[i] % r.kCount];
    return r;
}
template <class To, class From>
BY_LOOPS To low_part(From v) {
    return load<To>(&v);
}
// Lanes of two vectors as half as many bits, saturated: in each 16 bytes those of a, then of b.
template <class Wide, class Narrow, class V>
BY_LOOPS V pack(V a, V b) {
    constexpr int kWide = 16 / sizeof(Wide);
    constexpr Wide kLeast = std::numeric_limits<Narrow>::min(), kMost = std::numeric_limits<Narrow>::max();
    Lanes<Wide, V> of[2] = {Lanes<Wide, V>(a), Lanes<Wide, V>(b)};
    Lanes<Narrow, V> r;
    for (int i = 0; i < r.kCount; ++i) {
        const Wide x = of[i / kWide % 2].at[i / (2 * kWide) * kWide + i % kWide];
        r.at[i] = static_cast<Narrow>(x < kLeast ? kLeast : x > kMost ? kMost : x);
    }
    return r;
}

}  // namespace by_loops

// ---- what has the same form in all widths ---------------------------------------------------------------------------

#define BY_LOOPS_BOTH(bits, f, i)                                                                        \
    BY_LOOPS f _mm##bits##_loadu_ps(const void* p) { return by_loops::load<f>(p); }                      \
    BY_LOOPS void _mm##bits##_storeu_ps(void* p, f a) { by_loops::store(p, a); }                         \
    BY_LOOPS i _mm##bits##_loadu_si##bits(const void* p) { return by_loops::load<i>(p); }                \
    BY_LOOPS void _mm##bits##_storeu_si##bits(void* p, i a) { by_loops::store(p, a); }                   \
    BY_LOOPS f _mm##bits##_set1_ps(float x) { return by_loops::all<f>(x); }                              \
    BY_LOOPS i _mm##bits##_set1_epi32(std::int32_t x) { return by_loops::all<i>(x); }                    \
    BY_LOOPS f _mm##bits##_add_ps(f a, f b) { return a + b; }                                            \
    BY_LOOPS f _mm##bits##_sub_ps(f a, f b) { return a - b; }                                            \
    BY_LOOPS f _mm##bits##_mul_ps(f a, f b) { return a * b; }                                            \
    BY_LOOPS f _mm##bits##_div_ps(f a, f b) { return a / b; }                                            \
    BY_LOOPS f _mm##bits##_fmadd_ps(f a, f b, f c) { return by_loops::fma(a, b, c); }                    \
    BY_LOOPS i _mm##bits##_add_epi32(i a, i b) { return a + b; }                                         \
    BY_LOOPS i _mm##bits##_sub_epi32(i a, i b) { return a - b; }                                         \
    BY_LOOPS i _mm##bits##_and_si##bits(i a, i b) { return a & b; }                                      \
    BY_LOOPS i _mm##bits##_or_si##bits(i a, i b) { return a | b; }                                       \
    BY_LOOPS i _mm##bits##_xor_si##bits(i a, i b) { return a ^ b; }                                      \
    BY_LOOPS i _mm##bits##_slli_epi32(i a, unsigned n) { return a << n; }                                \
    BY_LOOPS i _mm##bits##_srli_epi32(i a, unsigned n) { return a >> n; }                                \
    BY_LOOPS i _mm##bits##_srai_epi32(i a, unsigned n) {                                                 \
        by_loops::Lanes<std::int32_t, i> r(a);                                                           \
        for (std::int32_t& lane : r.at) lane >>= n;                                                      \
        return r;                                                                                        \
    }                                                                                                    \
    BY_LOOPS i _mm##bits##_srli_epi16(i a, unsigned n) {                                                 \
        by_loops::Lanes<std::uint16_t, i> r(a);                                                          \
        for (std::uint16_t& lane : r.at) lane = static_cast<std::uint16_t>(lane >> n);                   \
        return r;                                                                                        \
    }                                                                                                    \
    BY_LOOPS i _mm##bits##_sub_epi16(i a, i b) {                                                         \
        by_loops::Lanes<std::uint16_t, i> r(a), of(b);                                                   \
        for (int n = 0; n < r.kCount; ++n) r.at[n] = static_cast<std::uint16_t>(r.at[n] - of.at[n]);     \
        return r;                                                                                        \
    }                                                                                                    \
    BY_LOOPS i _mm##bits##_unpacklo_epi32(i a, i b) { return by_loops::unpack<std::uint32_t>(a, b, 0); } \
    BY_LOOPS i _mm##bits##_unpackhi_epi32(i a, i b) { return by_loops::unpack<std::uint32_t>(a, b, 1); } \
    BY_LOOPS i _mm##bits##_unpacklo_epi64(i a, i b) { return by_loops::unpack<std::uint64_t>(a, b, 0); } \
    BY_LOOPS i _mm##bits##_unpackhi_epi64(i a, i b) { return by_loops::unpack<std::uint64_t>(a, b, 1); } \
    BY_LOOPS i _mm##bits##_madd_epi16(i a, i b) { return by_loops::dpwssd(i{}, a, b); }                  \
    BY_LOOPS i _mm##bits##_max_epi32(i a, i b) { return by_loops::largest(a, b); }                       \
    BY_LOOPS i _mm##bits##_shuffle_epi8(i a, i index) { return by_loops::shuffle_bytes(a, index); }      \
    BY_LOOPS f _mm##bits##_cvtepi32_ps(i a) { return by_loops::converted<f, float, std::int32_t>(a); }   \
    BY_LOOPS i _mm##bits##_cvtps_epi32(f a) { return by_loops::nearest<i>(a); }                          \
    BY_LOOPS i _mm##bits##_castps_si##bits(f a) { return by_loops::as<i>(a); }                           \
    BY_LOOPS f _mm##bits##_castsi##bits##_ps(i a) { return by_loops::as<f>(a); }
BY_LOOPS_BOTH(256, __m256, __m256i)
BY_LOOPS_BOTH(512, __m512, __m512i)
#undef BY_LOOPS_BOTH

// ---- 128 bits -------------------------------------------------------------------------------------------------------

BY_LOOPS __m128i _mm_loadu_si128(const void* p) { return by_loops::load<__m128i>(p); }
BY_LOOPS void _mm_storeu_si128(void* p, __m128i a) { by_loops::store(p, a); }
BY_LOOPS __m128i _mm_unpackhi_epi64(__m128i a, __m128i b) { return by_loops::unpack<std::uint64_t>(a, b, 1); }
BY_LOOPS __m128i _mm_packus_epi16(__m128i a, __m128i b) { return by_loops::pack<std::int16_t, std::uint8_t>(a, b); }

// ---- AVX2 -----------------------------------------------------------------------------------------------------------

BY_LOOPS __m256 _mm256_cvtph_ps(__m128i a) { return by_loops::of_halves<__m256>(a); }
BY_LOOPS __m256i _mm256_cvtepu16_epi32(__m128i a) {
    return by_loops::converted<__m256i, std::uint32_t, std::uint16_t>(a);
}
BY_LOOPS __m256i _mm256_cvtepu8_epi32(__m128i a) {
    return by_loops::converted<__m256i, std::uint32_t, std::uint8_t>(by_loops::low_part<std::uint64_t>(a));
}
BY_LOOPS __m128i _mm256_castsi256_si128(__m256i a) { return by_loops::low_part<__m128i>(a); }
BY_LOOPS __m128i _mm256_extracti128_si256(__m256i a, int n) {
    return by_loops::load<__m128i>(reinterpret_cast<const char*>(&a) + 16 * n);
}
BY_LOOPS void _mm256_store_si256(void* p, __m256i a) { by_loops::store(p, a); }
BY_LOOPS __m256i _mm256_packs_epi32(__m256i a, __m256i b) { return by_loops::pack<std::int32_t, std::int16_t>(a, b); }
BY_LOOPS __m256i _mm256_packus_epi32(__m256i a, __m256i b) { return by_loops::pack<std::int32_t, std::uint16_t>(a, b); }
BY_LOOPS __m256i _mm256_shufflelo_epi16(__m256i a, int n) { return by_loops::shuffle_words(a, n, 0); }
BY_LOOPS __m256i _mm256_shufflehi_epi16(__m256i a, int n) { return by_loops::shuffle_words(a, n, 4); }
BY_LOOPS __m256i _mm256_permute4x64_epi64(__m256i a, int n) {
    by_loops::Lanes<std::uint64_t, __m256i> r, of(a);
    for (int i = 0; i < 4; ++i) r.at[i] = of.at[n >> (2 * i) & 3];
    return r;
}
BY_LOOPS __m256i _mm256_permute2x128_si256(__m256i a, __m256i b, int n) {
    const __m256i of[2] = {a, b}, parts[2] = {of[n >> 1 & 1], of[n >> 5 & 1]};
    __m128i r[2];
    for (int i = 0; i < 2; ++i) r[i] = _mm256_extracti128_si256(parts[i], n >> (4 * i) & 1);
    return by_loops::load<__m256i>(r);
}
BY_LOOPS __m256i _mm256_dpbusd_avx_epi32(__m256i sum, __m256i a, __m256i b) { return by_loops::dpbusd(sum, a, b); }
BY_LOOPS __m256i _mm256_dpwssd_avx_epi32(__m256i sum, __m256i a, __m256i b) { return by_loops::dpwssd(sum, a, b); }

// ---- AVX-512 --------------------------------------------------------------------------------------------------------

BY_LOOPS __m512 _mm512_cvtph_ps(__m256i a) { return by_loops::of_halves<__m512>(a); }
BY_LOOPS __m512i _mm512_cvtepu16_epi32(__m256i a) {
    return by_loops::converted<__m512i, std::uint32_t, std::uint16_t>(a);
}
BY_LOOPS __m512i _mm512_cvtepu8_epi32(__m128i a) {
    return by_loops::converted<__m512i, std::uint32_t, std::uint8_t>(a);
}
BY_LOOPS __m256i _mm512_cvtepi32_epi16(__m512i a) {
    return by_loops::converted<__m256i, std::uint16_t, std::uint32_t>(a);
}
BY_LOOPS __m128i _mm512_cvtepi32_epi8(__m512i a) {
    return by_loops::converted<__m128i, std::uint8_t, std::uint32_t>(a);
}
BY_LOOPS __m512i _mm512_sllv_epi32(__m512i a, __m512i n) { return a << n; }
BY_LOOPS __m512i _mm512_srlv_epi32(__m512i a, __m512i n) { return a >> n; }
template <class... N>
BY_LOOPS __m512i _mm512_setr_epi64(N... numbers) {
    const std::uint64_t lanes[] = {static_cast<std::uint64_t>(numbers)...};
    return by_loops::load<__m512i>(lanes);
}
BY_LOOPS __m512i _mm512_permutex2var_epi64(__m512i a, __m512i index, __m512i b) {
    return by_loops::choose<std::uint64_t>(a, index, b);
}
BY_LOOPS __m512i _mm512_permutex2var_epi16(__m512i a, __m512i index, __m512i b) {
    return by_loops::choose<std::uint16_t>(a, index, b);
}
BY_LOOPS __m512i _mm512_permutexvar_epi16(__m512i index, __m512i a) {
    return by_loops::choose<std::uint16_t>(a, index & 0x001f001f, a);
}
BY_LOOPS __m512i _mm512_shuffle_i64x2(__m512i a, __m512i b, int n) {
    const __m512i of[2] = {a, b};
    __m128i r[4];
    for (int i = 0; i < 4; ++i)
        r[i] = by_loops::load<__m128i>(reinterpret_cast<const char*>(&of[i / 2]) + 16 * (n >> (2 * i) & 3));
    return by_loops::load<__m512i>(r);
}
BY_LOOPS __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) { return by_loops::dpbusd(sum, a, b); }
BY_LOOPS __m512i _mm512_dpwssd_epi32(__m512i sum, __m512i a, __m512i b) { return by_loops::dpwssd(sum, a, b); }

// ---- not used -------------------------------------------------------------------------------------------------------

#define BY_LOOPS_UNUSED(result, name) \
    template <class... Arguments>     \
    result name(Arguments...)
inline constexpr int _CMP_LT_OQ = 17;
BY_LOOPS_UNUSED(__m256, _mm256_blendv_ps);
BY_LOOPS_UNUSED(__m256, _mm256_cmp_ps);
BY_LOOPS_UNUSED(__m256, _mm256_max_ps);
BY_LOOPS_UNUSED(__mmask16, _mm512_cmp_ps_mask);
BY_LOOPS_UNUSED(__m512, _mm512_mask_blend_ps);
BY_LOOPS_UNUSED(__m512, _mm512_max_ps);
BY_LOOPS_UNUSED(__m512, _mm512_maskz_scalef_ps);
#undef BY_LOOPS_UNUSED

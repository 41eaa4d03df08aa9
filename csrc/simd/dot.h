// Products of codes and digits, summed in integers: each lane of 32 bits has four unsigned bytes (codes of four columns
// of a row), and four signed ones (the digits of these columns, the same in all lanes).
//
// With VNNI one instruction adds four products to a lane; so it does with Arm's i8mm, and with dotprod, where codes are
// signed, too. Without it, AVX2 and AVX-512 add pairs of products to sums of
// 16 bits: eight instructions' products fit where codes are at most 15, four where they are at most 31, two up to 63.
// Codes of eight bits are taken apart into halves of four bits. Both also multiply words of 16 bits, two a lane.
#pragma once

#include "simd/simd.h"

#if defined(KARAT_AVX512) && defined(__AVX512VNNI__)
#define KARAT_VNNI
#elif defined(KARAT_AVX2) && defined(__AVXVNNI__)
#define KARAT_VNNI
#elif defined(KARAT_AVX512) || defined(KARAT_AVX2)
#define KARAT_PAIRS  // sums of 16 bits
#elif defined(KARAT_NEON) && defined(__ARM_FEATURE_DOTPROD)
#define KARAT_DOTPROD
#endif

#if defined(KARAT_VNNI) || defined(KARAT_PAIRS)
#define KARAT_WORDS
#endif
#if defined(KARAT_WORDS) || defined(KARAT_DOTPROD)
#define KARAT_PASSES  // of a few tokens (kernels/integer_few.cpp); where products are loops they gain nothing
#define KARAT_UNROLL_STEPS _Pragma("GCC unroll 8")
#else
#define KARAT_UNROLL_STEPS
#endif

namespace karat::KARAT_ISA_NAMESPACE {

// Four digits, in all lanes.
KARAT_INLINE i32x16 four_digits(const std::int8_t* p) {
    std::int32_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return iset1(bits);
}

// The sum is made before it goes on, and stays where it is: a compiler that adds in another order, as it may, makes all
// products first and keeps them in memory.
#if defined(KARAT_AVX512)
KARAT_INLINE void in_order(i32x16& a) { __asm__("" : "+v"(a.v)); }
#elif defined(KARAT_AVX2)
KARAT_INLINE void in_order(i32x16& a) { __asm__("" : "+x"(a.lo), "+x"(a.hi)); }
#endif

#if defined(KARAT_WORDS)
// Words of 16 bits, two a lane.
KARAT_INLINE i32x16 subtract_words(i32x16 a, i32x16 b) { return KARAT_ALL(sub_epi16); }
KARAT_INLINE i32x16 products_of_words(i32x16 a, i32x16 b) { return KARAT_ALL(madd_epi16); }
#if defined(KARAT_AVX512)
KARAT_INLINE i32x16 high_bytes(i32x16 a) { return {_mm512_srli_epi16(a.v, 8)}; }
#else
KARAT_INLINE i32x16 high_bytes(i32x16 a) { return {_mm256_srli_epi16(a.lo, 8), _mm256_srli_epi16(a.hi, 8)}; }
#endif

// sum + both products of each lane.
KARAT_INLINE void add_words(i32x16& sum, i32x16 a, i32x16 b) {
#if defined(KARAT_PAIRS)
    sum = sum + products_of_words(a, b);
    in_order(sum);
#elif defined(KARAT_AVX512)
    sum = {_mm512_dpwssd_epi32(sum.v, a.v, b.v)};
#else
    sum = {_mm256_dpwssd_avx_epi32(sum.lo, a.lo, b.lo), _mm256_dpwssd_avx_epi32(sum.hi, a.hi, b.hi)};
#endif
}

#if defined(KARAT_AVX512)
alignas(64) constexpr std::uint16_t kOrderOfWords[] = {0,  4,  2,  6,  8,  12, 10, 14, 16, 20, 18, 22, 24, 28, 26, 30,
                                                       32, 36, 34, 38, 40, 44, 42, 46, 48, 52, 50, 54, 56, 60, 58, 62};
#endif

// Integers of 32 columns as words of 16 bits: of each four columns 0, 2, 1, 3.
struct Words {
    alignas(64) std::int16_t word[32];

    // Of vectors of 16 columns.
    static KARAT_INLINE Words of(i32x16 first, i32x16 second) {
        Words words;
#if defined(KARAT_AVX512)  // by one instruction
        istore(words.word, {_mm512_permutex2var_epi16(first.v, iload(kOrderOfWords).v, second.v)});
#else
        const i32x16 halves[2] = {first, second};
        for (int i = 0; i < 2; ++i) {
            const __m256i narrow = _mm256_permute4x64_epi64(_mm256_packs_epi32(halves[i].lo, halves[i].hi), 0xd8);
            _mm256_store_si256(reinterpret_cast<__m256i*>(words.word + 16 * i),
                               _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(narrow, 0xd8), 0xd8));
        }
#endif
        return words;
    }

#if defined(KARAT_PAIRS)
    // Of the digits of int16.
    static KARAT_INLINE Words of(const std::int8_t* first, const std::int8_t* last) {
        Words words;
        for (int i = 0; i < 32; i += 16)
            _mm256_store_si256(reinterpret_cast<__m256i*>(words.word + i),
                               _mm256_add_epi16(_mm256_slli_epi16(in_order(first + i), 8), in_order(last + i)));
        return words;
    }
#endif
    // Words 2 pair and 2 pair + 1, in all lanes.
    KARAT_INLINE i32x16 two(int pair) const {
        return four_digits(reinterpret_cast<const std::int8_t*>(word + 2 * pair));
    }

#if defined(KARAT_PAIRS)
private:
    static KARAT_INLINE __m256i in_order(const std::int8_t* sixteen) {
        const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen));
        return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes, order));
    }
#endif
};
#endif

// Codes of at most kLargest are multiplied as those of at most kClass<kLargest>: 15, 31, 63, 255; with VNNI all are the
// same, with dotprod those that are signed bytes as they are.
template <int kLargest>
inline constexpr int kClass =
#if defined(KARAT_PAIRS)
    kLargest > 63   ? 255
    : kLargest > 31 ? 63
    : kLargest > 15 ? 31
                    : 15;
#elif defined(KARAT_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
    kLargest > 127 ? 255 : 127;
#else
    255;
#endif

// Codes of a class as they are multiplied.
template <int kLargest>
struct Factors {
    static constexpr bool kInWords = false;
#if defined(KARAT_PAIRS)
    static constexpr int kParts = kLargest > 63 ? 2 : 1;
#else
    static constexpr int kParts = 1;
#endif
#if defined(KARAT_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
    static constexpr int kLess = kLargest > 127 ? 128 : 0;  // than bytes are
#else
    static constexpr int kLess = 0;
#endif
    i32x16 part[kParts];

    static KARAT_INLINE Factors of(i32x16 bytes) {
        if constexpr (kLess == 128) return {{bytes ^ iset1(static_cast<std::int32_t>(0x80808080))}};
        else if constexpr (kParts == 1) return {{bytes}};
        else return {{bytes & iset1(0x0f0f0f0f), (bytes >> 4) & iset1(0x0f0f0f0f)}};
    }
};

// Codes as words of 16 bits, or `zero` less than their bytes: of columns 0 and 2, and of columns 1 and 3 of four. One
// instruction multiplies two of them with words of x, and adds the products.
inline constexpr int kWords = 1 << 16;

#if defined(KARAT_WORDS)
template <>
struct Factors<kWords> {
    static constexpr bool kInWords = true;
    static constexpr int kParts = 2, kLess = 0;
    i32x16 part[kParts];

    static KARAT_INLINE Factors of(i32x16 bytes) { return {{bytes & iset1(0x00ff00ff), high_bytes(bytes)}}; }
    static KARAT_INLINE Factors of(i32x16 bytes, int zero) {
        const i32x16 each = iset1(zero * 0x00010001);
        const Factors words = of(bytes);
        return {{subtract_words(words.part[0], each), subtract_words(words.part[1], each)}};
    }
};
#endif

#if defined(KARAT_PAIRS)
KARAT_INLINE i32x16 pairs(i32x16 a, i32x16 b) { return KARAT_ALL(maddubs_epi16); }  // of codes and digits
KARAT_INLINE i32x16 add_pairs(i32x16 a, i32x16 b) { return KARAT_ALL(add_epi16); }

// A sum over kSteps steps of four columns.
template <int kLargest, int kSteps>
struct Dots {
    static constexpr int kParts = Factors<kLargest>::kParts;
    static constexpr int kFits = 32767 / (2 * 128 * (kLargest > 63 ? 15 : kLargest));  // steps
    i32x16 narrow[kParts], wide;

    KARAT_INLINE void begin(i32x16 sum = iset1(0)) { wide = sum; }
    // After `step` steps (a constant).
    KARAT_INLINE void add(int step, const Factors<kLargest>& codes, i32x16 digits) {
        for (int part = 0; part < kParts; ++part) {
            const i32x16 products = pairs(codes.part[part], digits);
            narrow[part] = step % kFits == 0 ? products : add_pairs(narrow[part], products);
            in_order(narrow[part]);
        }
        if (step % kFits == kFits - 1 && step + 1 < kSteps) wide = wide + joined();
    }
    KARAT_INLINE i32x16 total() const { return wide + joined(); }

private:
    KARAT_INLINE i32x16 joined() const {
        const i32x16 low = products_of_words(narrow[0], iset1(0x00010001));
        if constexpr (kParts == 1) return low;
        else return low + products_of_words(narrow[1], iset1(0x00100010));
    }
};

#else

#if defined(KARAT_VNNI) && defined(KARAT_AVX512)
KARAT_INLINE i32x16 add_products(i32x16 sum, i32x16 codes, i32x16 digits) {
    return {_mm512_dpbusd_epi32(sum.v, codes.v, digits.v)};
}
#elif defined(KARAT_VNNI)
KARAT_INLINE i32x16 add_products(i32x16 sum, i32x16 codes, i32x16 digits) {
    return {_mm256_dpbusd_avx_epi32(sum.lo, codes.lo, digits.lo), _mm256_dpbusd_avx_epi32(sum.hi, codes.hi, digits.hi)};
}
#elif defined(KARAT_DOTPROD)
KARAT_INLINE i32x16 add_products(i32x16 sum, i32x16 codes, i32x16 digits) {
    for (std::size_t i = 0; i < kRegisters; ++i) {
        const int8x16_t signed_bytes = vreinterpretq_s8_s32(digits.v[i]);
#if defined(__ARM_FEATURE_MATMUL_INT8)
        sum.v[i] = vusdotq_s32(sum.v[i], vreinterpretq_u8_s32(codes.v[i]), signed_bytes);
#else
        sum.v[i] = vdotq_s32(sum.v[i], vreinterpretq_s8_s32(codes.v[i]), signed_bytes);
#endif
    }
    return sum;
}
#else
// The same in loops, for any machine.
KARAT_INLINE i32x16 add_products(i32x16 sum, i32x16 codes, i32x16 digits) {
    std::int32_t sums[kLanes];
    std::uint8_t code[4 * kLanes];
    std::int8_t digit[4 * kLanes];
    std::memcpy(sums, &sum, sizeof sums);
    std::memcpy(code, &codes, sizeof code);
    std::memcpy(digit, &digits, sizeof digit);
    for (int lane = 0; lane < kLanes; ++lane)
        for (int j = 0; j < 4; ++j) sums[lane] += code[4 * lane + j] * digit[4 * lane + j];
    std::memcpy(&sum, sums, sizeof sums);
    return sum;
}
#endif

template <int kLargest, int kSteps>
struct Dots {
    i32x16 sum;
    KARAT_INLINE void begin(i32x16 before = iset1(0)) { sum = before; }
    KARAT_INLINE void add(int, const Factors<kLargest>& codes, i32x16 digits) {
        sum = add_products(sum, codes.part[0], digits);
    }
    KARAT_INLINE i32x16 total() const { return sum; }
};
#endif

}  // namespace karat::KARAT_ISA_NAMESPACE

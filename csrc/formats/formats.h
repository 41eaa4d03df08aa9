// How the kernels read each stored format. A new block format is one struct below, and its line in packed.h
// (docs/adding-a-format.md).
//
// A block format is cut into sub-blocks of `kSub` columns (16 or 32) that share a scale, and a minimum where the format
// has one: weight = scale * code + minimum. Codes are small integers: `Codes::of(block, s, c)` has those of columns
// 4 c … 4 c + 3 of sub-block s as unsigned bytes, kZero more than they are and at most kLargest.
#pragma once

#include "formats/codes.h"

namespace karat::KARAT_ISA_NAMESPACE {

// Sizes of a block, and of a number.
template <Format format>
struct Sizes {
    static constexpr int kColumns = static_cast<int>(kFormats[static_cast<int>(format)].block_columns);
    static constexpr int kBytes = static_cast<int>(kFormats[static_cast<int>(format)].block_bytes);
};

// Stored floats: columns are read one by one.
struct F32 : Sizes<Format::F32> {
    static KARAT_INLINE f32x16 read(const std::uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
};
struct F16 : Sizes<Format::F16> {
    static KARAT_INLINE f32x16 read(const std::uint8_t* p) { return load_f16(p); }
};
struct BF16 : Sizes<Format::BF16> {
    static KARAT_INLINE f32x16 read(const std::uint8_t* p) { return load_bf16(p); }
};

// Floats of a byte that share a scale: in a packed block it is word 0, the floats follow, four columns a word.
// `number` has column j of a word.
//
// E4M3 is a sign, four bits of exponent and three of mantissa: at the place of a float32's they are the number / 2^120,
// its denormal numbers too. All ones, NaN in E4M3, is 480 here: who makes blocks gives one that has NaN the scale NaN.
struct E4M3 : Sizes<Format::E4M3> {
    static constexpr int kWordColumns = 4, kWords = kColumns / kWordColumns;
    static KARAT_INLINE f32x16 number(i32x16 word, int j) {
        const i32x16 bits = shift_signed(word << (24 - 8 * j), 4) & iset1(static_cast<std::int32_t>(0x87f00000));
        return as_float(bits) * set1(0x1p120f);
    }
};

// ---- blocks of 32 columns -------------------------------------------------------------------------------------------
//
// `Scales` has what those of all sub-blocks are made of. A minimum that a file stores to be subtracted is 0 - its
// product, in one instruction: fma(0 - minimum, number, 0) has the same bits, a zero's sign included.

struct ScaleBefore {
    f32x16 value;
    static KARAT_INLINE ScaleBefore of(const Block& b) { return {load_f16(b.scales)}; }
    KARAT_INLINE f32x16 scale(const Block&, int) const { return value; }
};

struct ScaleAndMinimum {  // word 0
    f32x16 value, least;
    static KARAT_INLINE ScaleAndMinimum of(const Block& b) {
        return {f16_of_low_halves(b.word(0)), f16_of_low_halves(b.word(0) >> 16)};
    }
    KARAT_INLINE f32x16 scale(const Block&, int) const { return value; }
    KARAT_INLINE f32x16 minimum(const Block&, int) const { return least; }
};

struct Q8_0 : Sizes<Format::Q8_0> {
    static constexpr int kSub = 32;
    static constexpr bool kHasMinimum = false;
    struct Codes {
        static constexpr int kZero = 128, kLargest = 255;
        static KARAT_INLINE Codes make() { return {}; }
        KARAT_INLINE i32x16 of(const Block& b, int, int c) const {
            return b.word(c) ^ iset1(static_cast<std::int32_t>(0x80808080));
        }
    };
    using Scales = ScaleBefore;
};

// Columns 0 … 15 are the low halves of the 16 bytes of four words, 16 … 31 the high ones.
constexpr KARAT_INLINE int nibble_in_byte(int c) { return 4 * (c / 4); }

template <int kFirstWord, int kZeroPoint>
struct HalfBytes {
    static constexpr int kZero = kZeroPoint, kLargest = 15;
    static KARAT_INLINE HalfBytes make() { return {}; }
    KARAT_INLINE i32x16 of(const Block& b, int, int c) const {
        return low_bits<4>(b.word(kFirstWord + c % 4) >> nibble_in_byte(c));
    }
};

// Codes that are looked up by four bits in kBytes, those of sub-block s in four words from kFirst + kStep * s on.
template <const std::uint8_t (&kBytes)[16], int kZeroPoint, int kLargestByte, int kFirst, int kStep>
struct LookedUp {
    static constexpr int kZero = kZeroPoint, kLargest = kLargestByte;
    decltype(byte_table<kBytes>()) table;
    static KARAT_INLINE LookedUp make() { return {byte_table<kBytes>()}; }
    KARAT_INLINE i32x16 of(const Block& b, int s, int c) const {
        return bytes_of_table(table, low_bits<4>(b.word(kFirst + kStep * s + c % 4) >> nibble_in_byte(c)));
    }
};

constexpr std::uint8_t kNonLinearBytes[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
template <int kFirst, int kStep>
using NonLinear = LookedUp<kNonLinearBytes, 128, 255, kFirst, kStep>;

struct Q4_0 : Sizes<Format::Q4_0> {
    static constexpr int kSub = 32;
    static constexpr bool kHasMinimum = false;
    using Codes = HalfBytes<0, 8>;
    using Scales = ScaleBefore;
};

struct IQ4_NL : Sizes<Format::IQ4_NL> {
    static constexpr int kSub = 32;
    static constexpr bool kHasMinimum = false;
    using Codes = NonLinear<0, 0>;
    using Scales = ScaleBefore;
};

// Twice the numbers of E2M1, which are 0 … 12 and -12 … 0. A scale is half of 2^(byte - 127): a product of two powers
// that are normal numbers, which it need not be itself.
constexpr std::uint8_t kTwiceE2M1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

struct MXFP4 : Sizes<Format::MXFP4> {
    static constexpr int kSub = 32;
    static constexpr bool kHasMinimum = false;
    using Codes = LookedUp<kTwiceE2M1, 12, 24, 0, 0>;
    struct Scales {
        f32x16 value;
        static KARAT_INLINE Scales of(const Block& b) {
            const i32x16 byte = iload_bytes(b.scales), half = byte >> 1;
            return {power(half) * power(byte - half)};
        }
        KARAT_INLINE f32x16 scale(const Block&, int) const { return value; }

    private:
        static KARAT_INLINE f32x16 power(i32x16 exponent) { return as_float((exponent + iset1(127 - 64)) << 23); }
    };
};

struct Q4_1 : Sizes<Format::Q4_1> {  // word 0: scale and minimum
    static constexpr int kSub = 32;
    static constexpr bool kHasMinimum = true;
    using Codes = HalfBytes<1, 0>;
    using Scales = ScaleAndMinimum;
};

// The fifth bits of all 32 codes are one word, that of column 4 c + j at bit c of byte j (packed.cpp); the nibbles
// follow it.
template <int kHighBits, int kZeroPoint>
struct FiveBits {
    static constexpr int kZero = kZeroPoint, kLargest = 31;
    static KARAT_INLINE FiveBits make() { return {}; }
    KARAT_INLINE i32x16 of(const Block& b, int, int c) const {
        return two_fields<4, 1>(b.word(kHighBits + 1 + c % 4) >> nibble_in_byte(c), b.word(kHighBits), c);
    }
};

struct Q5_0 : Sizes<Format::Q5_0> {
    static constexpr int kSub = 32;
    static constexpr bool kHasMinimum = false;
    using Codes = FiveBits<0, 16>;
    using Scales = ScaleBefore;
};

struct Q5_1 : Sizes<Format::Q5_1> {  // word 0: scale and minimum
    static constexpr int kSub = 32;
    static constexpr bool kHasMinimum = true;
    using Codes = FiveBits<1, 0>;
    using Scales = ScaleAndMinimum;
};

// ---- blocks of 256 columns in sub-blocks ----------------------------------------------------------------------------
//
// `s` is the sub-block. Where 16 columns share a scale, a file has sub-block s in half n = s / 8 of the block, at bits
// 2 r with r = s % 8 / 2, in the first or second 16 bytes (s % 2) of 32. Q2_K and Q3_K are arranged anew (packed.cpp).

struct Q2_K : Sizes<Format::Q2_K> {  // 16 bytes of scales and minima, 64 of codes, then scale and minimum of the block
    static constexpr int kSub = 16;
    static constexpr bool kHasMinimum = true;
    struct Codes {
        static constexpr int kZero = 0, kLargest = 3;
        static KARAT_INLINE Codes make() { return {}; }
        KARAT_INLINE i32x16 of(const Block& b, int s, int c) const { return low_bits<2>(b.word(4 + s) >> (2 * c)); }
    };
    struct Scales {
        f32x16 value, negated;
        static constexpr int kWord = 20;                                    // of the block
        static constexpr KARAT_INLINE int word_of(int s) { return s / 4; }  // of a sub-block
        static KARAT_INLINE Scales of(const Block& b) {
            return {f16_of_low_halves(b.word(kWord)), zero() - f16_of_low_halves(b.word(kWord) >> 16)};
        }
        KARAT_INLINE f32x16 scale(const Block& b, int s) const {
            return value * to_float(b.from_byte(word_of(s), s % 4) & iset1(15));
        }
        KARAT_INLINE f32x16 minimum(const Block& b, int s) const {
            return fma(negated, to_float((b.from_byte(word_of(s), s % 4) >> 4) & iset1(15)), zero());
        }
    };
};

struct Q3_K : Sizes<Format::Q3_K> {  // 96 bytes of codes, 12 of scales
    static constexpr int kSub = 16;
    static constexpr bool kHasMinimum = false;
    struct Codes {  // of two sub-blocks three words: low bits of the first, of the second, third bits of both
        static constexpr int kZero = 4, kLargest = 7;
        static KARAT_INLINE Codes make() { return {}; }
        KARAT_INLINE i32x16 of(const Block& b, int s, int c) const {
            const int first = s / 2 * 3;
            return two_fields<2, 1>(b.word(first + s % 2) >> (2 * c), b.word(first + 2), s % 2 * 4 + c);
        }
    };
    struct Scales {
        f32x16 value;
        static constexpr int kWord = 26;                                             // of the block
        static constexpr KARAT_INLINE int word_of(int s) { return 24 + s % 8 / 4; }  // of a sub-block
        static KARAT_INLINE Scales of(const Block& b) { return {load_f16(b.scales)}; }
        KARAT_INLINE f32x16 scale(const Block& b, int s) const {
            const i32x16 low = (b.from_byte(word_of(s), s % 4) >> (4 * (s / 8))) & iset1(15);
            const i32x16 high = ((b.word(kWord) >> (8 * (s % 4) + 2 * (s / 4))) & iset1(3)) << 4;
            return value * to_float((low | high) - iset1(32));
        }
    };
};

// Six bits for each scale and each minimum, in the 12 bytes that begin at word 1, and what they are multiples of in
// word 0.
struct SixBitScales {
    f32x16 value, negated;
    static KARAT_INLINE SixBitScales of(const Block& b) {
        return {f16_of_low_halves(b.word(0)), zero() - f16_of_low_halves(b.word(0) >> 16)};
    }
    KARAT_INLINE f32x16 scale(const Block& b, int s) const { return value * six_bits<0>(b, s); }
    KARAT_INLINE f32x16 minimum(const Block& b, int s) const { return fma(negated, six_bits<4>(b, s), zero()); }

private:
    template <int kMinimum>
    static KARAT_INLINE f32x16 six_bits(const Block& b, int s) {
        const i32x16 own = b.from_byte(1 + kMinimum / 4, s % 4);
        if (s < 4) return to_float(own & iset1(63));
        const i32x16 low = b.from_byte(3, s % 4) >> kMinimum, high = own >> 2;
        return to_float((low & iset1(15)) | (high & iset1(48)));
    }
};

// Word 0: scale and minimum of the block; then 12 bytes of scales and minima, 128 of codes.
struct Q4_K : Sizes<Format::Q4_K> {
    static constexpr int kSub = 32;
    static constexpr bool kHasMinimum = true;
    struct Codes {
        static constexpr int kZero = 0, kLargest = 15;
        static KARAT_INLINE Codes make() { return {}; }
        KARAT_INLINE i32x16 of(const Block& b, int s, int c) const {
            return low_bits<4>(b.word(4 + 8 * (s / 2) + c) >> (4 * (s % 2)));
        }
    };
    using Scales = SixBitScales;
};

struct Q5_K : Sizes<Format::Q5_K> {  // as Q4_K, with 32 bytes of fifth bits before the codes
    static constexpr int kSub = 32;
    static constexpr bool kHasMinimum = true;
    struct Codes {
        static constexpr int kZero = 0, kLargest = 31;
        static KARAT_INLINE Codes make() { return {}; }
        KARAT_INLINE i32x16 of(const Block& b, int s, int c) const {
            return two_fields<4, 1>(b.word(12 + 8 * (s / 2) + c) >> (4 * (s % 2)), b.word(4 + c), s);
        }
    };
    using Scales = SixBitScales;
};

struct Q6_K : Sizes<Format::Q6_K> {  // 128 bytes of low halves, 64 of two high bits, 16 signed scales
    static constexpr int kSub = 16;
    static constexpr bool kHasMinimum = false;
    struct Codes {
        static constexpr int kZero = 32, kLargest = 63;
        static KARAT_INLINE Codes make() { return {}; }
        KARAT_INLINE i32x16 of(const Block& b, int s, int c) const {
            const int n = s / 8, r = s % 8 / 2, at = 4 * (s % 2) + c;
            return two_fields<4, 2>(b.word(16 * n + 8 * (r % 2) + at) >> (4 * (r / 2)), b.word(32 + 8 * n + at), 2 * r);
        }
    };
    struct Scales {
        f32x16 value;
        static KARAT_INLINE Scales of(const Block& b) { return {load_f16(b.scales)}; }
        KARAT_INLINE f32x16 scale(const Block& b, int s) const {
            return value * to_float(shift_signed(b.from_byte(48 + s / 4, s % 4) << 24, 24));
        }
    };
};

// Word 0: scale, and two high bits of each sub-block's; word 1: their low halves; then 128 bytes of codes.
struct IQ4_XS : Sizes<Format::IQ4_XS> {
    static constexpr int kSub = 32;
    static constexpr bool kHasMinimum = false;
    using Codes = NonLinear<2, 4>;
    struct Scales {
        f32x16 value;
        static KARAT_INLINE Scales of(const Block& b) { return {f16_of_low_halves(b.word(0))}; }
        KARAT_INLINE f32x16 scale(const Block& b, int s) const {
            const i32x16 low = (b.word(1) >> (4 * s)) & iset1(15), high = ((b.word(0) >> (16 + 2 * s)) & iset1(3)) << 4;
            return value * to_float((low | high) - iset1(32));
        }
    };
};

// Of one sub-block of a block.
template <class Fmt>
KARAT_INLINE f32x16 scale_of(const Block& b, int s) {
    return Fmt::Scales::of(b).scale(b, s);
}
template <class Fmt>
KARAT_INLINE f32x16 minimum_of(const Block& b, int s) {
    return Fmt::Scales::of(b).minimum(b, s);
}

}  // namespace karat::KARAT_ISA_NAMESPACE

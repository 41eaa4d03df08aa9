// How the kernels read each stored format. A new block format is one struct below and a line in packed.h and linear.h.
//
// A block format is cut into sub-blocks of `kSub` columns (16 or 32) that share a scale, and a minimum where the format
// has one: weight = scale * code + minimum. Codes are small integers, exact in float32.
#pragma once

#include <array>
#include <type_traits>

#include "packed.h"
#include "simd.h"

namespace karat::KARAT_ISA_NAMESPACE {

// Stored floats: columns are read one by one.
struct F32 {
    static constexpr int kBytes = 4;
    static KARAT_INLINE f32x16 read(const std::uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
};
struct F16 {
    static constexpr int kBytes = 2;
    static KARAT_INLINE f32x16 read(const std::uint8_t* p) { return load_f16(p); }
};
struct BF16 {
    static constexpr int kBytes = 2;
    static KARAT_INLINE f32x16 read(const std::uint8_t* p) { return load_bf16(p); }
};

// One group's part of a packed block.
struct Block {
    const std::uint8_t* scales;  // [16] 16 bits
    const std::uint8_t* words;   // of this group; the next word of the block is `stride` bytes on
    std::size_t stride;

    KARAT_INLINE i32x16 word(int i) const { return iload(words + static_cast<std::size_t>(i) * stride); }
};

template <class Fmt>
KARAT_INLINE Block block_of(const std::uint8_t* block, int group, int groups) {
    constexpr bool has_scale = Fmt::kBytes % 4 != 0;
    const std::size_t lanes = static_cast<std::size_t>(groups) * kGroupRows;
    return {block + static_cast<std::size_t>(group) * 2 * kGroupRows,
            block + (has_scale ? 2 * lanes : 0) + static_cast<std::size_t>(group) * 4 * kGroupRows, 4 * lanes};
}

// Bits `at` … `at` + kWidth - 1 of each lane as a number, less `bias`. They are not shifted: where the mantissa of a power
// of two has them, a bit of it counts what it should, and the power is subtracted, exactly. With kSigned the field is a
// two's complement, and `bias` comes off besides.
template <int kWidth, bool kSigned = false>
KARAT_INLINE f32x16 field(i32x16 word, int at, float bias = 0) {
    constexpr int kMantissa = 23, kShift = kWidth > 4 ? 16 : 12;
    if (at + kWidth > kMantissa) {
        word = word >> kShift;
        at -= kShift;
    }
    constexpr int kTop = kSigned ? 1 << (kWidth - 1) : 0;  // flipped, it makes a two's complement count from 0
    const std::int32_t power = (127 + kMantissa - at) << kMantissa;
    const float offset = static_cast<float>(1 << (kMantissa - at)) + static_cast<float>(kTop) + bias;
    return as_float(masked_xor(word, ((1 << kWidth) - 1) << at, power | (kTop << at))) - set1(offset);
}

// v shifted so that bit `from` comes to bit `to`.
KARAT_INLINE i32x16 move_bit(i32x16 v, int from, int to) { return from >= to ? v >> (from - to) : v << (to - from); }

// Byte j (0 … 3) of each lane, as an integer.
KARAT_INLINE i32x16 byte_of(i32x16 v, int j) { return (v >> (8 * j)) & iset1(255); }

// Up to six bits less `bias`, from bit `at` of the low (0) or high (1) half of each lane. With AVX-512 both halves are
// looked up at once, which takes fewer instructions than two fields, and other ports of Zen 4 than the multiply-add.
template <int kWidth, int kBias>
struct Bits {
#if defined(KARAT_AVX512)
    std::conditional_t<kWidth == 6, WideLut, Lut> lut;
    static constexpr std::array<float, 64> kCodes = [] {
        std::array<float, 64> codes{};
        for (int i = 0; i < 64; ++i) codes[i] = static_cast<float>((i & ((1 << kWidth) - 1)) - kBias);
        return codes;
    }();
    static KARAT_INLINE Bits make() {
        if constexpr (kWidth == 6)
            return {make_wide_lut(kCodes.data())};
        else
            return {make_lut(kCodes.data())};
    }
    KARAT_INLINE f32x16 in(i32x16 word, int half, int at) const { return look_up(lut, word, half, at); }
#else
    static KARAT_INLINE Bits make() { return {}; }
    KARAT_INLINE f32x16 in(i32x16 word, int half, int at) const { return field<kWidth>(word, 16 * half + at, kBias); }
#endif
};

// Formats whose codes are looked up by four bits.
struct NonLinear {
    Lut lut;
    static constexpr float kCodes[32] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
                                         -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
};

// Columns are asked for by fours, column 4 c + j of a sub-block as (c, j): mostly byte j of one word.
KARAT_INLINE int half_of(int j) { return j / 2; }
KARAT_INLINE int byte_in_half(int j) { return 8 * (j % 2); }

// ---- blocks of 32 columns --------------------------------------------------------------------------------------------

struct Q8_0 {
    static constexpr int kColumns = 32, kBytes = 34, kSub = 32;
    static constexpr bool kHasMinimum = false;
    struct Codes {
        static KARAT_INLINE Codes make() { return {}; }
        KARAT_INLINE f32x16 code(const Block& b, int, int c, int j) const { return field<8, true>(b.word(c), 8 * j); }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int) { return load_f16(b.scales); }
};

// Columns 0 … 15 are the low halves of the 16 bytes that begin at word `first`, 16 … 31 the high ones: the word of a
// column, and the column's place in a half of it.
KARAT_INLINE i32x16 nibbles(const Block& b, int first, int c) { return b.word(first + c % 4); }
KARAT_INLINE int nibble_at(int c, int j) { return byte_in_half(j) + 4 * (c / 4); }

struct Q4_0 {
    static constexpr int kColumns = 32, kBytes = 18, kSub = 32;
    static constexpr bool kHasMinimum = false;
    struct Codes {
        Bits<4, 8> bits;
        static KARAT_INLINE Codes make() { return {Bits<4, 8>::make()}; }
        KARAT_INLINE f32x16 code(const Block& b, int, int c, int j) const {
            return bits.in(nibbles(b, 0, c), half_of(j), nibble_at(c, j));
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int) { return load_f16(b.scales); }
};

struct IQ4_NL {
    static constexpr int kColumns = 32, kBytes = 18, kSub = 32;
    static constexpr bool kHasMinimum = false;
    struct Codes : NonLinear {
        static KARAT_INLINE Codes make() { return {{make_lut(kCodes)}}; }
        KARAT_INLINE f32x16 code(const Block& b, int, int c, int j) const {
            return look_up(lut, nibbles(b, 0, c), half_of(j), nibble_at(c, j));
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int) { return load_f16(b.scales); }
};

struct Q4_1 {  // word 0: scale and minimum
    static constexpr int kColumns = 32, kBytes = 20, kSub = 32;
    static constexpr bool kHasMinimum = true;
    struct Codes {
        Bits<4, 0> bits;
        static KARAT_INLINE Codes make() { return {Bits<4, 0>::make()}; }
        KARAT_INLINE f32x16 code(const Block& b, int, int c, int j) const {
            return bits.in(nibbles(b, 1, c), half_of(j), nibble_at(c, j));
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int) { return f16_of_low_halves(b.word(0)); }
    static KARAT_INLINE f32x16 minimum(const Block& b, int) { return f16_of_low_halves(b.word(0) >> 16); }
};

// The fifth bits of all 32 codes are one word, column k at bit k; the nibbles follow it. The five bits of columns 4 c + j
// (j 0 or 1) and 4 c + j + 2 in the low bits of both halves, with others above them.
template <int kHighBits>
KARAT_INLINE i32x16 five_bits(const Block& b, int c, int j) {
    constexpr int kFirst = 1 << 4, kSecond = 1 << 20;
    const i32x16 fifths = b.word(kHighBits), four = nibbles(b, kHighBits + 1, c) >> nibble_at(c, j);
    const i32x16 first = move_bit(fifths, 4 * c + j, 4), second = move_bit(fifths, 4 * c + j + 2, 20);
    return (four & iset1(~(kFirst | kSecond))) | (first & iset1(kFirst)) | (second & iset1(kSecond));
}

struct Q5_0 {
    static constexpr int kColumns = 32, kBytes = 22, kSub = 32;
    static constexpr bool kHasMinimum = false;
    struct Codes {
        Bits<5, 16> bits;
        static KARAT_INLINE Codes make() { return {Bits<5, 16>::make()}; }
        KARAT_INLINE f32x16 code(const Block& b, int, int c, int j) const {
            return bits.in(five_bits<0>(b, c, j % 2), half_of(j), 0);
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int) { return load_f16(b.scales); }
};

struct Q5_1 {  // word 0: scale and minimum
    static constexpr int kColumns = 32, kBytes = 24, kSub = 32;
    static constexpr bool kHasMinimum = true;
    struct Codes {
        Bits<5, 0> bits;
        static KARAT_INLINE Codes make() { return {Bits<5, 0>::make()}; }
        KARAT_INLINE f32x16 code(const Block& b, int, int c, int j) const {
            return bits.in(five_bits<1>(b, c, j % 2), half_of(j), 0);
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int) { return f16_of_low_halves(b.word(0)); }
    static KARAT_INLINE f32x16 minimum(const Block& b, int) { return f16_of_low_halves(b.word(0) >> 16); }
};

// ---- blocks of 256 columns in sub-blocks -------------------------------------------------------------------------------
//
// `s` is the sub-block. Where 16 columns share a scale, sub-block s lies in half n = s / 8 of the block, at bits
// 2 r with r = s % 8 / 2, in the first or second 16 bytes (s % 2) of 32.

struct Q2_K {  // 16 bytes of scales and minima, 64 of codes, then scale and minimum of the block
    static constexpr int kColumns = 256, kBytes = 84, kSub = 16;
    static constexpr bool kHasMinimum = true;
    struct Codes {
        Bits<2, 0> bits;
        static KARAT_INLINE Codes make() { return {Bits<2, 0>::make()}; }
        KARAT_INLINE f32x16 code(const Block& b, int s, int c, int j) const {
            const i32x16 word = b.word(4 + 8 * (s / 8) + 4 * (s % 2) + c);
            return bits.in(word, half_of(j), byte_in_half(j) + 2 * (s % 8 / 2));
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int s) {
        return f16_of_low_halves(b.word(20)) * to_float(byte_of(b.word(s / 4), s % 4) & iset1(15));
    }
    static KARAT_INLINE f32x16 minimum(const Block& b, int s) {
        return zero() - f16_of_low_halves(b.word(20) >> 16) * to_float(byte_of(b.word(s / 4), s % 4) >> 4);
    }
};

struct Q3_K {  // 32 bytes of third bits, 64 of two bits, 12 of scales
    static constexpr int kColumns = 256, kBytes = 110, kSub = 16;
    static constexpr bool kHasMinimum = false;
    struct Codes {
        Bits<3, 4> bits;
        static KARAT_INLINE Codes make() { return {Bits<3, 4>::make()}; }
        KARAT_INLINE f32x16 code(const Block& b, int s, int c, int j) const {
            const int n = s / 8, r = s % 8 / 2, part = s % 2;
            const i32x16 low = (b.word(8 + 8 * n + 4 * part + c) >> (2 * r)) & iset1(0x03030303);
            const i32x16 high = ((b.word(4 * part + c) >> (4 * n + r)) & iset1(0x01010101)) << 2;
            return bits.in(low | high, half_of(j), byte_in_half(j));
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int s) {
        const i32x16 low = byte_of(b.word(24 + s % 8 / 4), s % 4) >> (4 * (s / 8));
        const i32x16 high = byte_of(b.word(26), s % 4) >> (2 * (s / 4));
        const i32x16 six = (low & iset1(15)) | ((high & iset1(3)) << 4);
        return load_f16(b.scales) * to_float(six - iset1(32));
    }
};

// The 6-bit scale (or, with 4, minimum) of sub-block s, from the 12 bytes that begin at word 1.
template <int kMinimum>
KARAT_INLINE f32x16 six_bits(const Block& b, int s) {
    if (s < 4) return to_float(byte_of(b.word(1 + kMinimum / 4), s) & iset1(63));
    const i32x16 low = byte_of(b.word(3), s - 4) >> kMinimum;
    const i32x16 high = byte_of(b.word(1 + kMinimum / 4), s - 4) >> 6;
    return to_float((low & iset1(15)) | (high << 4));
}

struct Q4_K {  // word 0: scale and minimum of the block; 12 bytes of scales and minima; 128 of codes
    static constexpr int kColumns = 256, kBytes = 144, kSub = 32;
    static constexpr bool kHasMinimum = true;
    struct Codes {
        Bits<4, 0> bits;
        static KARAT_INLINE Codes make() { return {Bits<4, 0>::make()}; }
        KARAT_INLINE f32x16 code(const Block& b, int s, int c, int j) const {
            return bits.in(b.word(4 + 8 * (s / 2) + c), half_of(j), byte_in_half(j) + 4 * (s % 2));
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int s) {
        return f16_of_low_halves(b.word(0)) * six_bits<0>(b, s);
    }
    static KARAT_INLINE f32x16 minimum(const Block& b, int s) {
        return zero() - f16_of_low_halves(b.word(0) >> 16) * six_bits<4>(b, s);
    }
};

struct Q5_K {  // as Q4_K, with 32 bytes of fifth bits before the codes
    static constexpr int kColumns = 256, kBytes = 176, kSub = 32;
    static constexpr bool kHasMinimum = true;
    struct Codes {
        Bits<5, 0> bits;
        static KARAT_INLINE Codes make() { return {Bits<5, 0>::make()}; }
        KARAT_INLINE f32x16 code(const Block& b, int s, int c, int j) const {
            const i32x16 low = (b.word(12 + 8 * (s / 2) + c) >> (4 * (s % 2))) & iset1(0x0f0f0f0f);
            const i32x16 high = ((b.word(4 + c) >> s) & iset1(0x01010101)) << 4;
            return bits.in(low | high, half_of(j), byte_in_half(j));
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int s) {
        return f16_of_low_halves(b.word(0)) * six_bits<0>(b, s);
    }
    static KARAT_INLINE f32x16 minimum(const Block& b, int s) {
        return zero() - f16_of_low_halves(b.word(0) >> 16) * six_bits<4>(b, s);
    }
};

struct Q6_K {  // 128 bytes of low halves, 64 of two high bits, 16 signed scales
    static constexpr int kColumns = 256, kBytes = 210, kSub = 16;
    static constexpr bool kHasMinimum = false;
    struct Codes {
        Bits<6, 32> bits;
        static KARAT_INLINE Codes make() { return {Bits<6, 32>::make()}; }
        KARAT_INLINE f32x16 code(const Block& b, int s, int c, int j) const {
            const int n = s / 8, r = s % 8 / 2, at = 4 * (s % 2) + c;
            const i32x16 low = (b.word(16 * n + 8 * (r % 2) + at) >> (4 * (r / 2))) & iset1(0x0f0f0f0f);
            const i32x16 high = ((b.word(32 + 8 * n + at) >> (2 * r)) & iset1(0x03030303)) << 4;
            return bits.in(low | high, half_of(j), byte_in_half(j));
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int s) {
        const i32x16 signed_byte = shift_signed(b.word(48 + s / 4) << (24 - 8 * (s % 4)), 24);
        return load_f16(b.scales) * to_float(signed_byte);
    }
};

struct IQ4_XS {  // word 0: scale, and two high bits of each sub-block's; word 1: their low halves; 128 bytes of codes
    static constexpr int kColumns = 256, kBytes = 136, kSub = 32;
    static constexpr bool kHasMinimum = false;
    struct Codes : NonLinear {
        static KARAT_INLINE Codes make() { return {{make_lut(kCodes)}}; }
        KARAT_INLINE f32x16 code(const Block& b, int s, int c, int j) const { 
            return look_up(lut, nibbles(b, 2 + 4 * s, c), half_of(j), nibble_at(c, j));
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int s) {
        const i32x16 low = (b.word(1) >> (4 * s)) & iset1(15), high = ((b.word(0) >> (16 + 2 * s)) & iset1(3)) << 4;
        return f16_of_low_halves(b.word(0)) * to_float((low | high) - iset1(32));
    }
};

}  // namespace karat::KARAT_ISA_NAMESPACE

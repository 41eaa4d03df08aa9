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

// Byte j of a lane: the half that it is in, and its first bit there.
KARAT_INLINE int half_of(int j) { return j / 2; }
KARAT_INLINE int byte_in_half(int j) { return 8 * (j % 2); }

// One group's part of a packed block.
struct Block {
    const std::uint8_t* scales;  // [16] 16 bits
    const std::uint8_t* words;   // of this group; the next word of the block is `stride` bytes on
    std::size_t stride;

    KARAT_INLINE i32x16 word(int i) const { return iload(words + static_cast<std::size_t>(i) * stride); }

    // The same from its byte j (0 … 3) on, with bytes of what is stored behind it above (kPackedSlack).
    KARAT_INLINE i32x16 from_byte(int i, int j) const { return iload(words + static_cast<std::size_t>(i) * stride + j); }
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

// Bits `at` … `at` + kWidth - 1 of byte j of word i of a block, so. With AVX-512 all bytes of a word come from one load; else
// from loads that begin at them, which leave one mask and one power for all of them, and those in registers.
template <int kWidth, bool kSigned = false>
KARAT_INLINE f32x16 stored_field(const Block& b, int i, int j, int at, float bias = 0) {
#if defined(KARAT_AVX512)
    return field<kWidth, kSigned>(b.word(i), 8 * j + at, bias);
#else
    if (!kSigned && at == 0 && bias == 0) return to_float(b.from_byte(i, j) & iset1((1 << kWidth) - 1));
    return field<kWidth, kSigned>(b.from_byte(i, j), at, bias);
#endif
}

// Codes of up to six bits, less kBias: `stored`, that at bit `at` of byte j of word i of a block, and `byte`, that which is
// byte j of a word.
template <int kWidth, int kBias>
struct NumberBits {
    static KARAT_INLINE NumberBits make() { return {}; }
    KARAT_INLINE f32x16 stored(const Block& b, int i, int j, int at) const {
        return stored_field<kWidth>(b, i, j, at, kBias);
    }
    KARAT_INLINE f32x16 byte(i32x16 word, int j) const {
#if defined(KARAT_AVX512)
        return field<kWidth>(word, 8 * j, kBias);
#else
        return number_of_byte(word, j, kBias);
#endif
    }
};

#if defined(KARAT_AVX512)
// Look-ups take fewer instructions than fields, and other ports of Zen 4 than the multiply-add.
template <int kWidth>
struct LutOf { using Type = NibbleLut; };
template <>
struct LutOf<5> { using Type = Lut; };
template <>
struct LutOf<6> { using Type = WideLut; };

template <int kWidth, int kBias>
struct LookedUpBits {
    typename LutOf<kWidth>::Type lut;
    static constexpr std::array<float, 64> kCodes = [] {
        std::array<float, 64> codes{};
        for (int i = 0; i < 64; ++i) codes[i] = static_cast<float>((i & ((1 << kWidth) - 1)) - kBias);
        return codes;
    }();
    static KARAT_INLINE LookedUpBits make() { return {make_lut<typename LutOf<kWidth>::Type>(kCodes.data())}; }
    KARAT_INLINE f32x16 stored(const Block& b, int i, int j, int at) const {
        return look_up(lut, b.word(i), half_of(j), byte_in_half(j) + at);
    }
    KARAT_INLINE f32x16 byte(i32x16 word, int j) const { return look_up(lut, word, half_of(j), byte_in_half(j)); }
};

template <int kWidth, int kBias>
using Bits = std::conditional_t<kWidth <= kLookUpBits, LookedUpBits<kWidth, kBias>, NumberBits<kWidth, kBias>>;
#else
template <int kWidth, int kBias>
using Bits = NumberBits<kWidth, kBias>;
#endif

// ---- blocks of 32 columns --------------------------------------------------------------------------------------------
//
// Columns are asked for by fours, column 4 c + j of a sub-block as (c, j): mostly byte j of one word. Where a code is put
// together of several words, `bytes` has the four of (c, 0 … 3) as the bytes of a word, each kBytesBias more than it is.

struct Q8_0 {
    static constexpr int kColumns = 32, kBytes = 34, kSub = 32;
    static constexpr bool kHasMinimum = false;
    struct Codes {
        static KARAT_INLINE Codes make() { return {}; }
        KARAT_INLINE f32x16 code(const Block& b, int, int c, int j) const { return stored_field<8, true>(b, c, j, 0); }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int) { return load_f16(b.scales); }
};

// Columns 0 … 15 are the low halves of the 16 bytes of four words, 16 … 31 the high ones.
KARAT_INLINE int nibble_in_byte(int c) { return 4 * (c / 4); }

// Codes that are looked up by four bits, those of sub-block s in four words from kFirst + kStep * s on.
template <int kFirst, int kStep>
struct NonLinear {
    NibbleLut lut;
    static constexpr float kCodes[32] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
                                         -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static KARAT_INLINE NonLinear make() { return {make_lut<NibbleLut>(kCodes)}; }
    static KARAT_INLINE i32x16 word(const Block& b, int s, int c) { return b.word(kFirst + kStep * s + c % 4); }
#if defined(KARAT_AVX2)
    static constexpr int kBytesBias = kLutBias;
    KARAT_INLINE i32x16 bytes(const Block& b, int s, int c) const {
        return look_up_bytes(lut, word(b, s, c) >> nibble_in_byte(c));
    }
    KARAT_INLINE f32x16 code(const Block& b, int s, int c, int j) const {
        return number_of_byte(bytes(b, s, c), j, kBytesBias);
    }
#else
    KARAT_INLINE f32x16 code(const Block& b, int s, int c, int j) const {
        return look_up(lut, word(b, s, c), half_of(j), byte_in_half(j) + nibble_in_byte(c));
    }
#endif
};

struct Q4_0 {
    static constexpr int kColumns = 32, kBytes = 18, kSub = 32;
    static constexpr bool kHasMinimum = false;
    struct Codes {
        Bits<4, 8> bits;
        static KARAT_INLINE Codes make() { return {Bits<4, 8>::make()}; }
        KARAT_INLINE f32x16 code(const Block& b, int, int c, int j) const {
            return bits.stored(b, c % 4, j, nibble_in_byte(c));
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int) { return load_f16(b.scales); }
};

struct IQ4_NL {
    static constexpr int kColumns = 32, kBytes = 18, kSub = 32;
    static constexpr bool kHasMinimum = false;
    using Codes = NonLinear<0, 0>;
    static KARAT_INLINE f32x16 scale(const Block& b, int) { return load_f16(b.scales); }
};

struct Q4_1 {  // word 0: scale and minimum
    static constexpr int kColumns = 32, kBytes = 20, kSub = 32;
    static constexpr bool kHasMinimum = true;
    struct Codes {
        Bits<4, 0> bits;
        static KARAT_INLINE Codes make() { return {Bits<4, 0>::make()}; }
        KARAT_INLINE f32x16 code(const Block& b, int, int c, int j) const {
            return bits.stored(b, 1 + c % 4, j, nibble_in_byte(c));
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int) { return f16_of_low_halves(b.word(0)); }
    static KARAT_INLINE f32x16 minimum(const Block& b, int) { return f16_of_low_halves(b.word(0) >> 16); }
};

// The fifth bits of all 32 codes are one word, column k at bit k; the nibbles follow it.
template <int kHighBits, int kBias>
struct FiveBits {
    Bits<5, kBias> bits;
    static KARAT_INLINE FiveBits make() { return {Bits<5, kBias>::make()}; }
#if defined(KARAT_TWO_PORTS)
    KARAT_INLINE f32x16 code(const Block& b, int, int c, int j) const {  // four at a time put together
        const i32x16 low = b.word(kHighBits + 1 + c % 4) >> nibble_in_byte(c);
        return bits.byte(bits_of_two(low, bytes_of_bits(b.word(kHighBits), c), 0x0f0f0f0f), j);
    }
#elif defined(KARAT_AVX512)
    static KARAT_INLINE i32x16 move_bit(i32x16 v, int from, int to) { return from >= to ? v >> (from - to) : v << (to - from); }
    // Those of columns 4 c + j (j 0 or 1) and 4 c + j + 2 in the low bits of both halves, with others above them.
    static KARAT_INLINE i32x16 pair(const Block& b, int c, int j) {
        constexpr int kFirst = 1 << 4, kSecond = 1 << 20;
        const i32x16 fifths = b.word(kHighBits);
        const i32x16 four = b.word(kHighBits + 1 + c % 4) >> (byte_in_half(j) + nibble_in_byte(c));
        const i32x16 first = move_bit(fifths, 4 * c + j, 4), second = move_bit(fifths, 4 * c + j + 2, 20);
        return (four & iset1(~(kFirst | kSecond))) | (first & iset1(kFirst)) | (second & iset1(kSecond));
    }
    KARAT_INLINE f32x16 code(const Block& b, int, int c, int j) const {
        return look_up(bits.lut, pair(b, c, j % 2), half_of(j), 0);
    }
#else
    KARAT_INLINE i32x16 bytes(const Block& b, int, int c) const {
        const i32x16 low = (b.word(kHighBits + 1 + c % 4) >> nibble_in_byte(c)) & iset1(0x0f0f0f0f);
        const i32x16 high = bytes_of_bits(b.word(kHighBits), c) & iset1(0x10101010);
        return low | high;
    }
    static constexpr int kBytesBias = kBias;
    KARAT_INLINE f32x16 code(const Block& b, int s, int c, int j) const { return bits.byte(bytes(b, s, c), j); }
#endif
};

struct Q5_0 {
    static constexpr int kColumns = 32, kBytes = 22, kSub = 32;
    static constexpr bool kHasMinimum = false;
    using Codes = FiveBits<0, 16>;
    static KARAT_INLINE f32x16 scale(const Block& b, int) { return load_f16(b.scales); }
};

struct Q5_1 {  // word 0: scale and minimum
    static constexpr int kColumns = 32, kBytes = 24, kSub = 32;
    static constexpr bool kHasMinimum = true;
    using Codes = FiveBits<1, 0>;
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
            return bits.stored(b, 4 + 8 * (s / 8) + 4 * (s % 2) + c, j, 2 * (s % 8 / 2));
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int s) {
        return f16_of_low_halves(b.word(20)) * to_float(byte_of(b.word(s / 4), s % 4) & iset1(15));
    }
    static KARAT_INLINE f32x16 minimum(const Block& b, int s) {
        return zero() - f16_of_low_halves(b.word(20) >> 16) * to_float(byte_of(b.word(s / 4), s % 4) >> 4);
    }
};

// Of each byte, the kLow low bits of `low`, and above them the kHigh bits of `high` that begin at bit `at`. With AVX-512
// others lie above these, which a look-up does not read.
template <int kLow, int kHigh>
KARAT_INLINE i32x16 joined(i32x16 low, i32x16 high, int at) {
    constexpr std::int32_t kEach = 0x01010101, kBelow = ((1 << kLow) - 1) * kEach;
#if defined(KARAT_AVX512)
    return bits_of_two(low, rotate_right(high, at - kLow), kBelow);
#else
    return (low & iset1(kBelow)) | (((high >> at) & iset1(((1 << kHigh) - 1) * kEach)) << kLow);
#endif
}

struct Q3_K {  // 32 bytes of third bits, 64 of two bits, 12 of scales
    static constexpr int kColumns = 256, kBytes = 110, kSub = 16;
    static constexpr bool kHasMinimum = false;
    struct Codes {
        static constexpr int kBytesBias = 4;
        Bits<3, kBytesBias> bits;
        static KARAT_INLINE Codes make() { return {Bits<3, kBytesBias>::make()}; }
        KARAT_INLINE i32x16 bytes(const Block& b, int s, int c) const {
            const int n = s / 8, r = s % 8 / 2, part = s % 2;
            return joined<2, 1>(b.word(8 + 8 * n + 4 * part + c) >> (2 * r), b.word(4 * part + c), 4 * n + r);
        }
        KARAT_INLINE f32x16 code(const Block& b, int s, int c, int j) const { return bits.byte(bytes(b, s, c), j); }
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
            return bits.stored(b, 4 + 8 * (s / 2) + c, j, 4 * (s % 2));
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
        static constexpr int kBytesBias = 0;
        Bits<5, kBytesBias> bits;
        static KARAT_INLINE Codes make() { return {Bits<5, kBytesBias>::make()}; }
        KARAT_INLINE i32x16 bytes(const Block& b, int s, int c) const {
            return joined<4, 1>(b.word(12 + 8 * (s / 2) + c) >> (4 * (s % 2)), b.word(4 + c), s);
        }
        KARAT_INLINE f32x16 code(const Block& b, int s, int c, int j) const { return bits.byte(bytes(b, s, c), j); }
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
        static constexpr int kBytesBias = 32;
        Bits<6, kBytesBias> bits;
        static KARAT_INLINE Codes make() { return {Bits<6, kBytesBias>::make()}; }
        KARAT_INLINE i32x16 bytes(const Block& b, int s, int c) const {
            const int n = s / 8, r = s % 8 / 2, at = 4 * (s % 2) + c;
            return joined<4, 2>(b.word(16 * n + 8 * (r % 2) + at) >> (4 * (r / 2)), b.word(32 + 8 * n + at), 2 * r);
        }
        KARAT_INLINE f32x16 code(const Block& b, int s, int c, int j) const { return bits.byte(bytes(b, s, c), j); }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int s) {
        const i32x16 signed_byte = shift_signed(b.word(48 + s / 4) << (24 - 8 * (s % 4)), 24);
        return load_f16(b.scales) * to_float(signed_byte);
    }
};

struct IQ4_XS {  // word 0: scale, and two high bits of each sub-block's; word 1: their low halves; 128 bytes of codes
    static constexpr int kColumns = 256, kBytes = 136, kSub = 32;
    static constexpr bool kHasMinimum = false;
    using Codes = NonLinear<2, 4>;
    static KARAT_INLINE f32x16 scale(const Block& b, int s) {
        const i32x16 low = (b.word(1) >> (4 * s)) & iset1(15), high = ((b.word(0) >> (16 + 2 * s)) & iset1(3)) << 4;
        return f16_of_low_halves(b.word(0)) * to_float((low | high) - iset1(32));
    }
};

}  // namespace karat::KARAT_ISA_NAMESPACE

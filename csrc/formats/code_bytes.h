// Codes of block formats as unsigned bytes, as integer kernels multiply them. `of(block, s, c)` has those of columns
// 4 c … 4 c + 3 of sub-block s, kZero more than the codes are and at most kLargest.
#pragma once

#include "formats/formats.h"
#include "simd/dot.h"

namespace karat::KARAT_ISA_NAMESPACE {

constexpr KARAT_INLINE std::int32_t in_each_byte(int byte) { return byte * 0x01010101; }

// The low kBits bits of each byte.
template <int kBits>
KARAT_INLINE i32x16 low_bits(i32x16 word) {
    return word & iset1(in_each_byte((1 << kBits) - 1));
}

// The low kLow bits of each byte of `low`, and above them kHigh bits of `high`, from bit `at` of each byte on.
template <int kLow, int kHigh>
KARAT_INLINE i32x16 two_fields(i32x16 low, i32x16 high, int at) {
    if constexpr (kHigh == 1) {
        if (at >= kLow) return low_bits<kLow>(low) | ((high >> (at - kLow)) & iset1(in_each_byte(1 << kLow)));
        return low_bits<kLow>(low) | ((high << (kLow - at)) & iset1(in_each_byte(1 << kLow)));
    } else {
        constexpr std::int32_t bits = in_each_byte(((1 << kHigh) - 1) << kLow);
        return low_bits<kLow>(low) | ((at >= kLow ? high >> (at - kLow) : high << (kLow - at)) & iset1(bits));
    }
}

template <class Fmt>
struct CodeBytes;

template <>
struct CodeBytes<Q8_0> {
    static constexpr int kZero = 128, kLargest = 255;
    static KARAT_INLINE CodeBytes make() { return {}; }
    KARAT_INLINE i32x16 of(const Block& b, int, int c) const {
        return b.word(c) ^ iset1(static_cast<std::int32_t>(0x80808080));
    }
};

// Columns 0 … 15 are the low halves of the 16 bytes of four words, 16 … 31 the high ones.
template <int kFirstWord, int kZeroPoint>
struct HalfBytes {
    static constexpr int kZero = kZeroPoint, kLargest = 15;
    static KARAT_INLINE HalfBytes make() { return {}; }
    KARAT_INLINE i32x16 of(const Block& b, int, int c) const {
        return low_bits<4>(b.word(kFirstWord + c % 4) >> nibble_in_byte(c));
    }
};
template <>
struct CodeBytes<Q4_0> : HalfBytes<0, 8> {
    static KARAT_INLINE CodeBytes make() { return {}; }
};
template <>
struct CodeBytes<Q4_1> : HalfBytes<1, 0> {
    static KARAT_INLINE CodeBytes make() { return {}; }
};

template <int kHighBits, int kZeroPoint>
struct FiveBitBytes {
    static constexpr int kZero = kZeroPoint, kLargest = 31;
    KARAT_INLINE i32x16 of(const Block& b, int, int c) const {
        return two_fields<4, 1>(b.word(kHighBits + 1 + c % 4) >> nibble_in_byte(c), b.word(kHighBits), c);
    }
};
template <>
struct CodeBytes<Q5_0> : FiveBitBytes<0, 16> {
    static KARAT_INLINE CodeBytes make() { return {}; }
};
template <>
struct CodeBytes<Q5_1> : FiveBitBytes<1, 0> {
    static KARAT_INLINE CodeBytes make() { return {}; }
};

// Those that are looked up by four bits.
constexpr std::uint8_t kNonLinearBytes[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

template <int kFirst, int kStep>
struct LookedUpBytes {
    static constexpr int kZero = 128, kLargest = 255;
    i32x16 table;
    KARAT_INLINE i32x16 of(const Block& b, int s, int c) const {
        return bytes_of_table(table, low_bits<4>(b.word(kFirst + kStep * s + c % 4) >> nibble_in_byte(c)));
    }
};
template <>
struct CodeBytes<IQ4_NL> : LookedUpBytes<0, 0> {
    static KARAT_INLINE CodeBytes make() { return {{byte_table(kNonLinearBytes)}}; }
};
template <>
struct CodeBytes<IQ4_XS> : LookedUpBytes<2, 4> {
    static KARAT_INLINE CodeBytes make() { return {{byte_table(kNonLinearBytes)}}; }
};

template <>
struct CodeBytes<Q2_K> {
    static constexpr int kZero = 0, kLargest = 3;
    static KARAT_INLINE CodeBytes make() { return {}; }
    KARAT_INLINE i32x16 of(const Block& b, int s, int c) const { return low_bits<2>(b.word(4 + s) >> (2 * c)); }
};

template <>
struct CodeBytes<Q3_K> {  // of two sub-blocks three words: low bits of the first, of the second, third bits of both
    static constexpr int kZero = 4, kLargest = 7;
    static KARAT_INLINE CodeBytes make() { return {}; }
    KARAT_INLINE i32x16 of(const Block& b, int s, int c) const {
        const int first = s / 2 * 3;
        return two_fields<2, 1>(b.word(first + s % 2) >> (2 * c), b.word(first + 2), s % 2 * 4 + c);
    }
};

template <>
struct CodeBytes<Q4_K> {
    static constexpr int kZero = 0, kLargest = 15;
    static KARAT_INLINE CodeBytes make() { return {}; }
    KARAT_INLINE i32x16 of(const Block& b, int s, int c) const {
        return low_bits<4>(b.word(4 + 8 * (s / 2) + c) >> (4 * (s % 2)));
    }
};

template <>
struct CodeBytes<Q5_K> {
    static constexpr int kZero = 0, kLargest = 31;
    static KARAT_INLINE CodeBytes make() { return {}; }
    KARAT_INLINE i32x16 of(const Block& b, int s, int c) const {
        return two_fields<4, 1>(b.word(12 + 8 * (s / 2) + c) >> (4 * (s % 2)), b.word(4 + c), s);
    }
};

template <>
struct CodeBytes<Q6_K> {
    static constexpr int kZero = 32, kLargest = 63;
    static KARAT_INLINE CodeBytes make() { return {}; }
    KARAT_INLINE i32x16 of(const Block& b, int s, int c) const {
        const int n = s / 8, r = s % 8 / 2, at = 4 * (s % 2) + c;
        return two_fields<4, 2>(b.word(16 * n + 8 * (r % 2) + at) >> (4 * (r / 2)), b.word(32 + 8 * n + at), 2 * r);
    }
};

}  // namespace karat::KARAT_ISA_NAMESPACE

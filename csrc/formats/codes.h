// How codes are read from the words of a packed block (packed.h): by their bits, or by a look-up. formats.h is composed
// of these.
#pragma once

#include <type_traits>

#include "contract/packed.h"
#include "simd/simd.h"

namespace karat::KARAT_ISA_NAMESPACE {

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
    KARAT_INLINE i32x16 from_byte(int i, int j) const {
        return iload(words + static_cast<std::size_t>(i) * stride + j);
    }
};

template <class Fmt>
KARAT_INLINE Block block_of(const std::uint8_t* block, int group, int groups) {
    constexpr bool has_scale = Fmt::kBytes % 4 != 0;
    const std::size_t lanes = static_cast<std::size_t>(groups) * kGroupRows;
    return {block + static_cast<std::size_t>(group) * 2 * kGroupRows,
            block + (has_scale ? 2 * lanes : 0) + static_cast<std::size_t>(group) * 4 * kGroupRows, 4 * lanes};
}

// Bits `at` … `at` + kWidth - 1 of each lane as a number, less `bias`. The bits are not shifted: they are put into the
// mantissa of the power of two in which bit `at` counts 1, and the power is subtracted, exactly. With kSigned the field
// is a two's complement.
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

// The same for bits `at` … `at` + kWidth - 1 of byte j of word i of a block. With AVX-512 all bytes of a word come from
// one load. Elsewhere each byte has a load that begins with it, so that all bytes share one mask and one power, which
// stay in registers.
template <int kWidth, bool kSigned = false>
KARAT_INLINE f32x16 stored_field(const Block& b, int i, int j, int at, float bias = 0) {
#if defined(KARAT_AVX512)
    return field<kWidth, kSigned>(b.word(i), 8 * j + at, bias);
#else
    if (!kSigned && at == 0 && bias == 0) return to_float(b.from_byte(i, j) & iset1((1 << kWidth) - 1));
    return field<kWidth, kSigned>(b.from_byte(i, j), at, bias);
#endif
}

// Codes of up to six bits, less kBias. stored: the code at bit `at` of byte j of word i of a block. byte: the code that
// is byte j of a word.
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
struct LutOf {
    using Type = NibbleLut;
};
template <>
struct LutOf<5> {
    using Type = Lut;
};
template <>
struct LutOf<6> {
    using Type = WideLut;
};

namespace {
template <int kWidth, int kBias>
constexpr auto kCodes = [] {
    Floats<64> codes{};
    for (int i = 0; i < 64; ++i) codes.at[i] = static_cast<float>((i & ((1 << kWidth) - 1)) - kBias);
    return codes;
}();
}  // namespace

template <int kWidth, int kBias>
struct LookedUpBits {
    typename LutOf<kWidth>::Type lut;
    static KARAT_INLINE LookedUpBits make() {
        return {make_lut<typename LutOf<kWidth>::Type>(kCodes<kWidth, kBias>.at)};
    }
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

// Of each byte, the kLow low bits of `low`, and above them the kHigh bits of `high` that begin at bit `at`. With
// AVX-512 others lie above these, which neither a look-up nor a field reads.
template <int kLow, int kHigh>
KARAT_INLINE i32x16 joined(i32x16 low, i32x16 high, int at) {
    constexpr std::int32_t kEach = 0x01010101, kBelow = ((1 << kLow) - 1) * kEach;
#if defined(KARAT_AVX512)
    return bits_of_two(low, rotate_right(high, at - kLow), kBelow);
#else
    return (low & iset1(kBelow)) | (((high >> at) & iset1(((1 << kHigh) - 1) * kEach)) << kLow);
#endif
}

}  // namespace karat::KARAT_ISA_NAMESPACE

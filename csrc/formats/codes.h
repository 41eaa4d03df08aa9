// How codes are read from the words of a packed block (packed.h), four at a time as the bytes of a word: by their bits,
// or by a look-up. formats.h is composed of these.
#pragma once

#include "contract/packed.h"
#if defined(KARAT_ONE_LANE)
#include "simd/lane.h"
#else
#include "simd/integers.h"
#endif

namespace karat::KARAT_ISA_NAMESPACE {

// One group's part of a packed block; one row's, where there is one lane.
struct Block {
    const std::uint8_t* scales;  // [16] 16 bits, or 8
    const std::uint8_t* words;   // of this group; the next word of the block is `stride` bytes on
    std::size_t stride;

    KARAT_INLINE i32x16 word(int i) const { return iload(words + static_cast<std::size_t>(i) * stride); }

    // The same from its byte j (0 … 3) on, with bytes of what is stored behind it above (kPackedSlack).
    KARAT_INLINE i32x16 from_byte(int i, int j) const {
#if defined(KARAT_ONE_LANE)  // which has no loads that are not aligned
        return word(i) >> (8 * j);
#else
        return iload(words + static_cast<std::size_t>(i) * stride + j);
#endif
    }
};

#if defined(KARAT_ONE_LANE)
// Of row `row` of a panel of `rows`.
template <class Fmt>
KARAT_INLINE Block block_of(const std::uint8_t* block, int row, int rows) {
    constexpr int scale_bytes = Fmt::kBytes % 4;
    return {block + scale_bytes * row, block + scale_bytes * rows + 4 * row, static_cast<std::size_t>(4 * rows)};
}
#else
template <class Fmt>
KARAT_INLINE Block block_of(const std::uint8_t* block, int group, int groups) {
    constexpr std::size_t scale_bytes = Fmt::kBytes % 4;
    const std::size_t lanes = static_cast<std::size_t>(groups) * kGroupRows;
    const std::size_t first = static_cast<std::size_t>(group) * kGroupRows;
    return {block + scale_bytes * first, block + scale_bytes * lanes + 4 * first, 4 * lanes};
}
#endif

constexpr KARAT_INLINE std::int32_t in_each_byte(int byte) { return byte * 0x01010101; }

// The low kBits bits of each byte.
template <int kBits>
KARAT_INLINE i32x16 low_bits(i32x16 word) {
    return word & iset1(in_each_byte((1 << kBits) - 1));
}

// The low kLow bits of each byte of `low`, and above them kHigh bits of `high`, from bit `at` of each byte on.
template <int kLow, int kHigh>
KARAT_INLINE i32x16 two_fields(i32x16 low, i32x16 high, int at) {
    constexpr std::int32_t bits = in_each_byte(((1 << kHigh) - 1) << kLow);
    return low_bits<kLow>(low) | ((at >= kLow ? high >> (at - kLow) : high << (kLow - at)) & iset1(bits));
}

}  // namespace karat::KARAT_ISA_NAMESPACE

// How the kernels read each stored format. A new block format is one struct below and a line in packed.h and linear.cpp.
//
// A block format is cut into sub-blocks of `kSub` columns (16 or 32) that share a scale, and a minimum where the format
// has one: weight = scale * code + minimum. Codes are small integers, exact in float32.
#pragma once

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

struct Q8_0 {
    static constexpr int kColumns = 32, kBytes = 34, kSub = 32;
    static constexpr bool kHasMinimum = false;
    struct Codes {
        static KARAT_INLINE Codes make() { return {}; }
        KARAT_INLINE f32x16 code(const Block& b, int, int k) const {
            return to_float(shift_signed(b.word(k / 4) << (24 - 8 * (k % 4)), 24));
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int) { return load_f16(b.scales); }
};

struct Q4_0 {
    static constexpr int kColumns = 32, kBytes = 18, kSub = 32;
    static constexpr bool kHasMinimum = false;
    struct Codes {
        Lut16 lut;
        static KARAT_INLINE Codes make() {
            static constexpr float kValues[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
            return {make_lut(kValues)};
        }
        // Columns 0 … 15 are the low halves of the 16 bytes, 16 … 31 the high ones.
        KARAT_INLINE f32x16 code(const Block& b, int, int k) const {
            return look_up(lut, b.word(k % 16 / 4) >> (8 * (k % 4) + 4 * (k / 16)));
        }
    };
    static KARAT_INLINE f32x16 scale(const Block& b, int) { return load_f16(b.scales); }
};

}  // namespace karat::KARAT_ISA_NAMESPACE

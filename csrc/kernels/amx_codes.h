// What a thread unpacks of a panel for tiles (amx_many.cpp, which alone includes this file), what it arranges of x, and
// where.
#pragma once

#include "kernels/amx_rows.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

constexpr int kGroups = kPanelGroups, kMostSubs = 4;  // of a strip: sub-blocks
constexpr std::size_t kTilesAtOnce = 32, kMostTokens = kTilesAtOnce * kTileRows;
static_assert(kMostTokens <= kTokenBlock);
constexpr std::size_t kBesideBytes = kTileRows * kDigitRowBytes;  // a tile of digits that lie beside each other

// Of a thread.
struct Scratch {
    std::uint8_t* codes;   // [sub-blocks of a strip, groups, tile]
    std::uint8_t* beside;  // [tiles at once, sub-blocks of 32 columns, 1 (int16) or 2, tile]: put_beside
    float* scales;         // [sub-blocks of a strip, lanes]
    float* minima;         // as scales
    float* parts;          // [2, pieces of a strip, groups, 16 x 16]: what tiles stored
    float* panels;         // for each panel at once: its running sums [rows of tiles, kWide], and its leaves

    static constexpr std::size_t kBesideFloats = kTilesAtOnce * 2 * 2 * kBesideBytes / sizeof(float);
    static constexpr std::size_t kCodeFloats = kTileStripColumns * kWide / 2, kScaleFloats = kMostSubs * kWide;
    static constexpr std::size_t kPartFloats = kMostSubs * 3 * kGroups * 256;
    static constexpr std::size_t kSumFloats = (kMostTokens + kTileRows) * kWide;
    static constexpr std::size_t kPanelFloats = kSumFloats + 3 * kTokenBlock * kWide;
    static constexpr std::size_t kFloats =
        kCodeFloats + kBesideFloats + 2 * kScaleFloats + 2 * kPartFloats + kPanelsAtOnce * kPanelFloats;
    KARAT_INLINE explicit Scratch(float* base)
        : codes(reinterpret_cast<std::uint8_t*>(base)), beside(reinterpret_cast<std::uint8_t*>(base + kCodeFloats)),
          scales(base + kCodeFloats + kBesideFloats), minima(scales + kScaleFloats), parts(minima + kScaleFloats),
          panels(parts + 2 * kPartFloats) {}
};

// bf16 of number - kZero, for numbers up to 63.
template <int kZero>
struct HalfTable {
    alignas(64) std::uint16_t of[64];
    constexpr HalfTable() : of{} {
        for (int i = 0; i < 64; ++i) {
            const int magnitude = i < kZero ? kZero - i : i - kZero;
            int exponent = 0;
            while (magnitude >> exponent > 1) ++exponent;
            const int bits = (127 + exponent) << 7 | ((magnitude << 7 >> exponent) & 127);
            of[i] = static_cast<std::uint16_t>(magnitude == 0 ? 0 : bits | (i < kZero ? 0x8000 : 0));
        }
    }
};
template <int kZero>
constexpr HalfTable<kZero> kHalves;

// Bytes 0 and 1, or 2 and 3, of each lane as words.
alignas(64) constexpr std::uint8_t kFirstBytes[16] = {0, 128, 1, 128, 4, 128, 5, 128, 8, 128, 9, 128, 12, 128, 13, 128};

// bf16 of codes: of columns 0 and 1, and of columns 2 and 3 of four.
template <int kLargest, int kZero>
KARAT_INLINE void halves_of(i32x16 four, i32x16& first, i32x16& second) {
    if constexpr (kLargest < 64) {
        const i32x16 order = byte_table<kFirstBytes>();
        const i32x16 pairs[2] = {bytes_of_table(four, order), bytes_of_table(four >> 16, order)};
        const i32x16 low = iload(kHalves<kZero>.of), high = iload(kHalves<kZero>.of + 32);
        const auto look_up = [&](i32x16 words) __attribute__((always_inline)) -> i32x16 {
            if constexpr (kLargest < 32) return {_mm512_permutexvar_epi16(words.v, low.v)};
            else return {_mm512_permutex2var_epi16(low.v, words.v, high.v)};
        };
        first = look_up(pairs[0]);
        second = look_up(pairs[1]);
    } else {
        f32x16 number[4];
        for (int i = 0; i < 4; ++i) number[i] = to_float(((four >> (8 * i)) & iset1(255)) - iset1(kZero));
        const auto pair = [](f32x16 a, f32x16 b) __attribute__((always_inline)) {
            return as_int(a) >> 16 | (as_int(b) & iset1(static_cast<std::int32_t>(0xffff0000)));
        };
        first = pair(number[0], number[1]);
        second = pair(number[2], number[3]);
    }
}

// Columns first … first + count - 1 of a panel of some groups, whose block begins at w. For digits that lie beside each
// other a sub-block has its codes twice.
template <class Fmt, int kZero, bool kTwice>
KARAT_NOINLINE void unpack(const std::uint8_t* w, std::size_t first, std::size_t count, int groups, const Scratch& s) {
    using Codes = typename Fmt::Codes;
    constexpr std::size_t kBytes = Fmt::kSub / 2 * 64, kTileBytes = kTwice ? 2 * kBytes : kBytes;
    const auto codes = Codes::make();
    std::uint8_t* to = s.codes;
    float *scale = s.scales, *minimum = s.minima;
    for (std::size_t k = first; k < first + count; k += Fmt::kSub) {
        const std::size_t number = k / Fmt::kColumns - first / Fmt::kColumns;
        const std::uint8_t* const block = w + number * static_cast<std::size_t>(groups) * kGroupRows * Fmt::kBytes;
        const int sub = static_cast<int>(k % Fmt::kColumns) / Fmt::kSub;
        for (int c = 0; c < Fmt::kSub / 4; ++c)
            for (int g = 0; g < groups; ++g) {
                i32x16 halves[2];
                halves_of<Codes::kLargest, kZero>(codes.of(block_of<Fmt>(block, g, groups), sub, c), halves[0],
                                                  halves[1]);
                std::uint8_t* const rows = to + static_cast<std::size_t>(g) * kTileBytes + c * 128;
                for (std::uint8_t* at = rows; at < rows + kTileBytes; at += kBytes) {
                    istore(at, halves[0]);
                    istore(at + 64, halves[1]);
                }
            }
        for (int g = 0; g < groups; ++g) {
            store(scale + g * kLanes, scale_of<Fmt>(block_of<Fmt>(block, g, groups), sub));
            if constexpr (Fmt::kHasMinimum)
                store(minimum + g * kLanes, minimum_of<Fmt>(block_of<Fmt>(block, g, groups), sub));
        }
        to += kGroups * kTileBytes;
        scale += kWide;
        minimum += kWide;
    }
}

// Of 32 columns of tiles first … last - 1, in sub-blocks of 16: the last two digits beside each other, so that one
// product has both, and before them the first of three, beside zeros.
template <int kDigits>
KARAT_NOINLINE void put_beside(const RowsOfTiles<kDigits>& x, std::size_t first, std::size_t last, std::size_t column,
                               const Scratch& s) {
    constexpr std::size_t kHalf = kDigitRowBytes / 2;
    std::uint8_t* to = s.beside;
    for (std::size_t tile = first; tile < last; ++tile) {
        const std::size_t rows = x.rows_of(tile), digit = rows * kDigitRowBytes;
        const std::uint8_t* const block = x.digits_of(x.block(tile, column));
        for (std::size_t sub = 0; sub < 2; ++sub)
            for (int i = 0; i + 1 < kDigits; ++i, to += kBesideBytes)
                for (std::size_t row = 0; row < rows; ++row) {
                    const std::uint8_t* const from = block + static_cast<std::size_t>(i) * digit + row * kDigitRowBytes;
                    std::uint8_t* const pair = to + row * kDigitRowBytes;
                    std::memcpy(pair, from + sub * kHalf, kHalf);
                    if (i + 2 == kDigits) std::memcpy(pair + kHalf, from + digit + sub * kHalf, kHalf);
                    else std::memset(pair + kHalf, 0, kHalf);
                }
    }
}

}  // namespace
}  // namespace karat::KARAT_ISA_NAMESPACE

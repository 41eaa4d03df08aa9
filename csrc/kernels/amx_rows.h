// Rows of x for tiles (simd/tiles.h): their digits as bf16, exactly. Layers of a few rows have the layout of
// activations.h instead.
//
// Rows are cut into strips of 64 columns and tiles of 16 rows; the last strip may have 32 columns, the last tile fewer
// rows. A block is 32 columns of a row, as there.
//
//     | tops: 4 bytes a row | heads: 16 bytes a block | digits: 64 bytes for each digit of a block, 64-byte aligned |
//     | int16: rows by themselves, in the layout of activations.h |
//
// A top is the row's largest power. Rows by themselves are written where it is too large for tiles (is_large): VNNI's
// kernels multiply those. Heads and digits lie strip by strip, as tiles read them:
//
//     heads of a strip
//     | tile 0                                                             | tile 1 …
//     | block 0: of row 0 | of row 1 | … of row 15 | block 1: of row 0 | … |
//       power, sums of q (columns 0 … 15, 16 … 31), power * sum of all q
//
//     digits of a strip
//     | tile 0                                                                                 | tile 1 …
//     | block 0, first digit: of row 0 | … of row 15 | last digit: of row 0 | … | block 1: …  |
//       32 x bf16
//
// The first of int16's digits lies there 256 times, as does the second of int24's. int16's are multiplied by the power
// besides, which is a power of two: so are then the sums of a tile, and one multiply-add is left for each sub-block.
#pragma once

#include "kernels/integer.h"

namespace karat::KARAT_ISA_NAMESPACE {

// Layers of more rows are multiplied by tiles. A tile takes as long for one row as for 16: at these numbers it should
// take as long as VNNI, by the counts of instructions. Not measured.
constexpr std::size_t kMostRowsWithoutTiles[] = {0, 12, 8, 8};  // by Activations

// With a larger power in x, sums of one digit, times 256, would be infinite.
inline constexpr float kMostPowerInX = 0x1p99f;

inline constexpr std::size_t kTileRows = 16, kTileStripColumns = 64, kHeadBytes = 16, kDigitRowBytes = 64;
inline constexpr int kPowerAt = 0, kSumsAt = 4, kValueAt = 12;  // in a head

// A row's bytes, and what aligning takes of each: rows for tiles are more than eight.
template <int kDigits>
inline constexpr std::size_t kTileBlockBytes =
    kHeadBytes + kDigits * kDigitRowBytes + (kDigits == 2 ? DigitBlock<2>::kBytes : 0);
inline constexpr std::size_t kTileRowBytes = 16;

// Where the parts of rows [rows, columns] lie.
template <int kDigits>
struct RowsOfTiles {
    std::uint8_t *tops, *heads, *digits;
    std::size_t rows, columns;

    KARAT_INLINE RowsOfTiles(std::uint8_t* base, std::size_t rows, std::size_t columns)
        : tops(base), heads(aligned(tops + rows * sizeof(float), 16)),
          digits(aligned(heads + rows * (columns / kDigitColumns) * kHeadBytes, 64)), rows(rows), columns(columns) {}

    KARAT_INLINE std::size_t rows_of(std::size_t tile) const {
        const std::size_t left = rows - tile * kTileRows;
        return left < kTileRows ? left : kTileRows;
    }
    // Of the strip that has column `column`.
    KARAT_INLINE std::size_t blocks_of_strip(std::size_t column) const {
        const std::size_t left = columns - column / kTileStripColumns * kTileStripColumns;
        return (left < kTileStripColumns ? left : kTileStripColumns) / kDigitColumns;
    }
    // The number of a tile's first block in that strip, among all blocks of all rows.
    KARAT_INLINE std::size_t first_block(std::size_t tile, std::size_t column) const {
        const std::size_t begin = column / kTileStripColumns * kTileStripColumns;
        return begin / kDigitColumns * rows + tile * kTileRows * blocks_of_strip(column);
    }
    // The same of the block at that column, of the tile's first row. Blocks of the tile's other rows follow it.
    KARAT_INLINE std::size_t block(std::size_t tile, std::size_t column) const {
        return first_block(tile, column) + column % kTileStripColumns / kDigitColumns * rows_of(tile);
    }
    // Whether VNNI's kernels multiply the row, and the row by itself.
    KARAT_INLINE bool is_large(std::size_t row) const {
        float top;
        std::memcpy(&top, tops + row * sizeof top, sizeof top);
        return kDigits == 2 && top > kMostPowerInX;
    }
    KARAT_INLINE std::uint8_t* by_itself(std::size_t row) const {
        const std::size_t blocks = columns / kDigitColumns;
        return digits_of(rows * blocks) + row * blocks * DigitBlock<kDigits>::kBytes;
    }
    KARAT_INLINE std::uint8_t* head(std::size_t block) const { return heads + block * kHeadBytes; }
    KARAT_INLINE std::uint8_t* digits_of(std::size_t block) const { return digits + block * kDigits * kDigitRowBytes; }

private:
    static KARAT_INLINE std::uint8_t* aligned(std::uint8_t* p, std::uintptr_t bytes) {
        return p + (bytes - reinterpret_cast<std::uintptr_t>(p) % bytes) % bytes;
    }
};

void quantise_for_tiles(Activations activations, const float* x, std::size_t rows, std::size_t columns,
                        std::size_t first, std::size_t last, std::uint8_t* out);
void quantise_row_for_tiles(Activations activations, const float* x, std::size_t columns, const DigitsPlace* places,
                            std::size_t count);
void many_tokens_by_tiles(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch);
std::size_t tile_scratch_bytes();
inline constexpr std::size_t kPanelsAtOnce = 4;

}  // namespace karat::KARAT_ISA_NAMESPACE

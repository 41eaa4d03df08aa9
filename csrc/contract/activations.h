// Rows of activations as integers: numeric contract 5, for weights stored in blocks (karat.ops.integers defines it).
//
// A row is cut into blocks of 32 columns at absolute multiples of 32: x = q * power, rounded. The integers q lie apart
// as signed bytes, their digits: q = the last, plus 256 times the one before it, plus 65536 times the first of three.
//
//     a block
//     byte 0       4                  12          16                  48                  80
//          | power | sums of q        | power *   | int8: digits      |
//          |       | columns 0 … 15   | sum of    | int16: first digit| last digit        |
//          |       | columns 16 … 31  | all q     |
//            float   2 x int32          float       32 x 1 byte         32 x 1 byte
//
//     int24
//     byte 0       4          12   16                     24                      32            64             96
//          | power | sums     |    | sums of first digits | of the last two digits | first digit | second digit | last
//
// Sums are over the 16 columns that the smallest sub-blocks have.
//
// Rows are cut into strips of 256 columns, the last one is shorter. A strip has its blocks of all rows, row by row, and
// strips follow one another: a tile, which has some rows of one strip, reads one stream, which cores read ahead. Where
// rows lay one behind the other it was 4 % slower (benchmarks/log.md, 25 November, night).
#pragma once

#include <cstddef>
#include <cstdint>

namespace karat {

// Layers of many rows multiply int16's q as it is: a block then has 32 words instead of both digits (simd/dot.h).
enum class Activations : int { int8 = 1, int16, int24 };  // digits a column

inline constexpr std::size_t kDigitColumns = 32;

// A block of kDigits digits a column: 1 (int8), 2 or 3 (int24).
template <int kDigits>
struct DigitBlock {
    static constexpr std::size_t kSumsAt = 4, kValueAt = 12, kFirstSumsAt = 16, kLowerSumsAt = 24;
    static constexpr std::size_t kDigitsAt = kDigits == 3 ? 32 : 16;
    static constexpr std::size_t kBytes = kDigitsAt + kDigits * kDigitColumns;
};
inline constexpr std::size_t kDigitBlockBytes[] = {0, DigitBlock<1>::kBytes, DigitBlock<2>::kBytes,
                                                   DigitBlock<3>::kBytes};  // by Activations

inline constexpr std::size_t kStripColumns = 256;

}  // namespace karat

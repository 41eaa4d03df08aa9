// How formats of two and three bits are multiplied: by nibbles. A nibble is the four bits of two codes of two bits, or
// the third bits of four codes. Its columns add one of sixteen products to a sum, and these are the same for all rows.
//
// Such a format has sub-blocks of 16 columns. Codes::word_of(s, 0) is the word with the low two bits of sub-block s,
// those of column 4 c + j at bit 2 c of byte j; Codes::word_of(s, 1), where there are third bits, has that of this
// column at bit Codes::shift_of(s, 1) + c of byte j.
#pragma once

#include "formats/formats.h"

namespace karat::KARAT_ISA_NAMESPACE {

struct Nibble {
    int word, at;         // its first bit, less shift_of
    int column, columns;  // the first one, and how many, four apart
};

// In the order in which they are summed: pairs k, k + 4 of each eight columns, then fours k, k + 4, k + 8, k + 12.
constexpr KARAT_INLINE Nibble nibble(int i) {
    return i < 8 ? Nibble{0, 8 * (i % 4) + 4 * (i / 4), 8 * (i / 4) + i % 4, 2} : Nibble{1, 8 * (i - 8), i - 8, 4};
}
template <class Fmt>
inline constexpr int kNibbles = Fmt::Codes::kWords == 1 ? 8 : 12;

// A nibble's bits as what they count: codes of 0 … 3; third bits of 4, and all columns have 4 less.
inline constexpr int kProducts = 16;
constexpr float kOfPair[2][kProducts] = {{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3},
                                         {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}};
constexpr float kOfFour[4][kProducts] = {{-4, 0, -4, 0, -4, 0, -4, 0, -4, 0, -4, 0, -4, 0, -4, 0},
                                         {-4, -4, 0, 0, -4, -4, 0, 0, -4, -4, 0, 0, -4, -4, 0, 0},
                                         {-4, -4, -4, -4, 0, 0, 0, 0, -4, -4, -4, -4, 0, 0, 0, 0},
                                         {-4, -4, -4, -4, -4, -4, -4, -4, 0, 0, 0, 0, 0, 0, 0, 0}};

// The product of a nibble, as the contract orders its operations. x(column): a number of x. count(values): how often a
// column counts, for the nibble (or for each of sixteen) in question.
template <class X, class Count>
KARAT_INLINE f32x16 product(Nibble n, const X& x, const Count& count) {
    const auto values = [n](int m) -> const float (&)[kProducts] { return n.columns == 2 ? kOfPair[m] : kOfFour[m]; };
    f32x16 sum = count(values(0)) * x(n.column);
    for (int m = 1; m < n.columns; ++m) sum = fma(count(values(m)), x(n.column + 4 * m), sum);
    return sum;
}

// The nibbles of 16 rows, in the lowest four bits of each lane. (Nibbles 0 … 3, 4 … 7 and 8 … 11 lie in the four bytes
// of a word.)
template <class Fmt>
KARAT_INLINE i32x16 nibbles_of(const Block& b, int s, Nibble n) {
    const int word = Fmt::Codes::word_of(s, n.word), shift = Fmt::Codes::shift_of(s, n.word);
#if !defined(KARAT_TWO_PORTS)
    if (n.word == 0) return b.from_byte(word, n.at / 8) >> (n.at % 8 + shift);  // for every second one no shift
#endif
    return b.word(word) >> (n.at + shift);
}

}  // namespace karat::KARAT_ISA_NAMESPACE

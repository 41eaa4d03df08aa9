// Shared by the linear layers of integers: numeric contract 5 (kernels.h, IntegerKernels).
#pragma once

#include "contract/activations.h"
#include "kernels/linear.h"
#include "simd/dot.h"
#include "simd/tuning_integers.h"

namespace karat::KARAT_ISA_NAMESPACE {

// Up to kDirectTokens tokens multiply codes as they are read, without an unpacked copy: at most kPassTokens at a time.
template <int kDigits>
inline constexpr int kPassTokens = kIntegerTuning.pass_tokens[kDigits];
template <int kDigits>
inline constexpr int kDirectTokens = kIntegerTuning.direct_tokens[kDigits];

// Layers of more rows than this multiply q as it is, in words of 16 bits (dot.h), instead of its digits.
template <int kDigits>
inline constexpr std::size_t kRowsOfDigits = kIntegerTuning.rows_of_digits[kDigits];

}  // namespace karat::KARAT_ISA_NAMESPACE
namespace karat::KARAT_ARRANGES {  // of which an arrangement has none of its own (kernels_isa.h)

void many_tokens_of_integers(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch);
std::size_t integer_scratch_bytes();
void quantise(Activations activations, const float* x, std::size_t rows, std::size_t columns, std::size_t first,
              std::size_t last, std::uint8_t* out);
void quantise_row(Activations activations, const float* x, std::size_t columns, DigitsPlace* places, std::size_t count);

}  // namespace karat::KARAT_ARRANGES
namespace karat::KARAT_ISA_NAMESPACE {

// Up to kDirectTokens tokens; as many_tokens_of_integers computes panels first … last - 1 of a layer of any number.
void few_tokens_of_integers(const LinearArgs& args, std::size_t first, std::size_t last);

// Calls f.run<Fmt, digits>().
template <int kDigits, class F>
struct WithDigits {
    const F& f;
    template <class Fmt>
    KARAT_INLINE void run() const {
        f.template run<Fmt, kDigits>();
    }
};
template <class F>
KARAT_INLINE void with_blocks_and_digits(const LinearArgs& a, const F& f) {
    switch (a.activations) {
        case Activations::int8: return with_blocks(a.weight->format, WithDigits<1, F>{f});
        case Activations::int16: return with_blocks(a.weight->format, WithDigits<2, F>{f});
        case Activations::int24: return with_blocks(a.weight->format, WithDigits<3, F>{f});
    }
}

// A block of 32 columns of x.
template <int kDigits>
struct XBlock {
    const std::uint8_t* at;

    static constexpr std::size_t kBytes = DigitBlock<kDigits>::kBytes;

    KARAT_INLINE float power() const { return read<float>(0); }
    // Sums over the sub-block that begins at column `column` of the block: of q; of its first of three digits; of the
    // last two.
    template <int kSub>
    KARAT_INLINE std::int32_t sum(int column) const {
        return sum_at<kSub>(DigitBlock<kDigits>::kSumsAt, column);
    }
    // power * the sum of q.
    template <int kSub>
    KARAT_INLINE float value(int column) const {
        if constexpr (kSub == 32) return read<float>(DigitBlock<kDigits>::kValueAt);
        return static_cast<float>(sum<kSub>(column)) * power();
    }
    template <int kSub>
    KARAT_INLINE std::int32_t first_sum(int column) const {
        return sum_at<kSub>(DigitBlock<kDigits>::kFirstSumsAt, column);
    }
    template <int kSub>
    KARAT_INLINE std::int32_t lower_sum(int column) const {
        return sum_at<kSub>(DigitBlock<kDigits>::kLowerSumsAt, column);
    }
    // Digits of four columns; digit 0 is the first.
    KARAT_INLINE i32x16 four(int digit, int column) const {
        return four_digits(reinterpret_cast<const std::int8_t*>(at) + DigitBlock<kDigits>::kDigitsAt +
                           static_cast<std::size_t>(digit) * kDigitColumns + column);
    }

#if defined(KARAT_PAIRS)
    // Of int16's digits.
    KARAT_INLINE Words words() const {
        const auto* const digits = reinterpret_cast<const std::int8_t*>(at) + DigitBlock<kDigits>::kDigitsAt;
        return Words::of(digits, digits + kDigitColumns);
    }
#endif
    // q of two columns, in the order of Words.
    KARAT_INLINE i32x16 two_words(int word) const {
        return four_digits(reinterpret_cast<const std::int8_t*>(at) + DigitBlock<kDigits>::kDigitsAt + 2 * word);
    }

private:
    template <class T>
    KARAT_INLINE T read(std::size_t byte) const {
        T value;
        std::memcpy(&value, at + byte, sizeof value);
        return value;
    }
    template <int kSub>
    KARAT_INLINE std::int32_t sum_at(std::size_t byte, int column) const {
        if constexpr (kSub == 32) return read<std::int32_t>(byte) + read<std::int32_t>(byte + 4);
        return read<std::int32_t>(byte + static_cast<std::size_t>(column) / 16 * 4);
    }
};

// Where a block of x [rows, columns] lies among its digits: `column` is its first one, or another.
template <int kDigits>
struct PlaceOfBlock {
    std::size_t stride;  // bytes from one row of the strip to the next
    std::size_t at;

    KARAT_INLINE PlaceOfBlock(std::size_t rows, std::size_t columns, std::size_t row, std::size_t column) {
        constexpr std::size_t kBytes = XBlock<kDigits>::kBytes;
        const std::size_t begin = column / kStripColumns * kStripColumns, left = columns - begin;
        stride = (left < kStripColumns ? left : kStripColumns) / kDigitColumns * kBytes;
        at = begin / kDigitColumns * rows * kBytes + row * stride + (column - begin) / kDigitColumns * kBytes;
    }
    // Of the layer's token `token`.
    KARAT_INLINE PlaceOfBlock(const LinearArgs& a, std::size_t token, std::size_t column)
        : PlaceOfBlock(a.digits_rows, a.weight->columns, a.first_row + token, column) {}
};

// `part` of a sub-block that begins at column `column` of a block of x, from its sums of code * digit: for int24 of the
// first digit and of the other two, else of q. Codes are `zero` more than they should be.
template <int kSub, int kDigits>
KARAT_INLINE f32x16 part_of(i32x16 first, i32x16 rest, const XBlock<kDigits>& x, int column, std::int32_t zero) {
    if constexpr (kDigits < 3) return to_float(rest - iset1(zero * x.template sum<kSub>(column)));
    else
        return fma(to_float(first - iset1(zero * x.template first_sum<kSub>(column))), set1(65536.0f),
                   to_float(rest - iset1(zero * x.template lower_sum<kSub>(column))));
}

}  // namespace karat::KARAT_ISA_NAMESPACE

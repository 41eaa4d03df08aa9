// Rows of x as integers (activations.h).
#include "kernels/integer_rows.h"

#include "kernels/integer.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

template <int kDigits, bool kAsWords>
KARAT_INLINE void write_digits(i32x16 first, i32x16 second, std::uint8_t* out) {
#if defined(KARAT_WORDS)
    if constexpr (kAsWords) {
        const Words words = Words::of(first, second);
        std::memcpy(out, &words, sizeof words);
        return;
    }
#endif
    i32x16 q[2] = {first, second};
    for (int digit = kDigits - 1; digit >= 0; --digit)
        for (int i = 0; i < 2; ++i) {
            store_low_bytes(out + digit * static_cast<int>(kDigitColumns) + i * kLanes, q[i]);
            q[i] = shift_signed(q[i] - low_digit(q[i]), 8);
        }
}

// x has eight blocks, of which the first `count` are written.
template <int kDigits, bool kAsWords>
KARAT_INLINE void quantise_blocks(const float* x, std::size_t count, std::uint8_t* out) {
    using Layout = DigitBlock<kDigits>;
    const RoundedBlocks<kDigits> blocks(x);
    const Halves& q = blocks.q;
    std::int32_t first_sums[kLanes], lower_sums[kLanes];
    if constexpr (kDigits == 3) {
        Halves first, lower;
        for (int i = 0; i < kLanes; ++i) {
            const i32x16 rest = shift_signed(q[i] - low_digit(q[i]), 8);
            first[i] = shift_signed(rest - low_digit(rest), 8);
            lower[i] = q[i] - (first[i] << 16);
        }
        istore(first_sums, sums_of(first));
        istore(lower_sums, sums_of(lower));
    }
    for (std::size_t b = 0; b < count; ++b, out += Layout::kBytes) {
        const float value = blocks.value(b);
        std::memcpy(out, blocks.power + 2 * b, sizeof(float));
        std::memcpy(out + Layout::kSumsAt, blocks.sums + 2 * b, 2 * sizeof(std::int32_t));
        std::memcpy(out + Layout::kValueAt, &value, sizeof value);
        if constexpr (kDigits == 3) {
            std::memcpy(out + Layout::kFirstSumsAt, first_sums + 2 * b, 2 * sizeof *first_sums);
            std::memcpy(out + Layout::kLowerSumsAt, lower_sums + 2 * b, 2 * sizeof *lower_sums);
        }
        write_digits<kDigits, kAsWords>(q[2 * b], q[2 * b + 1], out + Layout::kDigitsAt);
    }
}

template <int kDigits, bool kAsWords = false>
void quantise_rows(const float* x, std::size_t rows, std::size_t columns, std::size_t first, std::size_t last,
                   std::uint8_t* out) {
    for_strips(
        x, columns, first, last,
        [=](std::size_t row, std::size_t k, const float* blocks, std::size_t count) __attribute__((always_inline)) {
            quantise_blocks<kDigits, kAsWords>(blocks, count, out + PlaceOfBlock<kDigits>(rows, columns, row, k).at);
        });
}

}  // namespace

void quantise(Activations activations, const float* x, std::size_t rows, std::size_t columns, std::size_t first,
              std::size_t last, std::uint8_t* out) {
    switch (activations) {
        case Activations::int8: return quantise_rows<1>(x, rows, columns, first, last, out);
        case Activations::int16:
            return rows > kRowsOfDigits<2> ? quantise_rows<2, true>(x, rows, columns, first, last, out)
                                           : quantise_rows<2>(x, rows, columns, first, last, out);
        case Activations::int24: return quantise_rows<3>(x, rows, columns, first, last, out);
    }
}

}  // namespace karat::KARAT_ISA_NAMESPACE

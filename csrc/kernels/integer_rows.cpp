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

// Eight blocks of x, and what is written of them.
template <int kDigits>
struct DigitsOfBlocks {
    RoundedBlocks<kDigits> blocks;
    std::int32_t first_sums[kDigits == 3 ? kLanes : 1], lower_sums[kDigits == 3 ? kLanes : 1];

    KARAT_INLINE explicit DigitsOfBlocks(const float* x) : blocks(x) {
        if constexpr (kDigits == 3) {
            Halves first, lower;
            for (int i = 0; i < kLanes; ++i) {
                const i32x16 rest = shift_signed(blocks.q[i] - low_digit(blocks.q[i]), 8);
                first[i] = shift_signed(rest - low_digit(rest), 8);
                lower[i] = blocks.q[i] - (first[i] << 16);
            }
            istore(first_sums, sums_of(first));
            istore(lower_sums, sums_of(lower));
        }
    }

    // Of the first `count` blocks.
    template <bool kAsWords>
    KARAT_INLINE void write(std::size_t count, std::uint8_t* out) const {
        using Layout = DigitBlock<kDigits>;
        for (std::size_t b = 0; b < count; ++b, out += Layout::kBytes) {
            const float value = blocks.value(b);
            std::memcpy(out, blocks.power + 2 * b, sizeof(float));
            std::memcpy(out + Layout::kSumsAt, blocks.sums + 2 * b, 2 * sizeof(std::int32_t));
            std::memcpy(out + Layout::kValueAt, &value, sizeof value);
            if constexpr (kDigits == 3) {
                std::memcpy(out + Layout::kFirstSumsAt, first_sums + 2 * b, 2 * sizeof *first_sums);
                std::memcpy(out + Layout::kLowerSumsAt, lower_sums + 2 * b, 2 * sizeof *lower_sums);
            }
            write_digits<kDigits, kAsWords>(blocks.q[2 * b], blocks.q[2 * b + 1], out + Layout::kDigitsAt);
        }
    }
};

// Whether a layer of so many rows reads words instead of digits.
template <int kDigits>
KARAT_INLINE bool reads_words(std::size_t rows) {
    return kDigits == 2 && rows > kRowsOfDigits<kDigits>;
}

template <int kDigits, bool kAsWords>
void quantise_rows(const float* x, std::size_t rows, std::size_t columns, std::size_t first, std::size_t last,
                   std::uint8_t* out) {
    for_strips(x, columns, first, last,
               [=](std::size_t row, std::size_t k, const float* eight, std::size_t count)
                   __attribute__((always_inline)) {
                       const DigitsOfBlocks<kDigits> blocks(eight);
                       const PlaceOfBlock<kDigits> place(rows, columns, row, k);
                       blocks.template write<kAsWords>(count, out + place.at);
                   });
}

template <int kDigits>
void quantise_any(const float* x, std::size_t rows, std::size_t columns, std::size_t first, std::size_t last,
                  std::uint8_t* out) {
    reads_words<kDigits>(rows) ? quantise_rows<kDigits, kDigits == 2>(x, rows, columns, first, last, out)
                               : quantise_rows<kDigits, false>(x, rows, columns, first, last, out);
}

template <int kDigits>
void quantise_for(const float* x, std::size_t columns, const DigitsPlace* places, std::size_t num_places) {
    for_strips(x, columns, 0, 1,
               [=](std::size_t, std::size_t k, const float* eight, std::size_t count) __attribute__((always_inline)) {
                   const DigitsOfBlocks<kDigits> blocks(eight);
                   for (std::size_t i = 0; i < num_places; ++i) {
                       const DigitsPlace& to = places[i];
                       std::uint8_t* const at = to.out + PlaceOfBlock<kDigits>(to.rows, columns, to.row, k).at;
                       reads_words<kDigits>(to.rows) ? blocks.template write<kDigits == 2>(count, at)
                                                     : blocks.template write<false>(count, at);
                   }
               });
}

}  // namespace

void quantise(Activations activations, const float* x, std::size_t rows, std::size_t columns, std::size_t first,
              std::size_t last, std::uint8_t* out) {
    switch (activations) {
        case Activations::int8: return quantise_any<1>(x, rows, columns, first, last, out);
        case Activations::int16: return quantise_any<2>(x, rows, columns, first, last, out);
        case Activations::int24: return quantise_any<3>(x, rows, columns, first, last, out);
    }
}

void quantise_row(Activations activations, const float* x, std::size_t columns, DigitsPlace* places,
                  std::size_t count) {
    switch (activations) {
        case Activations::int8: return quantise_for<1>(x, columns, places, count);
        case Activations::int16: return quantise_for<2>(x, columns, places, count);
        case Activations::int24: return quantise_for<3>(x, columns, places, count);
    }
}

}  // namespace karat::KARAT_ISA_NAMESPACE

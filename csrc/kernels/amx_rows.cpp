// Rows of x as integers, for tiles (amx_rows.h).
#include "kernels/amx_rows.h"

#include "kernels/integer_rows.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// Numbers that bf16 has, of 32 columns.
KARAT_INLINE void write_halves(std::uint8_t* out, f32x16 first, f32x16 second) {
    const i32x16 all[2] = {as_int(first) >> 16, as_int(second) >> 16};
    for (int i = 0; i < 2; ++i) {
        const auto halves = _mm512_cvtepi32_epi16(all[i].v);
        std::memcpy(out + i * 32, &halves, sizeof halves);
    }
}

// Writes `count` blocks of a row, from column k on.
template <int kDigits>
KARAT_INLINE void write_blocks(const RoundedBlocks<kDigits>& blocks, std::size_t count, const RowsOfTiles<kDigits>& to,
                               std::size_t row, std::size_t k) {
    const std::size_t tile = row / kTileRows, in_tile = row % kTileRows, height = to.rows_of(tile);
    float top = 0;
    if (k > 0) std::memcpy(&top, to.tops + row * sizeof top, sizeof top);
    for (std::size_t b = 0; b < count; ++b) {
        const std::size_t block = to.block(tile, k + b * kDigitColumns);
        std::uint8_t* const head = to.head(block + in_tile);
        const float power = blocks.power[2 * b], value = blocks.value(b);
        std::memcpy(head + kPowerAt, &power, sizeof power);
        std::memcpy(head + kSumsAt, blocks.sums + 2 * b, 2 * sizeof *blocks.sums);
        std::memcpy(head + kValueAt, &value, sizeof value);
        if (power > top) top = power;
        const f32x16 times = set1(kDigits == 2 ? power : 1);
        i32x16 q[2] = {blocks.q[2 * b], blocks.q[2 * b + 1]};
        std::uint8_t* digits = to.digits_of(block) + in_tile * kDigitRowBytes;
        for (int digit = kDigits - 1; digit >= 0; --digit) {
            i32x16 of[2];
            for (int i = 0; i < 2; ++i) {
                of[i] = digit > 0 ? low_digit(q[i]) : q[i];
                q[i] = shift_signed(q[i] - of[i], 8);
                if (digit == kDigits - 2) of[i] = of[i] << 8;
            }
            write_halves(digits + static_cast<std::size_t>(digit) * height * kDigitRowBytes, to_float(of[0]) * times,
                         to_float(of[1]) * times);
        }
    }
    std::memcpy(to.tops + row * sizeof top, &top, sizeof top);
}

template <int kDigits>
void quantise_rows(const float* x, std::size_t rows, std::size_t columns, std::size_t first, std::size_t last,
                   std::uint8_t* out) {
    const RowsOfTiles<kDigits> to(out, rows, columns);
    for_strips(x, columns, first, last,
               [&](std::size_t row, std::size_t k, const float* eight, std::size_t count)
                   __attribute__((always_inline)) { write_blocks(RoundedBlocks<kDigits>(eight), count, to, row, k); });
}

template <int kDigits>
void quantise_for(const float* x, std::size_t columns, const DigitsPlace* places, std::size_t num_places) {
    for_strips(x, columns, 0, 1,
               [=](std::size_t, std::size_t k, const float* eight, std::size_t count) __attribute__((always_inline)) {
                   const RoundedBlocks<kDigits> blocks(eight);
                   for (std::size_t i = 0; i < num_places; ++i) {
                       const DigitsPlace& to = places[i];
                       write_blocks(blocks, count, RowsOfTiles<kDigits>(to.out, to.rows, columns), to.row, k);
                   }
               });
}

}  // namespace

void quantise_for_tiles(Activations activations, const float* x, std::size_t rows, std::size_t columns,
                        std::size_t first, std::size_t last, std::uint8_t* out) {
    switch (activations) {
        case Activations::int8: return quantise_rows<1>(x, rows, columns, first, last, out);
        case Activations::int16: return quantise_rows<2>(x, rows, columns, first, last, out);
        case Activations::int24: return quantise_rows<3>(x, rows, columns, first, last, out);
    }
}

void quantise_row_for_tiles(Activations activations, const float* x, std::size_t columns, const DigitsPlace* places,
                            std::size_t count) {
    switch (activations) {
        case Activations::int8: return quantise_for<1>(x, columns, places, count);
        case Activations::int16: return quantise_for<2>(x, columns, places, count);
        case Activations::int24: return quantise_for<3>(x, columns, places, count);
    }
}

}  // namespace karat::KARAT_ISA_NAMESPACE

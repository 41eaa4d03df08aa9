// Rows of x as integers: contract/activations.h says what is written where, karat.ops.integers defines it.
#pragma once

#include "contract/activations.h"
#include "gpu/simt.h"

namespace karat::gpu {

// Where a block of 32 columns of a row begins among the digits of `rows` rows, kBytes a block.
template <int kBytes>
KARAT_INLINE std::size_t place_of_block(int rows, int columns, int row, int block) {
    constexpr int kStrip = static_cast<int>(kStripColumns / kDigitColumns);
    const int first = block / kStrip * kStrip, left = columns / static_cast<int>(kDigitColumns) - first;
    const int strip = left < kStrip ? left : kStrip;
    return (static_cast<std::size_t>(first) * rows + static_cast<std::size_t>(row) * strip + (block - first)) * kBytes;
}

// A thread makes a block of 32 columns.
template <int kDigits>
struct Quantise {
    using Layout = DigitBlock<kDigits>;
    static constexpr bool kIsShort = true;
    static constexpr int kBlock = static_cast<int>(kDigitColumns), kThreads = 128;
    static constexpr int kLimit = kDigits == 1 ? 127 : kDigits == 2 ? 32639 : 8355710;
    static constexpr int kMinExponent = -102, kMaxExponent = 105;

    const float* x;  // [rows, columns]
    int rows, columns;
    std::uint8_t* out;

    Grid grid() const { return {pieces(rows * (columns / kBlock), kThreads), 1, kThreads, 0}; }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        cta.each([&](int thread) {
            if (const int item = cta.x() * kThreads + thread; item < rows * (columns / kBlock)) make_block(item);
        });
    }
    // Blocks are counted row by row.
    KARAT_INLINE void make_block(int item) const {
        const int blocks = columns / kBlock, row = item / blocks, block = item % blocks;
        std::uint8_t* const to = out + place_of_block<Layout::kBytes>(rows, columns, row, block);
        make(x + static_cast<std::size_t>(row) * columns + block * kBlock, reinterpret_cast<std::uint32_t*>(to));
    }

private:
    static KARAT_INLINE float two_to_the(int exponent) {
        return float_of(static_cast<std::uint32_t>(exponent + 127) << 23);
    }
    static KARAT_INLINE std::int32_t low_digit(std::int32_t q) { return static_cast<std::int8_t>(q & 255); }

    static KARAT_INLINE void make(const float* from, std::uint32_t* to) {
        float values[kBlock];
        std::uint32_t bits = 0;  // of the largest magnitude: in the order of the floats, NaN above all
#pragma unroll
        for (int i = 0; i < kBlock; i += 4) {
            const U4 four = value_at<U4>(from + i);
#pragma unroll
            for (int k = 0; k < 4; ++k) values[i + k] = float_of(four.v[k]);
        }
#pragma unroll
        for (int i = 0; i < kBlock; ++i) {
            const std::uint32_t magnitude = bits_of(values[i]) & 0x7fffffffu;
            bits = magnitude > bits ? magnitude : bits;
        }
        const bool is_finite = bits < 0x7f800000u;
        const float largest = is_finite ? float_of(bits) : 0.0f;
        float power, factor;  // q is x / factor, or x * factor where powers are powers of two
        bool fits, has_any;
        if constexpr (kDigits == 2) {  // the smallest power at which the largest, rounded, is at most the limit
            const bool is_above = nearest(float_of((bits & 0x7fffffu) | (126 + 15) << 23)) > kLimit;
            int exponent = static_cast<int>(bits >> 23) - (126 + 15) + is_above;
            exponent = exponent < kMinExponent ? kMinExponent : exponent;
            fits = is_finite && exponent <= kMaxExponent;
            power = two_to_the(fits ? exponent : 0);
            factor = two_to_the(fits ? -exponent : 0);
            has_any = largest * factor > 0.5f;
        } else {
            const float quotient = largest / static_cast<float>(kLimit), least = two_to_the(kMinExponent);
            power = factor = quotient < least ? least : quotient;
            fits = is_finite && power <= two_to_the(kMaxExponent);
            has_any = largest / factor > 0.5f;
        }
        constexpr int kFirst = static_cast<int>(Layout::kDigitsAt) / 4;
        std::uint32_t words[Layout::kBytes / 4] = {};
        std::int32_t sums[2] = {}, first_sums[2] = {}, lower_sums[2] = {};
#pragma unroll
        for (int i = 0; i < kBlock; ++i) {
            std::int32_t rest = !fits ? 0 : nearest(kDigits == 2 ? values[i] * factor : values[i] / factor);
            sums[i / 16] += rest;
            lower_sums[i / 16] += rest;
#pragma unroll
            for (int digit = kDigits - 1; digit >= 0; --digit) {
                words[kFirst + 8 * digit + i / 4] |= (static_cast<std::uint32_t>(rest) & 255u) << 8 * (i % 4);
                if (digit == 0) first_sums[i / 16] += rest, lower_sums[i / 16] -= rest * (1 << 16);
                rest = (rest - low_digit(rest)) >> 8;
            }
        }
        const float kept = !fits ? float_of(0x7fc00000u) : has_any ? power : 1.0f;
        words[0] = bits_of(kept);
        words[Layout::kValueAt / 4] = bits_of(float_of_int(sums[0] + sums[1]) * kept);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            words[Layout::kSumsAt / 4 + half] = static_cast<std::uint32_t>(sums[half]);
            if constexpr (kDigits == 3) {
                words[Layout::kFirstSumsAt / 4 + half] = static_cast<std::uint32_t>(first_sums[half]);
                words[Layout::kLowerSumsAt / 4 + half] = static_cast<std::uint32_t>(lower_sums[half]);
            }
        }
#pragma unroll
        for (int i = 0; i < static_cast<int>(Layout::kBytes) / 4; i += 4)
            *reinterpret_cast<U4*>(to + i) = {{words[i], words[i + 1], words[i + 2], words[i + 3]}};
    }
};

}  // namespace karat::gpu

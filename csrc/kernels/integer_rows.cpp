// Rows of x as integers (activations.h).
#include "kernels/integer.h"
#include "simd/integers.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

constexpr int kMinExponent = -102, kMaxExponent = 105;  // of powers

template <int kDigits>
inline constexpr std::int32_t kLimit = kDigits == 1   ? 127
                                       : kDigits == 2 ? 32639
                                                      : 8355710;

// Whether a power is the block's maximum / the limit, not a power of two.
template <int kDigits>
inline constexpr bool kByMaximum = kDigits != 2;

KARAT_INLINE float two_to_the(int exponent) { return float_of(static_cast<std::uint32_t>(127 + exponent) << 23); }

// To the nearest integer, of even ones in a tie; 0 <= x < 2^23.
KARAT_INLINE std::int32_t nearest(float x) { return static_cast<std::int32_t>((x + 0x1p23f) - 0x1p23f); }

// The exponent of int16's smallest power of two at which `largest` (its bits), rounded, is at most the limit.
KARAT_INLINE int exponent_of(std::uint32_t largest) {
    constexpr int kBits = 15;
    const int exponent = static_cast<int>(largest >> 23) - 126 - kBits;
    const float scaled = float_of((largest & 0x7fffff) | (static_cast<std::uint32_t>(126 + kBits) << 23));
    const int smallest = exponent + (nearest(scaled) > kLimit<2>);
    return smallest < kMinExponent ? kMinExponent : smallest;
}

// Both halves of a block, 16 columns each.
using Halves = i32x16[2];

// Returns the sum of both.
KARAT_INLINE std::int32_t write_sums(std::uint8_t* out, const Halves& of) {
    const std::int32_t sums[2] = {sum_of_lanes(of[0]), sum_of_lanes(of[1])};
    std::memcpy(out, sums, sizeof sums);
    return sums[0] + sums[1];
}

template <int kDigits, bool kAsWords>
KARAT_INLINE void quantise_block(const float* x, std::uint8_t* out) {
    using Layout = DigitBlock<kDigits>;
    const f32x16 values[2] = {load(x), load(x + kLanes)};
    // Bits of magnitudes, which are in the order of the magnitudes; infinity and NaN are above all others.
    const auto bits = static_cast<std::uint32_t>(
        largest_lane(as_int(values[0]) & iset1(0x7fffffff), as_int(values[1]) & iset1(0x7fffffff)));
    const float largest = float_of(bits);
    float power, factor = 1;
    bool fits = bits < 0x7f800000;
    if constexpr (kByMaximum<kDigits>) {
        const float scale = fits ? largest / static_cast<float>(kLimit<kDigits>) : 1.0f,
                    least = two_to_the(kMinExponent);
        power = scale < least ? least : scale;
        fits = fits && power <= two_to_the(kMaxExponent);
    } else {
        const int exponent = exponent_of(bits);
        fits = fits && exponent <= kMaxExponent;
        power = two_to_the(fits ? exponent : 0);
        factor = two_to_the(fits ? -exponent : 0);
    }
    Halves q;
    for (int i = 0; i < 2; ++i) {
        if (!fits) q[i] = iset1(0);
        else if constexpr (kByMaximum<kDigits>) q[i] = to_nearest(values[i] / set1(power));
        else q[i] = to_nearest(values[i] * set1(factor));
    }
    if (fits && nearest(kByMaximum<kDigits> ? largest / power : largest * factor) == 0)
        power = 1;  // all integers are 0
    if (!fits) power = __builtin_nanf("");
    std::memcpy(out, &power, sizeof power);
    const float value = static_cast<float>(write_sums(out + Layout::kSumsAt, q)) * power;
    std::memcpy(out + Layout::kValueAt, &value, sizeof value);
    std::uint8_t* const digits = out + Layout::kDigitsAt;
    if constexpr (kDigits == 3) {
        Halves first, lower;
        for (int i = 0; i < 2; ++i) {
            const i32x16 rest = shift_signed(q[i] - low_digit(q[i]), 8);
            first[i] = shift_signed(rest - low_digit(rest), 8);
            lower[i] = q[i] - (first[i] << 16);
        }
        write_sums(out + Layout::kFirstSumsAt, first);
        write_sums(out + Layout::kLowerSumsAt, lower);
    }
#if defined(KARAT_WORDS)
    if constexpr (kAsWords) {
        const Words words = Words::of(q[0], q[1]);
        std::memcpy(digits, &words, sizeof words);
        return;
    }
#endif
    for (int digit = kDigits - 1; digit >= 0; --digit)
        for (int i = 0; i < 2; ++i) {
            store_low_bytes(digits + digit * static_cast<int>(kDigitColumns) + i * kLanes, q[i]);
            q[i] = shift_signed(q[i] - low_digit(q[i]), 8);
        }
}

template <int kDigits, bool kAsWords = false>
void quantise_rows(const float* x, std::size_t rows, std::size_t columns, std::size_t first, std::size_t last,
                   std::uint8_t* out) {
    for (std::size_t row = first; row < last; ++row) {
        std::uint8_t* to = nullptr;
        for (std::size_t k = 0; k < columns; k += kDigitColumns, to += XBlock<kDigits>::kBytes) {
            if (k % kStripColumns == 0) to = out + PlaceOfBlock<kDigits>(rows, columns, row, k).at;
            quantise_block<kDigits, kAsWords>(x + row * columns + k, to);
        }
    }
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

// Rows of x as integers (activations.h).
#include "kernels/integer.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

constexpr int kColumns = static_cast<int>(kDigitColumns);
constexpr int kMinExponent = -102, kMaxExponent = 105;  // of powers

constexpr std::int32_t limit_of(int digits) { return digits == 1 ? 127 : digits == 2 ? 32639 : 8355711; }

KARAT_INLINE float two_to_the(int exponent) { return float_of(static_cast<std::uint32_t>(127 + exponent) << 23); }

// To the nearest integer, of even ones in a tie; |x| < 2^23.
KARAT_INLINE std::int32_t nearest(float x) {
    const float magnitude = (__builtin_fabsf(x) + 0x1p23f) - 0x1p23f;
    const std::int32_t q = static_cast<std::int32_t>(magnitude);
    return x < 0 ? -q : q;
}

// The exponent of the smallest power at which `largest` (its bits), rounded, is at most the limit.
template <int kDigits>
KARAT_INLINE int exponent_of(std::uint32_t largest) {
    constexpr int kBits = 8 * kDigits - 1;
    const int exponent = static_cast<int>(largest >> 23) - 126 - kBits;
    const float scaled = float_of((largest & 0x7fffff) | (static_cast<std::uint32_t>(126 + kBits) << 23));
    const int smallest = exponent + (nearest(scaled) > limit_of(kDigits));
    return smallest < kMinExponent ? kMinExponent : smallest;
}

template <int kDigits>
KARAT_INLINE void quantise_block(const float* x, std::uint8_t* out) {
    std::int32_t largest = 0;  // bits; of numbers that are not negative they are in the order of the numbers
    for (int i = 0; i < kColumns; ++i) {
        const auto bits = static_cast<std::int32_t>(bits_of(x[i]) & 0x7fffffff);
        largest = largest < bits ? bits : largest;
    }
    float power = 0, factor = 0;
    bool fits = largest < 0x7f800000;
    if constexpr (kDigits == 1) {
        const float scale = float_of(static_cast<std::uint32_t>(largest)) / 127.0f;
        power = scale < two_to_the(kMinExponent) ? two_to_the(kMinExponent) : scale;
        fits = fits && power <= two_to_the(kMaxExponent);
    } else {
        const int exponent = exponent_of<kDigits>(static_cast<std::uint32_t>(largest));
        fits = fits && exponent <= kMaxExponent;
        power = two_to_the(fits ? exponent : 0);
        factor = two_to_the(fits ? -exponent : 0);
    }
    std::int32_t q[kColumns] = {};
    std::int32_t any = 0;
    if (fits)
        for (int i = 0; i < kColumns; ++i) {
            if constexpr (kDigits == 1) q[i] = nearest(x[i] / power);
            else q[i] = nearest(x[i] * factor);
            any |= q[i];
        }
    if (any == 0) power = 1;
    if (!fits) power = __builtin_nanf("");
    std::memcpy(out, &power, sizeof power);

    const auto write_sums = [&](const std::int32_t (&of)[kColumns], std::size_t at) {
        std::int32_t sums[2] = {};
        for (int i = 0; i < 16; ++i) sums[0] += of[i];
        for (int i = 16; i < 32; ++i) sums[1] += of[i];
        std::memcpy(out + at, sums, sizeof sums);
    };
    std::memset(out + 12, 0, 4);
    write_sums(q, DigitBlock<kDigits>::kSumsAt);
    auto* const digits = reinterpret_cast<std::int8_t*>(out + DigitBlock<kDigits>::kDigitsAt);
    if constexpr (kDigits == 3) {
        std::int32_t first[kColumns], lower[kColumns];
        for (int i = 0; i < kColumns; ++i) {
            const std::int32_t last = static_cast<std::int8_t>(q[i]), rest = (q[i] - last) >> 8;
            const std::int32_t middle = static_cast<std::int8_t>(rest);
            first[i] = (rest - middle) >> 8;
            lower[i] = 256 * middle + last;
        }
        write_sums(first, DigitBlock<kDigits>::kFirstSumsAt);
        write_sums(lower, DigitBlock<kDigits>::kLowerSumsAt);
    }
    for (int digit = kDigits - 1; digit >= 0; --digit)
        for (int i = 0; i < kColumns; ++i) {
            const auto last = static_cast<std::int8_t>(q[i]);
            digits[digit * kColumns + i] = last;
            q[i] = (q[i] - last) >> 8;
        }
}

template <int kDigits>
void quantise_rows(const float* x, std::size_t count, std::uint8_t* out) {
    for (std::size_t i = 0; i < count; ++i, x += kDigitColumns, out += DigitBlock<kDigits>::kBytes)
        quantise_block<kDigits>(x, out);
}

}  // namespace

void quantise(Activations activations, const float* x, std::size_t rows, std::size_t columns, std::uint8_t* out) {
    const std::size_t count = rows * (columns / kDigitColumns);
    switch (activations) {
        case Activations::float32: return;
        case Activations::int8: return quantise_rows<1>(x, count, out);
        case Activations::int16: return quantise_rows<2>(x, count, out);
        case Activations::int24: return quantise_rows<3>(x, count, out);
    }
}

}  // namespace karat::KARAT_ISA_NAMESPACE

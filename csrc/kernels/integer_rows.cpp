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

// Blocks are quantised eight at a time, because what is known of each is made for all of them at once: in such a
// vector lanes 2 b and 2 b + 1 belong to block b, or to the halves of it, of 16 columns.
constexpr int kBlocks = kLanes / 2;
using Halves = i32x16[kLanes];

KARAT_INLINE i32x16 sums_of(const Halves& halves) {
    return across(halves, [](i32x16 a, i32x16 b) __attribute__((always_inline)) { return a + b; });
}
KARAT_INLINE i32x16 two_to_the(i32x16 exponent) { return (exponent + iset1(127)) << 23; }  // its bits
KARAT_INLINE i32x16 if_negative(i32x16 a) { return shift_signed(a, 31); }  // all bits of a lane, or none
KARAT_INLINE i32x16 chosen(i32x16 which, i32x16 yes, i32x16 no) { return no ^ ((yes ^ no) & which); }

// Of eight blocks: powers, what q is made with, and whether x fits. q is x * factor, or x / factor if kByMaximum.
template <int kDigits>
struct Powers {
    float power[kLanes], factor[kLanes];
    std::int32_t fits[kLanes];  // all bits, or none

    // From the bits of their largest magnitudes. Bits of floats that are not negative are in the order of the floats,
    // those of infinity and NaN above all others.
    KARAT_INLINE explicit Powers(i32x16 bits) {
        const i32x16 least = two_to_the(iset1(kMinExponent)), most = two_to_the(iset1(kMaxExponent));
        const i32x16 is_finite = if_negative(bits - iset1(0x7f800000));
        const f32x16 largest = as_float(bits & is_finite);
        i32x16 of, by;
        if constexpr (kByMaximum<kDigits>) {
            of = by = larger(as_int(largest / set1(kLimit<kDigits>)), least);
        } else {  // the smallest power at which the largest, rounded, is at most the limit
            constexpr int kBits = 15;
            const i32x16 mantissa = (bits & iset1(0x7fffff)) | iset1((126 + kBits) << 23);
            const i32x16 is_above = if_negative(iset1(kLimit<2>) - to_nearest(as_float(mantissa)));
            const i32x16 exponent = larger((bits >> 23) - iset1(126 + kBits) - is_above, iset1(kMinExponent));
            of = two_to_the(exponent);
            by = two_to_the(iset1(0) - exponent);
        }
        const f32x16 scaled = kByMaximum<kDigits> ? largest / as_float(by) : largest * as_float(by);
        const i32x16 has_any = if_negative(as_int(set1(0.5f)) - as_int(scaled)), one = as_int(set1(1));
        const i32x16 both = is_finite & if_negative(of - most - iset1(1));
        istore(fits, both);
        istore(factor, by);
        istore(power, chosen(both, chosen(has_any, of, one), iset1(0x7fc00000)));  // NaN; 1 where all integers are 0
    }
};

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
    Halves q;
    for (int i = 0; i < kLanes; ++i) q[i] = as_int(load(x + i * kLanes)) & iset1(0x7fffffff);
    for (int i = 0; i < kLanes; i += 2) q[i] = q[i + 1] = larger(q[i], q[i + 1]);
    const Powers<kDigits> powers(
        across(q, [](i32x16 a, i32x16 b) __attribute__((always_inline)) { return larger(a, b); }));
    for (int i = 0; i < kLanes; ++i) {
        const f32x16 value = as_float(as_int(load(x + i * kLanes)) & iset1(powers.fits[i]));
        const f32x16 factor = broadcast(powers.factor + i);
        q[i] = to_nearest(kByMaximum<kDigits> ? value / factor : value * factor);
    }
    std::int32_t sums[kLanes], first_sums[kLanes], lower_sums[kLanes];
    istore(sums, sums_of(q));
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
        const float power = powers.power[2 * b], value = static_cast<float>(sums[2 * b] + sums[2 * b + 1]) * power;
        std::memcpy(out, &power, sizeof power);
        std::memcpy(out + Layout::kSumsAt, sums + 2 * b, 2 * sizeof *sums);
        std::memcpy(out + Layout::kValueAt, &value, sizeof value);
        if constexpr (kDigits == 3) {
            std::memcpy(out + Layout::kFirstSumsAt, first_sums + 2 * b, 2 * sizeof *sums);
            std::memcpy(out + Layout::kLowerSumsAt, lower_sums + 2 * b, 2 * sizeof *sums);
        }
        write_digits<kDigits, kAsWords>(q[2 * b], q[2 * b + 1], out + Layout::kDigitsAt);
    }
}

template <int kDigits, bool kAsWords = false>
void quantise_rows(const float* x, std::size_t rows, std::size_t columns, std::size_t first, std::size_t last,
                   std::uint8_t* out) {
    static_assert(kStripColumns == kBlocks * kDigitColumns);
    for (std::size_t row = first; row < last; ++row)
        for (std::size_t k = 0; k < columns; k += kStripColumns) {
            std::uint8_t* const to = out + PlaceOfBlock<kDigits>(rows, columns, row, k).at;
            const float* const from = x + row * columns + k;
            if (const std::size_t left = columns - k; left < kStripColumns) {
                float strip[kStripColumns] = {};
                std::memcpy(strip, from, left * sizeof *strip);
                quantise_blocks<kDigits, kAsWords>(strip, left / kDigitColumns, to);
            } else {
                quantise_blocks<kDigits, kAsWords>(from, kBlocks, to);
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

// What layers on block formats compute of a sub-block: its codes, scale and minimum, the exact sum of code * q, and the
// factor of the minimum (IntegerKernels in contract/kernels.h). Formats are read by formats/formats.h, of which a
// thread has one lane.
#pragma once

#include "formats/formats.h"
#include "gpu/digits.h"
#include "gpu/panels.h"

namespace karat::gpu {

// `staged` is digits in shared memory, and `at` the byte where a block of 32 columns of a token begins.
template <class Fmt, int kDigits>
struct IntegerParts {
    using Layout = DigitBlock<kDigits>;
    static constexpr int kSubs = kColumnsOfBlock / Fmt::kSub;  // sub-blocks of a block of 32 columns
    static constexpr int kWords = Fmt::kSub / 4;               // of codes, of a sub-block

    // Codes and scales of a row and of block `number` of 32 columns; `keep(sub, minimum)` takes its minima.
    template <class Keep>
    static KARAT_INLINE void decode(const RowsOfBlock& rows, int lane, int number,
                                    std::uint32_t (&codes)[kSubs][kWords], float (&scales)[kSubs], const Keep& keep) {
        constexpr int kSubsOfStored = Fmt::kColumns / Fmt::kSub;
        const auto decoder = Fmt::Codes::make();
        const int first_sub = number * kSubs;
        const std::uint8_t* const at =
            rows.panel + static_cast<std::size_t>(first_sub / kSubsOfStored) * rows.of_panel * Fmt::kBytes;
        const Block block = block_of<Fmt>(at, rows.in_panel + lane, rows.of_panel);
        const auto scaled = Fmt::Scales::of(block);
#pragma unroll
        for (int sub = 0; sub < kSubs; ++sub) {
            const int s = first_sub % kSubsOfStored + sub;
#pragma unroll
            for (int c = 0; c < kWords; ++c) codes[sub][c] = decoder.of(block, s, c).v;
            scales[sub] = scaled.scale(block, s).v;
            if constexpr (Fmt::kHasMinimum) keep(sub, scaled.minimum(block, s).v);
        }
    }

    // Word `word` of a sub-block's digits: those of four columns.
    template <class Digits>
    static KARAT_INLINE std::uint32_t digits(int sub, int digit, int word, int at, const Digits& staged) {
        return staged.template get_as<std::uint32_t>(at + digits_at(sub, digit, word));
    }

    // The exact sum of code * q of a sub-block, as float32; of its digits, for int24.
    template <class Digits>
    static KARAT_INLINE float part(const std::uint32_t (&codes)[kWords], int sub, int at, const Digits& staged) {
        const auto sum_at = [&](std::size_t sums) {  // of the sub-block's q
            const auto half = [&](int i) {
                return static_cast<std::int32_t>(
                    staged.template get_as<std::uint32_t>(at + static_cast<int>(sums) + 4 * i));
            };
            return kSubs == 1 ? half(0) + half(1) : half(sub);
        };
        std::int32_t of_digit[kDigits] = {};
        of_digit[kDigits - 1] = -Fmt::Codes::kZero * sum_at(kDigits == 3 ? Layout::kLowerSumsAt : Layout::kSumsAt);
        if constexpr (kDigits == 3) of_digit[0] = -Fmt::Codes::kZero * sum_at(Layout::kFirstSumsAt);
#pragma unroll
        for (int digit = 0; digit < kDigits; ++digit)
#pragma unroll
            for (int c = 0; c < kWords; c += 4) {
                const U4 four = staged.template get_as<U4>(at + digits_at(sub, digit, c));
#pragma unroll
                for (int i = 0; i < 4; ++i) of_digit[digit] = dot4(four.v[i], codes[c + i], of_digit[digit]);
            }
        if constexpr (kDigits == 1) return float_of_int(of_digit[0]);
        else if constexpr (kDigits == 2) return float_of_int(of_digit[0] * 256 + of_digit[1]);
        else return fma(float_of_int(of_digit[0]), 65536.0f, float_of_int(of_digit[1] * 256 + of_digit[2]));
    }

    // What the minimum of a sub-block is multiplied by: the sum of its x.
    template <class Digits>
    static KARAT_INLINE float value(int sub, int at, const Digits& staged) {
        const auto read = [&](std::size_t from) {
            return staged.template get_as<std::uint32_t>(at + static_cast<int>(from));
        };
        return kSubs == 1 ? float_of(read(Layout::kValueAt))
                          : float_of_int(
                                static_cast<std::int32_t>(read(Layout::kSumsAt + 4 * static_cast<std::size_t>(sub)))) *
                                float_of(read(0));
    }

private:
    static constexpr KARAT_INLINE int digits_at(int sub, int digit, int word) {
        return static_cast<int>(Layout::kDigitsAt) + digit * kColumnsOfBlock + 4 * (sub * kWords + word);
    }
};

}  // namespace karat::gpu

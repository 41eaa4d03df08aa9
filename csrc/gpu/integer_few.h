// Linear layers on block formats for few tokens: products of bytes (dp4a), as IntegerKernels in contract/kernels.h
// defines them. Formats are read by formats/formats.h, of which a thread has one lane.
//
// Columns go by in chunks of 512. Eight warps compute the exact sums (`parts`) of two blocks of 32 columns each, a lane
// a row; then a thread for each row and token adds the chunk's parts to its chain, in order, while the other warps go
// on with the next chunk:
//
//     digits   copied 0 | copied 1 | copied 2 | …             three buffers
//     parts               parts 0  | parts 1  | …             two
//     chains                         chain 0  | chain 1 | …
//                       barrier    barrier    barrier
#pragma once

#include "formats/formats.h"
#include "gpu/digits.h"
#include "gpu/panels.h"

namespace karat::gpu {

template <class Fmt, int kDigits, int kTokens>
struct IntegerFew {
    using Layout = DigitBlock<kDigits>;
    static constexpr int kThreads = 256, kWarps = kThreads / 32, kSteps = 16;  // of a chunk: blocks of 32 columns
    static constexpr int kSubs = kColumnsOfBlock / Fmt::kSub;                  // sub-blocks of one
    static constexpr int kBytes = static_cast<int>(Layout::kBytes), kStages = 3;
    static constexpr int kDigitsOfStage = kTokens * kSteps * kBytes;
    static constexpr int kScalesOfBuffer = kSteps * kSubs * kRowsOfBlock, kPartsOfBuffer = kTokens * kScalesOfBuffer;
    static_assert(kTokens <= kWarps, "chains have a thread for each row and token");

    LinearShape a;
    const std::uint8_t* digits;  // of digits_rows rows
    int digits_rows;

    Grid grid() const {
        constexpr int minima = Fmt::kHasMinimum ? 2 : 0;
        return {a.num_blocks(), pieces(a.tokens, kTokens), kThreads,
                static_cast<std::size_t>(kStages * kDigitsOfStage) +
                    sizeof(float) * (2 * kPartsOfBuffer + (2 + minima) * kScalesOfBuffer +
                                     static_cast<int>(kMaxLeaves) * kTokens * kRowsOfBlock)};
    }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const int first_token = cta.y() * kTokens, left = a.tokens - first_token;
        const std::uint8_t* const weight = a.weight_of(first_token);  // of all tokens, or kTokens is 1
        if (!weight) return;
        const RowsOfBlock rows(a, weight, cta.x(), static_cast<std::size_t>(a.columns / Fmt::kColumns) * Fmt::kBytes);
        const int tokens = left < kTokens ? left : kTokens;
        const int blocks = a.columns / kColumnsOfBlock, chunks = pieces(blocks, kSteps);

        const auto staged = cta.template shared<std::uint8_t>(kStages * kDigitsOfStage);
        const auto parts = cta.template shared<float>(2 * kPartsOfBuffer);
        const auto scales = cta.template shared<float>(2 * kScalesOfBuffer);
        const auto minima = cta.template shared<float>(Fmt::kHasMinimum ? 2 * kScalesOfBuffer : 0);
        const auto leaf_sums = cta.template shared<float>(static_cast<int>(kMaxLeaves) * kTokens * kRowsOfBlock);
        PerThread<Cta, float> sum(cta);
        PerThread<Cta, int> leaf(cta);

        const auto fetch = [&](int chunk) {
            cta.each([&](int thread) {
                constexpr int kPieces = kBytes / 16;
                for (int i = thread; i < kTokens * kSteps * kPieces; i += kThreads) {
                    const int piece = i % kPieces, step = i / kPieces % kSteps, token = i / kPieces / kSteps;
                    const int block = chunk * kSteps + step;
                    if (block >= blocks || token >= tokens) continue;
                    const std::size_t from =
                        place_of_block<kBytes>(digits_rows, a.columns, a.x_row(first_token + token), block);
                    cta.copy16(staged, digits_at(chunk, token, step) + 16 * piece, digits + from + 16 * piece);
                }
            });
            cta.commit();
        };

        fetch(0);
        fetch(1);
        cta.each([&](int thread) {
            sum[thread] = 0;
            leaf[thread] = 0;
        });
        cta.template wait<1>();
        cta.sync();
        for (int chunk = 0; chunk < chunks; ++chunk) {
            cta.each([&](int thread) {
                const int lane = thread % 32;
                if (lane >= rows.count) return;
                for (int step = thread / 32; step < kSteps && chunk * kSteps + step < blocks; step += kWarps)
                    make_parts(rows, lane, chunk, step, tokens, staged, parts, scales, minima);
            });
            cta.template wait<0>();
            cta.sync();
            fetch(chunk + 2);  // into the buffer of the chunk before this one
            cta.each([&](int thread) {
                const int row = thread % kRowsOfBlock, token = thread / kRowsOfBlock;
                if (token >= tokens || row >= rows.count) return;
                const Leaves<decltype(leaf_sums)> leaves{a, leaf_sums, thread, kTokens * kRowsOfBlock};
                const int count = blocks - chunk * kSteps < kSteps ? blocks - chunk * kSteps : kSteps;
                for (int step = 0; step < count; ++step) {
                    leaves.end_at((chunk * kSteps + step) * kColumnsOfBlock, leaf[thread], sum[thread]);
                    sum[thread] = added(sum[thread], row, token, chunk, step, staged, parts, scales, minima);
                }
            });
        }
        cta.each([&](int thread) {
            const int row = thread % kRowsOfBlock, token = thread / kRowsOfBlock;
            if (token >= tokens || row >= rows.count) return;
            const Leaves<decltype(leaf_sums)> leaves{a, leaf_sums, thread, kTokens * kRowsOfBlock};
            leaves.end_at(a.columns, leaf[thread], sum[thread]);
            leaves.write(rows.first + row, first_token + token);
        });
    }

private:
    static KARAT_INLINE int digits_at(int chunk, int token, int step) {
        return ((chunk % kStages * kTokens + token) * kSteps + step) * kBytes;
    }
    static KARAT_INLINE int scale_at(int chunk, int step, int sub, int row) {
        return ((chunk % 2 * kSteps + step) * kSubs + sub) * kRowsOfBlock + row;
    }
    static KARAT_INLINE int part_at(int chunk, int step, int sub, int token, int row) {
        return (((chunk % 2 * kSteps + step) * kSubs + sub) * kTokens + token) * kRowsOfBlock + row;
    }

    // Parts of a row and 32 columns, for all tokens; their scales and minima.
    template <class Digits, class Floats>
    KARAT_INLINE void make_parts(const RowsOfBlock& rows, int lane, int chunk, int step, int tokens,
                                 const Digits& staged, const Floats& parts, const Floats& scales,
                                 const Floats& minima) const {
        constexpr int kSubsOfBlock = Fmt::kColumns / Fmt::kSub, kWords = Fmt::kSub / 4;
        const int first_sub = (chunk * kSteps + step) * kSubs;
        const std::uint8_t* const at =
            rows.panel + static_cast<std::size_t>(first_sub / kSubsOfBlock) * rows.of_panel * Fmt::kBytes;
        const Block block = block_of<Fmt>(at, rows.in_panel + lane, rows.of_panel);
        const auto codes = Fmt::Codes::make();
        const auto scaled = Fmt::Scales::of(block);
#pragma unroll
        for (int sub = 0; sub < kSubs; ++sub) {
            const int s = first_sub % kSubsOfBlock + sub;
            std::uint32_t words[kWords];
#pragma unroll
            for (int c = 0; c < kWords; ++c) words[c] = codes.of(block, s, c).v;
            scales.set(scale_at(chunk, step, sub, lane), scaled.scale(block, s).v);
            if constexpr (Fmt::kHasMinimum) minima.set(scale_at(chunk, step, sub, lane), scaled.minimum(block, s).v);
            for (int token = 0; token < tokens; ++token)
                parts.set(part_at(chunk, step, sub, token, lane),
                          part_of(words, sub, digits_at(chunk, token, step), staged));
        }
    }

    // The exact sum of code * q of a sub-block, as float32; of its digits, for int24.
    template <class Digits, int kWords>
    static KARAT_INLINE float part_of(const std::uint32_t (&codes)[kWords], int sub, int at, const Digits& staged) {
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
                const int from = static_cast<int>(Layout::kDigitsAt) + digit * kColumnsOfBlock + 4 * (sub * kWords + c);
                const U4 four = staged.template get_as<U4>(at + from);
#pragma unroll
                for (int i = 0; i < 4; ++i) of_digit[digit] = dot4(four.v[i], codes[c + i], of_digit[digit]);
            }
        if constexpr (kDigits == 1) return float_of_int(of_digit[0]);
        else if constexpr (kDigits == 2) return float_of_int(of_digit[0] * 256 + of_digit[1]);
        else return fma(float_of_int(of_digit[0]), 65536.0f, float_of_int(of_digit[1] * 256 + of_digit[2]));
    }

    // The chain after 32 more columns.
    template <class Digits, class Floats>
    static KARAT_INLINE float added(float sum, int row, int token, int chunk, int step, const Digits& staged,
                                    const Floats& parts, const Floats& scales, const Floats& minima) {
        const int at = digits_at(chunk, token, step);
        const float power = staged.template get_as<float>(at);
#pragma unroll
        for (int sub = 0; sub < kSubs; ++sub) {
            const int scale = scale_at(chunk, step, sub, row);
            sum = fma(parts.get(part_at(chunk, step, sub, token, row)), scales.get(scale) * power, sum);
            if constexpr (Fmt::kHasMinimum) {
                const auto q = [&](int i) {
                    return static_cast<std::int32_t>(
                        staged.template get_as<std::uint32_t>(at + static_cast<int>(Layout::kSumsAt) + 4 * i));
                };
                const float value = kSubs == 1 ? staged.template get_as<float>(at + static_cast<int>(Layout::kValueAt))
                                               : float_of_int(q(sub)) * power;
                sum = fma(value, minima.get(scale), sum);
            }
        }
        return sum;
    }
};

}  // namespace karat::gpu

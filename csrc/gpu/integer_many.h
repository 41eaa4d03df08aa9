// Linear layers on block formats for many tokens: tiles of 32 rows and 32 tokens on tensor cores. Weights are read and
// decoded once for the tokens of a tile; the bits are those of integer_few.h, whose parts these are.
//
// Columns go by in chunks of eight blocks of 32:
//
//     digits   copied              32 tokens, eight blocks each     one buffer
//     weights  read and decoded    a warp has a block, a lane a row: codes, scales, minima
//                barrier
//     chains   a warp has 16 rows and 8 tokens, a lane two of each: exact sums, and one multiply-add a sub-block
//                barrier
//
// Codes and digits are bytes, so float16 holds them. The sum of a sub-block and one digit is an integer below 2^21:
// tensor cores make it exactly. Sums of two or three digits are joined with one rounding, as they are defined.
#pragma once

#include "gpu/integer_parts.h"

namespace karat::gpu {

template <class Fmt, int kDigits>
struct IntegerMany {
    using Of = IntegerParts<Fmt, kDigits>;
    static constexpr int kTokens = 32, kSteps = 8;  // of a tile; of a chunk, blocks of 32 columns
    static constexpr int kThreads = 32 * kSteps, kRowsOfWarp = 16, kTokensOfWarp = 8;
    static_assert(kRowsOfBlock / kRowsOfWarp * (kTokens / kTokensOfWarp) == kSteps, "the warps have the tile");
    static constexpr int kBytes = static_cast<int>(Of::Layout::kBytes), kSubs = Of::kSubs, kWords = Of::kWords;
    static constexpr int kProducts = kWords / 4;      // of 16 columns, of a sub-block
    static constexpr int kStride = kRowsOfBlock + 8;  // of codes: the words that a warp reads lie in different banks
    static constexpr int kScales = kSteps * kSubs * kRowsOfBlock, kCodes = kSteps * kSubs * kWords * kStride;
    static_assert(kSteps * kColumnsOfBlock % Fmt::kColumns == 0, "a chunk has whole blocks");

    LinearShape a;
    const std::uint8_t* digits;  // of digits_rows rows
    int digits_rows;

    Grid grid() const {
        return {a.num_blocks(), pieces(a.tokens, kTokens), kThreads,
                static_cast<std::size_t>(kTokens * kSteps * kBytes) + sizeof(std::uint32_t) * kCodes +
                    sizeof(float) * (kScales * (Fmt::kHasMinimum ? 2 : 1) + a.num_leaves * kTokens * kRowsOfBlock)};
    }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const int first_token = cta.y() * kTokens, left = a.tokens - first_token;
        const int tokens = left < kTokens ? left : kTokens;
        const RowsOfBlock rows(a, cta.x(), first_token,
                               static_cast<std::size_t>(a.columns / Fmt::kColumns) * Fmt::kBytes);
        const int blocks = a.columns / kColumnsOfBlock;

        const auto staged = cta.template shared<std::uint8_t>(kTokens * kSteps * kBytes);
        const auto codes = cta.template shared<std::uint32_t>(kCodes);
        const auto scales = cta.template shared<float>(kScales);
        const auto minima = cta.template shared<float>(Fmt::kHasMinimum ? kScales : 0);
        const auto leaf_sums = cta.template shared<float>(a.num_leaves * kTokens * kRowsOfBlock);
        PerThread<Cta, Sums> sums(cta);
        PerThread<Cta, int> leaf(cta);

        cta.each([&](int thread) {
            leaf[thread] = 0;
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[thread].v[i] = 0;
        });
        for (int first = 0; first < blocks; first += kSteps) {
            const int count = blocks - first < kSteps ? blocks - first : kSteps;
            cta.each([&](int thread) {
                constexpr int kPieces = kBytes / 16;
                for (int i = thread; i < tokens * kSteps * kPieces; i += kThreads) {
                    const int piece = i % kPieces, step = i / kPieces % kSteps, token = i / kPieces / kSteps;
                    if (step >= count) continue;
                    const std::size_t from =
                        place_of_block<kBytes>(digits_rows, a.columns, first_token + token, first + step);
                    cta.copy16(staged, digits_at(token, step) + 16 * piece, digits + from + 16 * piece);
                }
            });
            cta.commit();
            cta.each([&](int thread) {
                const int step = thread / 32, row = thread % 32;
                if (step >= count || row >= rows.count) return;
                std::uint32_t own[kSubs][kWords];
                float own_scales[kSubs];
                Of::decode(rows, row, first + step, own, own_scales,
                           [&](int sub, float minimum) { minima.set(scale_at(step, sub, row), minimum); });
#pragma unroll
                for (int sub = 0; sub < kSubs; ++sub) {
                    scales.set(scale_at(step, sub, row), own_scales[sub]);
#pragma unroll
                    for (int c = 0; c < kWords; ++c) codes.set(code_at(step, sub, c, row), own[sub][c]);
                }
            });
            cta.template wait<0>();
            cta.sync();
            for (int step = 0; step < count; ++step) {
                cta.each([&](int thread) {
                    end_leaves(leaf_sums, (first + step) * kColumnsOfBlock, thread, leaf[thread], sums[thread]);
                });
#pragma unroll
                for (int sub = 0; sub < kSubs; ++sub) add(cta, step, sub, staged, codes, scales, minima, sums);
            }
            cta.sync();
        }
        cta.each([&](int thread) {
            end_leaves(leaf_sums, a.columns, thread, leaf[thread], sums[thread]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = row_of(thread, i), token = token_of(thread, i);
                if (row < rows.count)
                    leaves_of(leaf_sums, token, row).write(rows.layer, rows.first + row, first_token + token);
            }
        });
    }

private:
    struct Sums { float v[4]; };  // of the rows and tokens of a lane
    struct Halves { FourHalves codes[kProducts][2], digits[kProducts][kDigits]; };
    struct Parts { float v[kDigits][4]; };

    // Of sum `i` of a thread (Product).
    static KARAT_INLINE int row_of(int thread, int i) {
        return thread / 32 % 2 * kRowsOfWarp + thread % 32 / 4 + i / 2 * 8;
    }
    static KARAT_INLINE int token_of(int thread, int i) { return thread / 64 * kTokensOfWarp + thread % 4 * 2 + i % 2; }
    static KARAT_INLINE int digits_at(int token, int step) { return (step * kTokens + token) * kBytes; }
    static KARAT_INLINE int scale_at(int step, int sub, int row) { return (step * kSubs + sub) * kRowsOfBlock + row; }
    static KARAT_INLINE int code_at(int step, int sub, int word, int row) {
        return ((step * kSubs + sub) * kWords + word) * kStride + row;
    }
    template <class Floats>
    KARAT_INLINE Leaves<Floats> leaves_of(const Floats& leaf_sums, int token, int row) const {
        return {a, leaf_sums, token * kRowsOfBlock + row, kTokens * kRowsOfBlock};
    }
    template <class Floats>
    KARAT_INLINE void end_leaves(const Floats& leaf_sums, int column, int thread, int& leaf, Sums& sums) const {
        const int begun = leaf;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            leaf = begun;
            leaves_of(leaf_sums, token_of(thread, i), row_of(thread, i)).end_at(column, a.num_leaves, leaf, sums.v[i]);
        }
    }

    // The chains of the tile after a sub-block.
    template <class Cta, class Digits, class Words, class Floats, class AllSums>
    static KARAT_INLINE void add(Cta& cta, int step, int sub, const Digits& staged, const Words& codes,
                                 const Floats& scales, const Floats& minima, AllSums& sums) {
        PerThread<Cta, Halves> halves(cta);
        PerThread<Cta, Parts> parts(cta);
        cta.each([&](int thread) {
            const int column = thread % 4;  // of the words of 16 columns
            const int at = digits_at(thread / 64 * kTokensOfWarp + thread % 32 / 4, step);
#pragma unroll
            for (int product = 0; product < kProducts; ++product) {
                const int word = 4 * product + column;
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    halves[thread].codes[product][half] = halves_of_bytes<Fmt::Codes::kZero>(
                        codes.get(code_at(step, sub, word, row_of(thread, 2 * half))));
#pragma unroll
                for (int digit = 0; digit < kDigits; ++digit)
                    halves[thread].digits[product][digit] =
                        halves_of_bytes<128>(Of::digits(sub, digit, word, at, staged) ^ 0x80808080u);
            }
#pragma unroll
            for (int digit = 0; digit < kDigits; ++digit)
#pragma unroll
                for (int i = 0; i < 4; ++i) parts[thread].v[digit][i] = 0;
        });
#pragma unroll
        for (int product = 0; product < kProducts; ++product)
#pragma unroll
            for (int digit = 0; digit < kDigits; ++digit)
                cta.multiply([&](int thread) -> Product {
                    const auto& own = halves[thread];
                    return {own.codes[product][0], own.codes[product][1], own.digits[product][digit],
                            parts[thread].v[digit]};
                });
        cta.each([&](int thread) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int scale = scale_at(step, sub, row_of(thread, i)), at = digits_at(token_of(thread, i), step);
                float part = parts[thread].v[0][i], &sum = sums[thread].v[i];
                if constexpr (kDigits == 2) part = fma(part, 256.0f, parts[thread].v[1][i]);
                if constexpr (kDigits == 3)
                    part = fma(part, 65536.0f, fma(parts[thread].v[1][i], 256.0f, parts[thread].v[2][i]));
                sum = fma(part, scales.get(scale) * staged.template get_as<float>(at), sum);
                if constexpr (Fmt::kHasMinimum) sum = fma(Of::value(sub, at, staged), minima.get(scale), sum);
            }
        });
    }
};

}  // namespace karat::gpu

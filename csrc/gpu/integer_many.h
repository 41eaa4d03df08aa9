// Linear layers on block formats for many tokens: tiles of 32 rows and 32 tokens by products of bytes (dp4a). Weights
// are read and decoded once for the tokens of a tile; the bits are those of integer_few.h, whose parts these are.
//
// Columns go by in chunks of eight blocks of 32:
//
//     digits   copied              32 tokens, eight blocks each     one buffer
//     weights  read and decoded    a warp has a block, a lane a row: codes, scales, minima
//                barrier
//     chains   a warp has four tokens, a lane a row: exact sums, and one multiply-add a sub-block, in registers
//                barrier
#pragma once

#include "gpu/integer_parts.h"

namespace karat::gpu {

template <class Fmt, int kDigits>
struct IntegerMany {
    using Of = IntegerParts<Fmt, kDigits>;
    static constexpr int kTokens = 32, kSteps = 8;  // of a tile; of a chunk, blocks of 32 columns
    static constexpr int kThreads = 32 * kSteps, kTokensOfWarp = kTokens / kSteps;
    static constexpr int kBytes = static_cast<int>(Of::Layout::kBytes), kSubs = Of::kSubs, kWords = Of::kWords;
    static constexpr int kScales = kSteps * kSubs * kRowsOfBlock, kCodes = kScales * kWords;
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

        // Calls f(thread, step or warp, row).
        const auto each = [&](const auto& f) {
            cta.each([&](int thread) {
                if (thread % 32 < rows.count) f(thread, thread / 32, thread % 32);
            });
        };
        each([&](int thread, int, int) {
            leaf[thread] = 0;
#pragma unroll
            for (int i = 0; i < kTokensOfWarp; ++i) sums[thread].v[i] = 0;
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
            each([&](int, int step, int row) {
                if (step >= count) return;
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
            each([&](int thread, int warp, int row) {
                for (int step = 0; step < count; ++step) {
                    end_leaves(leaf_sums, (first + step) * kColumnsOfBlock, warp, row, leaf[thread], sums[thread]);
                    add(step, warp, row, tokens, staged, codes, scales, minima, sums[thread]);
                }
            });
            cta.sync();
        }
        each([&](int thread, int warp, int row) {
            end_leaves(leaf_sums, a.columns, warp, row, leaf[thread], sums[thread]);
            for (int i = 0; i < kTokensOfWarp; ++i)
                leaves_of(leaf_sums, warp * kTokensOfWarp + i, row)
                    .write(rows.layer, rows.first + row, first_token + warp * kTokensOfWarp + i);
        });
    }

private:
    struct Sums { float v[kTokensOfWarp]; };

    static KARAT_INLINE int digits_at(int token, int step) { return (token * kSteps + step) * kBytes; }
    static KARAT_INLINE int scale_at(int step, int sub, int row) { return (step * kSubs + sub) * kRowsOfBlock + row; }
    static KARAT_INLINE int code_at(int step, int sub, int word, int row) {
        return ((step * kSubs + sub) * kWords + word) * kRowsOfBlock + row;
    }
    template <class Floats>
    KARAT_INLINE Leaves<Floats> leaves_of(const Floats& leaf_sums, int token, int row) const {
        return {a, leaf_sums, token * kRowsOfBlock + row, kTokens * kRowsOfBlock};
    }
    template <class Floats>
    KARAT_INLINE void end_leaves(const Floats& leaf_sums, int column, int warp, int row, int& leaf, Sums& sums) const {
        const int begun = leaf;
#pragma unroll
        for (int i = 0; i < kTokensOfWarp; ++i) {
            leaf = begun;
            leaves_of(leaf_sums, warp * kTokensOfWarp + i, row).end_at(column, a.num_leaves, leaf, sums.v[i]);
        }
    }

    // The chains of a row and a warp's tokens after a block of 32 columns.
    template <class Digits, class Words, class Floats>
    static KARAT_INLINE void add(int step, int warp, int row, int tokens, const Digits& staged, const Words& codes,
                                 const Floats& scales, const Floats& minima, Sums& sums) {
#pragma unroll
        for (int sub = 0; sub < kSubs; ++sub) {
            std::uint32_t own[kWords];
#pragma unroll
            for (int c = 0; c < kWords; ++c) own[c] = codes.get(code_at(step, sub, c, row));
            const float scale = scales.get(scale_at(step, sub, row));
#pragma unroll
            for (int i = 0; i < kTokensOfWarp; ++i) {
                const int token = warp * kTokensOfWarp + i, at = digits_at(token, step);
                if (token >= tokens) continue;
                sums.v[i] = fma(Of::part(own, sub, at, staged), scale * staged.template get_as<float>(at), sums.v[i]);
                if constexpr (Fmt::kHasMinimum)
                    sums.v[i] = fma(Of::value(sub, at, staged), minima.get(scale_at(step, sub, row)), sums.v[i]);
            }
        }
    }
};

}  // namespace karat::gpu

// Linear layers on floats of a byte that share a scale, E4M3: a chain over each block of 128 columns, and one over the
// blocks (FP8 in docs/determinism.md). A lane has a row, and a warp some tokens, whose sums are in registers: a word of
// four weights that is read serves them all.
#pragma once

#include "formats/formats.h"
#include "gpu/panels.h"

namespace karat::gpu {

template <class Fmt, int kTokens>
struct ScaledLinear {
    static constexpr int kTokensOfWarp = kTokens == 1 ? 1 : 4, kThreads = 32 * (kTokens / kTokensOfWarp);

    LinearShape a;
    const float* x;  // [tokens, columns]

    Grid grid() const {
        return {a.num_blocks(), pieces(a.tokens, kTokens), kThreads,
                sizeof(float) * static_cast<std::size_t>(a.num_leaves * kTokens * kRowsOfBlock)};
    }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const int first_token = cta.y() * kTokens, blocks = a.columns / Fmt::kColumns;
        // The matrix is that of all tokens, or kTokens is 1.
        const RowsOfBlock rows(a, cta.x(), first_token, static_cast<std::size_t>(blocks) * Fmt::kBytes);
        if (!rows.panel) return;
        const auto leaf_sums = cta.template shared<float>(a.num_leaves * kTokens * kRowsOfBlock);
        cta.each([&](int thread) {
            const int row = thread % 32, own = thread / 32 * kTokensOfWarp, token = first_token + own;
            if (row >= rows.count || token >= a.tokens) return;
            const int tokens = a.tokens - token < kTokensOfWarp ? a.tokens - token : kTokensOfWarp;
            const float* const from = x + static_cast<std::size_t>(a.x_row(token)) * a.columns;
            float sums[kTokensOfWarp] = {};
            int leaf = 0;
            const auto leaves_of = [&](int i) {
                return Leaves<decltype(leaf_sums)>{a, leaf_sums, (own + i) * kRowsOfBlock + row,
                                                   kTokens * kRowsOfBlock};
            };
            const auto end_leaves = [&](int column) {
                const int begun = leaf;
#pragma unroll
                for (int i = 0; i < kTokensOfWarp; ++i) {
                    leaf = begun;
                    leaves_of(i).end_at(column, a.num_leaves, leaf, sums[i]);
                }
            };
            for (int number = 0; number < blocks; ++number) {
                end_leaves(number * Fmt::kColumns);
                const std::uint8_t* const at =
                    rows.panel + static_cast<std::size_t>(number) * rows.of_panel * Fmt::kBytes;
                add(block_of<Fmt>(at, rows.in_panel + row, rows.of_panel), from + number * Fmt::kColumns, tokens, sums);
            }
            end_leaves(a.columns);
            for (int i = 0; i < tokens; ++i) leaves_of(i).write(rows.layer, rows.first + row, token + i);
        });
    }

private:
    // The chains of a row and the first `tokens` tokens of a warp after a block.
    KARAT_INLINE void add(const Block& block, const float* from, int tokens, float (&sums)[kTokensOfWarp]) const {
        float parts[kTokensOfWarp] = {};
        for (int w = 0; w < Fmt::kWords; ++w) {
            const i32x16 word = block.word(1 + w);
#pragma unroll
            for (int j = 0; j < Fmt::kWordColumns; ++j) {
                const float number = Fmt::number(word, j).v;
                const float* const column = from + w * Fmt::kWordColumns + j;
#pragma unroll
                for (int i = 0; i < kTokensOfWarp; ++i)
                    if (i < tokens)
                        parts[i] =
                            fma(number, value_at<float>(column + static_cast<std::size_t>(i) * a.columns), parts[i]);
            }
        }
        const float scale = as_float(block.word(0)).v;
#pragma unroll
        for (int i = 0; i < kTokensOfWarp; ++i) sums[i] = fma(parts[i], scale, sums[i]);
    }
};

}  // namespace karat::gpu

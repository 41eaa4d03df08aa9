// Linear layers on stored floats for many tokens: tiles of 32 rows and 32 tokens. Weights are read once for the tokens
// of a tile; each output is the chain of float_few.h, leaf after leaf in the order of columns.
//
// Columns go by in chunks of 64, of which two buffers hold the weights and x. A warp adds the chains of four tokens, a
// lane a row; a weight that is read serves four of them.
#pragma once

#include "formats/formats.h"
#include "gpu/panels.h"

namespace karat::gpu {

template <class Fmt>
struct FloatMany {
    static constexpr int kTokens = 32, kWarps = 8, kThreads = 32 * kWarps, kTokensOfWarp = kTokens / kWarps;
    static constexpr int kColumns = 64, kStages = 2, kRowBytes = kRowsOfBlock * Fmt::kBytes;
    static constexpr int kWeightsOfStage = kColumns * kRowBytes, kXOfStage = kTokens * kColumns;
    static constexpr int kTogether = 4;  // columns that a chain reads at once

    LinearShape a;
    const float* x;  // [tokens, columns]

    Grid grid() const {
        return {a.num_blocks(), pieces(a.tokens, kTokens), kThreads,
                static_cast<std::size_t>(kStages * kWeightsOfStage) +
                    sizeof(float) * (kStages * kXOfStage + a.num_leaves * kTokens * kRowsOfBlock)};
    }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const int first_token = cta.y() * kTokens, left = a.tokens - first_token;
        const int tokens = left < kTokens ? left : kTokens;
        const RowsOfBlock rows(a, cta.x(), first_token, static_cast<std::size_t>(a.columns) * Fmt::kBytes);
        const int chunks = pieces(a.columns, kColumns);

        const auto weights = cta.template shared<std::uint8_t>(kStages * kWeightsOfStage);
        const auto staged_x = cta.template shared<float>(kStages * kXOfStage);
        const auto leaf_sums = cta.template shared<float>(a.num_leaves * kTokens * kRowsOfBlock);
        PerThread<Cta, Sums> sums(cta);
        PerThread<Cta, int> leaf(cta);

        const auto fetch = [&](int chunk) {
            const int stage = chunk % kStages, first = chunk * kColumns, rest = a.columns - first;
            const int count = rest < kColumns ? rest : kColumns;  // none beyond the last chunk
            cta.each([&](int thread) {
                constexpr int kPieces = kRowBytes / 16;
                for (int i = thread; i < count * kPieces; i += kThreads) {
                    const int piece = i % kPieces, at = i / kPieces;
                    if (16 * piece >= rows.count * Fmt::kBytes) continue;  // a narrow panel has half of the pieces
                    const std::size_t row = static_cast<std::size_t>(first + at) * rows.of_panel + rows.in_panel;
                    cta.copy16(weights, stage * kWeightsOfStage + at * kRowBytes + 16 * piece,
                               rows.panel + row * Fmt::kBytes + 16 * piece);
                }
                const bool is_aligned = a.columns % 4 == 0;
                const int step = is_aligned ? 4 : 1;
                for (int i = step * thread; i < tokens * kColumns; i += step * kThreads) {
                    const int token = i / kColumns, at = i % kColumns;
                    if (at >= count) continue;
                    const float* const from =
                        x + static_cast<std::size_t>(first_token + token) * a.columns + first + at;
                    if (is_aligned) cta.copy16(staged_x, stage * kXOfStage + i, from);
                    else cta.copy4(staged_x, stage * kXOfStage + i, from);
                }
            });
            cta.commit();
        };
        // Calls f(thread, the first token of its warp, row).
        const auto each = [&](const auto& f) {
            cta.each([&](int thread) {
                if (thread % 32 < rows.count) f(thread, thread / 32 * kTokensOfWarp, thread % 32);
            });
        };

        fetch(0);
        each([&](int thread, int, int) {
            leaf[thread] = 0;
#pragma unroll
            for (int i = 0; i < kTokensOfWarp; ++i) sums[thread].v[i] = 0;
        });
        for (int chunk = 0; chunk < chunks; ++chunk) {
            cta.template wait<0>();
            cta.sync();
            fetch(chunk + 1);  // into the buffer of the chunk before this one
            each([&](int thread, int token, int row) {
                const int first = chunk * kColumns, rest = a.columns - first, count = rest < kColumns ? rest : kColumns;
                const int w = chunk % kStages * kWeightsOfStage + row * Fmt::kBytes;
                const int x_at = chunk % kStages * kXOfStage + token * kColumns;
                for (int at = 0; at < count;) {
                    end_leaves(leaf_sums, first + at, token, row, leaf[thread], sums[thread]);
                    const int leaf_end = a.leaf_ends[leaf[thread]] - first, until = leaf_end < count ? leaf_end : count;
                    const auto many = [&] { return at % kTogether == 0 && at + kTogether <= until; };
                    for (; at < until && !many(); ++at)
                        add<1>(at, weights, w, staged_x, x_at, sums[thread], tokens - token);
                    for (; many(); at += kTogether)
                        add<kTogether>(at, weights, w, staged_x, x_at, sums[thread], tokens - token);
                }
            });
        }
        each([&](int thread, int token, int row) {
            end_leaves(leaf_sums, a.columns, token, row, leaf[thread], sums[thread]);
            for (int i = 0; i < kTokensOfWarp; ++i)
                leaves_of(leaf_sums, token + i, row).write(rows.layer, rows.first + row, first_token + token + i);
        });
    }

private:
    struct Sums { float v[kTokensOfWarp]; };
    using Stored = std::conditional_t<Fmt::kBytes == 4, std::uint32_t, std::uint16_t>;

    template <class Floats>
    KARAT_INLINE Leaves<Floats> leaves_of(const Floats& leaf_sums, int token, int row) const {
        return {a, leaf_sums, token * kRowsOfBlock + row, kTokens * kRowsOfBlock};
    }
    template <class Floats>
    KARAT_INLINE void end_leaves(const Floats& leaf_sums, int column, int token, int row, int& leaf, Sums& sums) const {
        const int begun = leaf;
#pragma unroll
        for (int i = 0; i < kTokensOfWarp; ++i) {
            leaf = begun;
            leaves_of(leaf_sums, token + i, row).end_at(column, a.num_leaves, leaf, sums.v[i]);
        }
    }

    // The chains of a row and a warp's first `tokens` tokens after kCount columns, 1 or 4.
    template <int kCount, class Weights, class Floats>
    static KARAT_INLINE void add(int at, const Weights& weights, int w, const Floats& x, int x_at, Sums& sums,
                                 int tokens) {
        float own[kCount];
#pragma unroll
        for (int c = 0; c < kCount; ++c) {
            const auto stored = weights.template get_as<Stored>(w + (at + c) * kRowBytes);
            own[c] = Fmt::read(reinterpret_cast<const std::uint8_t*>(&stored)).v;
        }
#pragma unroll
        for (int i = 0; i < kTokensOfWarp; ++i) {
            if (i >= tokens) continue;
            const int from = x_at + i * kColumns + at;
            if constexpr (kCount == 1) sums.v[i] = fma(own[0], x.get(from), sums.v[i]);
            else {
                const U4 four = x.template get_as<U4>(from);
#pragma unroll
                for (int c = 0; c < kCount; ++c) sums.v[i] = fma(own[c], float_of(four.v[c]), sums.v[i]);
            }
        }
    }
};

}  // namespace karat::gpu

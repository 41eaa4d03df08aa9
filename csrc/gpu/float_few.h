// Linear layers on stored floats: each output is one chain in the order of columns, or one for each leaf (LinearArgs in
// contract/kernels.h). All threads copy the next chunks of weights and of x, a thread a row and token adds.
#pragma once

#include "formats/formats.h"
#include "gpu/panels.h"

namespace karat::gpu {

template <class Fmt, int kTokens>
struct FloatFew {
    static constexpr int kThreads = 256, kColumns = 64, kStages = 3;  // columns of a chunk
    static constexpr int kWeightsOfStage = kColumns * kRowsOfBlock * Fmt::kBytes, kXOfStage = kTokens * kColumns;
    static_assert(kTokens * kRowsOfBlock <= kThreads, "chains have a thread for each row and token");

    LinearShape a;
    const float* x;  // [tokens, columns]

    Grid grid() const {
        return {a.num_blocks(), pieces(a.tokens, kTokens), kThreads,
                static_cast<std::size_t>(kStages * kWeightsOfStage) +
                    sizeof(float) * (kStages * kXOfStage + static_cast<int>(kMaxLeaves) * kTokens * kRowsOfBlock) +
                    128};
    }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const int first_token = cta.y() * kTokens, left = a.tokens - first_token;
        const std::uint8_t* const weight = a.weight_of(first_token);  // of all tokens, or kTokens is 1
        if (!weight) return;
        const RowsOfBlock rows(a, weight, cta.x(), static_cast<std::size_t>(a.columns) * Fmt::kBytes);
        const int tokens = left < kTokens ? left : kTokens, chunks = pieces(a.columns, kColumns);

        const auto weights = cta.template shared<std::uint8_t>(kStages * kWeightsOfStage);
        const auto staged_x = cta.template shared<float>(kStages * kXOfStage);
        const auto leaf_sums = cta.template shared<float>(static_cast<int>(kMaxLeaves) * kTokens * kRowsOfBlock);
        PerThread<Cta, float> sum(cta);
        PerThread<Cta, int> leaf(cta);

        const auto fetch = [&](int chunk) {
            const int first = chunk * kColumns, stage = chunk % kStages;
            const int count = a.columns - first < kColumns ? a.columns - first : kColumns;
            cta.each([&](int thread) {
                const int of_column = rows.count * Fmt::kBytes / 16;
                for (int i = thread; i < count * of_column; i += kThreads) {
                    const int column = i / of_column, piece = i % of_column;
                    const std::size_t row = static_cast<std::size_t>(first + column) * rows.of_panel + rows.in_panel;
                    cta.copy16(weights, stage * kWeightsOfStage + (column * kRowsOfBlock) * Fmt::kBytes + 16 * piece,
                               rows.panel + row * Fmt::kBytes + 16 * piece);
                }
                for (int i = thread; i < tokens * kColumns; i += kThreads) {
                    const int token = i / kColumns, column = i % kColumns;
                    if (column >= count) continue;
                    const std::size_t row = static_cast<std::size_t>(a.x_row(first_token + token));
                    const std::size_t from = row * a.columns + first + column;
                    staged_x.set(stage * kXOfStage + i, value_at<float>(x + from));
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
        for (int chunk = 0; chunk < chunks; ++chunk) {
            cta.template wait<1>();
            cta.sync();
            fetch(chunk + 2);  // into the buffer of the chunk before this one
            cta.each([&](int thread) {
                const int row = thread % kRowsOfBlock, token = thread / kRowsOfBlock;
                if (token >= tokens || row >= rows.count) return;
                const Leaves<decltype(leaf_sums)> leaves{a, leaf_sums, thread, kTokens * kRowsOfBlock};
                const int first = chunk * kColumns, end = first + kColumns < a.columns ? first + kColumns : a.columns;
                const int w = chunk % kStages * kColumns * kRowsOfBlock + row;
                const int x_at = chunk % kStages * kXOfStage + token * kColumns;
                for (int column = first; column < end;) {
                    leaves.end_at(column, leaf[thread], sum[thread]);
                    const int leaf_end = a.leaf_ends[leaf[thread]], until = leaf_end < end ? leaf_end : end;
                    float s = sum[thread];
                    for (; column < until; ++column)
                        s = fma(weight_at(weights, w + (column - first) * kRowsOfBlock),
                                staged_x.get(x_at + column - first), s);
                    sum[thread] = s;
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
    template <class Weights>
    static KARAT_INLINE float weight_at(const Weights& weights, int i) {
        using Stored = std::conditional_t<Fmt::kBytes == 4, std::uint32_t, std::uint16_t>;
        const Stored stored = weights.template get_as<Stored>(i * Fmt::kBytes);
        return Fmt::read(reinterpret_cast<const std::uint8_t*>(&stored)).v;
    }
};

}  // namespace karat::gpu

// Linear layers on stored floats: each output is one chain in the order of columns, or one for each leaf (LinearArgs in
// contract/kernels.h).
//
// Leaves are shared out over as many streams as there are warps for, each a run of neighbouring ones. Columns go by in
// chunks, of which every stream has a part. Four warps copy the next chunks of weights and of x; eight have a token and
// a stream each, a lane a row, and add:
//
//     8 leaves, 1 token    warp 0: leaf 0 | warp 1: leaf 1 | …         1 leaf, 4 tokens    warp 0: token 0 | warp 1: …
#pragma once

#include "formats/formats.h"
#include "gpu/panels.h"

namespace karat::gpu {

// What changes no bit: bytes of weights in a chunk, how many chunks there is room for, and how far weights are asked
// for ahead.
struct FloatPace { int chunk_bytes = 32768, stages = 3, blocks_of_core = 2, before_bytes = 65536; };

template <class Fmt, int kTokens, FloatPace kPace = FloatPace{}>
struct FloatFew {
    static constexpr int kWarps = 8, kChainThreads = 32 * kWarps, kCopyThreads = 128, kStages = kPace.stages;
    static constexpr int kThreads = kChainThreads + kCopyThreads;
    static constexpr int kBlocksOfCore = kPace.blocks_of_core;
    static constexpr int kRowBytes = kRowsOfBlock * Fmt::kBytes;
    static constexpr int kColumns = kPace.chunk_bytes / kRowBytes;  // of a chunk, over all streams
    static constexpr int kTogether = 16;                            // columns that a chain reads at once
    static constexpr int kWeightsOfStage = kColumns * kRowBytes, kXOfStage = kTokens * kColumns;
    static_assert(kTokens <= kWarps && kColumns % (kWarps * kTogether) == 0 && (kColumns & (kColumns - 1)) == 0);
    static_assert(kColumns / kWarps % (kCopyThreads * 16 / kRowBytes) == 0, "a copy at once is of one stream");

    LinearShape a;
    const float* x;  // [tokens, columns]

    Grid grid() const {
        return {a.num_blocks(), pieces(a.tokens, kTokens), kThreads,
                static_cast<std::size_t>(kStages * kWeightsOfStage) +
                    sizeof(float) * (kStages * kXOfStage + static_cast<int>(kMaxLeaves) * kTokens * kRowsOfBlock)};
    }

    // What can be done while launches before this one still run: the first weights come to the L2 cache.
    template <class Cta>
    KARAT_INLINE void ahead(Cta& cta) const {
        if (a.chosen.matrices) return;  // those launches choose
        const RowsOfBlock rows(a, cta.x(), 0, static_cast<std::size_t>(a.columns) * Fmt::kBytes);
        const int stream_bits = stream_bits_of(a.tokens < kTokens ? a.tokens : kTokens), streams = 1 << stream_bits;
        const int leaves_of_stream = a.num_leaves >> stream_bits, most = kPace.before_bytes / kRowBytes >> stream_bits;
        cta.each([&](int thread) {
            const int stream = thread / 32;
            if (stream >= streams) return;
            const int begin = first_column(stream * leaves_of_stream);
            const int end = first_column((stream + 1) * leaves_of_stream);
            rows.prefetch(cta, begin, begin + most < end ? begin + most : end, Fmt::kBytes, thread % 32, 32);
        });
    }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const int first_token = cta.y() * kTokens, left = a.tokens - first_token;
        // The matrix is that of all tokens, or kTokens is 1.
        const RowsOfBlock rows(a, cta.x(), first_token, static_cast<std::size_t>(a.columns) * Fmt::kBytes);
        if (!rows.panel) return;
        const int first_row = a.x_row(first_token);  // of x, and those of the other tokens follow
        const int tokens = left < kTokens ? left : kTokens;
        int streams = 1, of_stream_bits = log2_of(kColumns);  // in this form nvcc takes 76 registers; as in ahead, 147
        for (; 2 * streams * tokens <= kWarps && 2 * streams <= a.num_leaves; streams *= 2) --of_stream_bits;
        const int of_stream = 1 << of_stream_bits, leaves_of_stream = a.num_leaves / streams;
        const auto begin_of = [&](int stream) { return first_column(stream * leaves_of_stream); };
        int longest = 0;
        for (int stream = 0; stream < streams; ++stream) {
            const int columns = begin_of(stream + 1) - begin_of(stream);
            longest = longest < columns ? columns : longest;
        }
        const int chunks = pieces(longest, of_stream);

        const auto weights = cta.template shared<std::uint8_t>(kStages * kWeightsOfStage);
        const auto staged_x = cta.template shared<float>(kStages * kXOfStage);
        const auto leaf_sums = cta.template shared<float>(static_cast<int>(kMaxLeaves) * kTokens * kRowsOfBlock);
        PerThread<Cta, float> sum(cta);
        PerThread<Cta, int> leaf(cta);

        // The streams that columns of a chunk are of change at multiples of what all threads copy at once.
        constexpr int kPieces = kRowBytes / 16, kColumnsAtOnce = kCopyThreads / kPieces;
        bool is_aligned = a.columns % 4 == 0;
        for (int stream = 1; stream < streams; ++stream) is_aligned = is_aligned && begin_of(stream) % 4 == 0;
        const auto fetch = [&](int chunk) {
            const int stage = chunk % kStages;
            cta.each([&](int thread) {
                const int number = thread - kChainThreads, piece = number % kPieces;
                if (number < 0 || 16 * piece >= rows.count * Fmt::kBytes)
                    return;  // a narrow panel has half of the pieces
#pragma unroll
                for (int first = 0; first < kColumns; first += kColumnsAtOnce) {
                    const int stream = first >> of_stream_bits, at = first + number / kPieces;
                    const int column = begin_of(stream) + chunk * of_stream + (at & (of_stream - 1));
                    if (column >= begin_of(stream + 1)) continue;
                    const std::size_t row = static_cast<std::size_t>(column) * rows.of_panel + rows.in_panel;
                    cta.copy16(weights, stage * kWeightsOfStage + at * kRowBytes + 16 * piece,
                               rows.panel + row * Fmt::kBytes + 16 * piece);
                }
            });
            cta.each([&](int thread) {
                const int step = is_aligned ? 4 : 1;
                for (int i = step * (thread - kChainThreads); i >= 0 && i < tokens * kColumns;
                     i += step * kCopyThreads) {
                    const int token = i / kColumns, at = i % kColumns, stream = at >> of_stream_bits;
                    const int column = begin_of(stream) + chunk * of_stream + (at & (of_stream - 1));
                    if (column >= begin_of(stream + 1)) continue;
                    const float* const from = x + static_cast<std::size_t>(first_row + token) * a.columns + column;
                    if (is_aligned) cta.copy16(staged_x, stage * kXOfStage + i, from);
                    else cta.copy4(staged_x, stage * kXOfStage + i, from);
                }
            });
            cta.commit();
        };
        // Calls f(thread, row, token, stream) for each chain.
        const auto each_chain = [&](const auto& f) {
            cta.each([&](int thread) {
                const int row = thread % 32, warp = thread / 32, stream = warp & (streams - 1),
                          token = warp >> (log2_of(kColumns) - of_stream_bits);
                if (warp < kWarps && token < tokens && row < rows.count) f(thread, row, token, stream);
            });
        };

        for (int chunk = 0; chunk < kStages - 1; ++chunk) fetch(chunk);
        each_chain([&](int thread, int, int, int stream) {
            sum[thread] = 0;
            leaf[thread] = stream * leaves_of_stream;
        });
        for (int chunk = 0; chunk < chunks; ++chunk) {
            cta.template wait<kStages - 2>();
            cta.sync();
            fetch(chunk + kStages - 1);  // into the buffer of the chunk before this one
            each_chain([&](int thread, int row, int token, int stream) {
                const Leaves<decltype(leaf_sums)> leaves{a, leaf_sums, token * kRowsOfBlock + row,
                                                         kTokens * kRowsOfBlock};
                const int first = begin_of(stream) + chunk * of_stream, last_leaf = (stream + 1) * leaves_of_stream;
                const int left_over = begin_of(stream + 1) - first,
                          count = left_over < of_stream ? left_over : of_stream;
                const int stage = chunk % kStages, w = stage * kWeightsOfStage + stream * of_stream * kRowBytes;
                const int x_at = stage * kXOfStage + token * kColumns + stream * of_stream;
                for (int at = 0; at < count;) {
                    leaves.end_at(first + at, last_leaf, leaf[thread], sum[thread]);
                    const int leaf_end = a.leaf_ends[leaf[thread]] - first, until = leaf_end < count ? leaf_end : count;
                    const auto add = [&](int column) {
                        sum[thread] = fma(weight_at(weights, w + column * kRowBytes, row), staged_x.get(x_at + column),
                                          sum[thread]);
                    };
                    for (; at < until && at % kTogether; ++at) add(at);
                    if (const int many = (until - at) / kTogether; many > 0) {
                        sum[thread] = added(sum[thread], weights, w + at * kRowBytes, row, staged_x, x_at + at, many);
                        at += many * kTogether;
                    }
                    for (; at < until; ++at) add(at);
                }
            });
        }
        each_chain([&](int thread, int row, int token, int stream) {
            const Leaves<decltype(leaf_sums)> leaves{a, leaf_sums, token * kRowsOfBlock + row, kTokens * kRowsOfBlock};
            leaves.end_at(begin_of(stream + 1), (stream + 1) * leaves_of_stream, leaf[thread], sum[thread]);
        });
        cta.sync();
        each_chain([&](int, int row, int token, int stream) {
            if (stream) return;
            const Leaves<decltype(leaf_sums)> leaves{a, leaf_sums, token * kRowsOfBlock + row, kTokens * kRowsOfBlock};
            leaves.write(rows.layer, rows.first + row, first_token + token);
        });
    }

private:
    // There are 2^this streams.
    KARAT_INLINE int stream_bits_of(int tokens) const {
        int bits = 0;
        while ((2 << bits) * tokens <= kWarps && 2 << bits <= a.num_leaves) ++bits;
        return bits;
    }
    KARAT_INLINE int first_column(int leaf) const { return leaf ? a.leaf_ends[leaf - 1] : 0; }
    static constexpr KARAT_INLINE int log2_of(int n) { return n == 1 ? 0 : 1 + log2_of(n / 2); }

    using Stored = std::conditional_t<Fmt::kBytes == 4, std::uint32_t, std::uint16_t>;

    template <class Weights>
    static KARAT_INLINE Stored stored_at(const Weights& weights, int column_at, int row) {
        return weights.template get_as<Stored>(column_at + row * Fmt::kBytes);
    }
    static KARAT_INLINE float read(Stored stored) {
        return Fmt::read(reinterpret_cast<const std::uint8_t*>(&stored)).v;
    }
    template <class Weights>
    static KARAT_INLINE float weight_at(const Weights& weights, int column_at, int row) {
        return read(stored_at(weights, column_at, row));
    }

    // The chain after `many` times kTogether columns. While those are added the next ones are read.
    template <class Weights, class Floats>
    static KARAT_INLINE float added(float sum, const Weights& weights, int w, int row, const Floats& x, int x_at,
                                    int many) {
        Stored ws[2][kTogether];
        U4 xs[2][kTogether / 4];
        const auto load = [&](int group, int to) {
#pragma unroll
            for (int i = 0; i < kTogether; ++i)
                ws[to][i] = stored_at(weights, w + (group * kTogether + i) * kRowBytes, row);
#pragma unroll
            for (int i = 0; i < kTogether / 4; ++i) xs[to][i] = x.template get_as<U4>(x_at + group * kTogether + 4 * i);
        };
        const auto add = [&](int from) {
#pragma unroll
            for (int i = 0; i < kTogether; ++i) sum = fma(read(ws[from][i]), float_of(xs[from][i / 4].v[i % 4]), sum);
        };
        load(0, 0);
        int group = 0;
        for (; group + 2 < many; group += 2) {
            load(group + 1, 1);
            add(0);
            load(group + 2, 0);
            add(1);
        }
        if (group + 1 < many) {
            load(group + 1, 1);
            add(0);
            add(1);
        } else {
            add(0);
        }
        return sum;
    }
};

}  // namespace karat::gpu

// Linear layers on block formats for few tokens: products of bytes (dp4a), as IntegerKernels in contract/kernels.h
// defines them; integer_many.h is for many.
//
// Columns go by in chunks. Twelve warps compute the exact sums (`parts`) of two blocks of 32 columns each, a lane a
// row; a warp for each token adds the parts of the chunk before to its rows' chains, in order:
//
//     weights  asked for some chunks ahead               to come to the L2 cache
//     digits   copied 0 | copied 1 | copied 2 | …        three buffers
//     parts               parts 0  | parts 1  | …        two
//     chains                         chain 0  | chain 1 | …
//                       barrier    barrier    barrier
#pragma once

#include "gpu/integer_parts.h"

namespace karat::gpu {

// What changes no bit: warps that make parts, blocks of 32 columns that each takes at once, how far weights are asked
// for ahead, blocks of threads that a multiprocessor is to have registers for, and how much is asked for before a
// launch.
struct IntegerPace { int warps, at_once, ahead_bytes, blocks_of_core, before_bytes = 65536; };
template <class Fmt>
constexpr IntegerPace pace_of_integers(int tokens) {  // sub-blocks of 16 columns take more registers
    if (Fmt::kSub == 16) return {16, 1, 24576, tokens == 1 ? 2 : 1};
    return {tokens == 1 ? 12 : 8, 2, 24576, 2};
}

template <class Fmt, int kDigits, int kTokens, IntegerPace kPace = pace_of_integers<Fmt>(kTokens)>
struct IntegerFew {
    using Layout = DigitBlock<kDigits>;
    using Of = IntegerParts<Fmt, kDigits>;
    static constexpr int kAtOnce = kPace.at_once, kSteps = kPace.warps * kAtOnce;  // of a chunk: blocks of 32 columns
    static constexpr int kPartThreads = kPace.warps * 32, kThreads = kPartThreads + kTokens * 32;
    static constexpr int kBlocksOfCore = kPace.blocks_of_core;
    static constexpr int kSubs = Of::kSubs;
    static constexpr int kBytes = static_cast<int>(Layout::kBytes), kStages = 3;
    static constexpr int kDigitsOfStage = kTokens * kSteps * kBytes;
    static constexpr int kMinimaOfBuffer = kSteps * kSubs * kRowsOfBlock, kPartsOfBuffer = kTokens * kMinimaOfBuffer;
    static constexpr int kStoredOfChunk = kSteps * kColumnsOfBlock / Fmt::kColumns;  // blocks of the format
    static constexpr int kAhead = pieces(kPace.ahead_bytes, kStoredOfChunk * kRowsOfBlock * Fmt::kBytes);  // chunks
    static constexpr int kTogether = 8 / kSubs;  // blocks of 32 columns whose parts a chain reads at once
    static_assert(kStoredOfChunk * Fmt::kColumns == kSteps * kColumnsOfBlock, "a chunk has whole blocks");

    struct alignas(8) Part {
        float sum, scale;  // of code * q, as float32; of the weights times that of the digits
    };

    LinearShape a;
    const std::uint8_t* digits;  // of digits_rows rows
    int digits_rows;

    Grid grid() const {
        return {a.num_blocks(), pieces(a.tokens, kTokens), kThreads,
                static_cast<std::size_t>(kStages * kDigitsOfStage) + sizeof(Part) * 2 * kPartsOfBuffer +
                    sizeof(float) * ((Fmt::kHasMinimum ? 2 * kMinimaOfBuffer : 0) +
                                     static_cast<int>(kMaxLeaves) * kTokens * kRowsOfBlock)};
    }

    // What can be done while launches before this one still run: the first weights come to the L2 cache.
    template <class Cta>
    KARAT_INLINE void ahead(Cta& cta) const {
        if (a.chosen.matrices) return;  // those launches choose
        constexpr int kMost = pieces(kPace.before_bytes, kRowsOfBlock * Fmt::kBytes);
        const int stored = a.columns / Fmt::kColumns;
        const RowsOfBlock rows(a, cta.x(), 0, static_cast<std::size_t>(stored) * Fmt::kBytes);
        cta.each([&](int thread) {
            if (thread < 32) rows.prefetch(cta, 0, stored < kMost ? stored : kMost, Fmt::kBytes, thread, 32);
        });
    }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const int first_token = cta.y() * kTokens, left = a.tokens - first_token;
        // The matrix is that of all tokens, or kTokens is 1.
        const RowsOfBlock rows(a, cta.x(), first_token,
                               static_cast<std::size_t>(a.columns / Fmt::kColumns) * Fmt::kBytes);
        if (!rows.panel) return;
        const int first_row = a.x_row(first_token);  // of x, and those of the other tokens follow
        const int tokens = left < kTokens ? left : kTokens;
        const int blocks = a.columns / kColumnsOfBlock, chunks = pieces(blocks, kSteps);

        const auto staged = cta.template shared<std::uint8_t>(kStages * kDigitsOfStage);
        const auto parts = cta.template shared<Part>(2 * kPartsOfBuffer);
        const auto minima = cta.template shared<float>(Fmt::kHasMinimum ? 2 * kMinimaOfBuffer : 0);
        const auto leaf_sums = cta.template shared<float>(static_cast<int>(kMaxLeaves) * kTokens * kRowsOfBlock);
        PerThread<Cta, float> sum(cta);
        PerThread<Cta, int> leaf(cta);

        const auto prefetch = [&](int first, int end) {  // weights of these chunks, by the first warp of chains
            cta.each([&](int thread) {
                const int stored = a.columns / Fmt::kColumns, to = end * kStoredOfChunk;
                if (const int lane = thread - kPartThreads; lane >= 0 && lane < 32)
                    rows.prefetch(cta, first * kStoredOfChunk, to < stored ? to : stored, Fmt::kBytes, lane, 32);
            });
        };
        const auto fetch = [&](int chunk) {
            cta.each([&](int thread) {
                constexpr int kPieces = kBytes / 16;
                for (int i = thread; i < kTokens * kSteps * kPieces; i += kThreads) {
                    const int piece = i % kPieces, step = i / kPieces % kSteps, token = i / kPieces / kSteps;
                    const int block = chunk * kSteps + step;
                    if (block >= blocks || token >= tokens) continue;
                    const std::size_t from = place_of_block<kBytes>(digits_rows, a.columns, first_row + token, block);
                    cta.copy16(staged, digits_at(chunk, token, step) + 16 * piece, digits + from + 16 * piece);
                }
            });
            cta.commit();
        };

        if (kAhead > 0) prefetch(0, kAhead);
        fetch(0);
        fetch(1);
        cta.each([&](int thread) {
            sum[thread] = 0;
            leaf[thread] = 0;
        });
        cta.template wait<1>();
        cta.sync();
        for (int chunk = 0; chunk <= chunks; ++chunk) {
            cta.each([&](int thread) {
                if (thread >= kPartThreads || chunk == chunks) return;
                const int lane = thread % 32, first = thread / 32 * kAtOnce, to_do = blocks - chunk * kSteps - first;
                if (lane >= rows.count) return;
                if (to_do >= kAtOnce) make_parts<kAtOnce>(rows, lane, chunk, first, tokens, staged, parts, minima);
                else
                    for (int step = first; step < first + to_do; ++step)
                        make_parts<1>(rows, lane, chunk, step, tokens, staged, parts, minima);
            });
            if (kAhead > 0 && chunk < chunks) prefetch(chunk + kAhead, chunk + kAhead + 1);
            cta.each([&](int thread) {
                if (thread < kPartThreads || chunk == 0) return;
                const int row = thread % 32, token = (thread - kPartThreads) / 32;
                if (token >= tokens || row >= rows.count) return;
                add_chunk(chunk - 1, row, token, leaf[thread], sum[thread], staged, parts, minima, leaf_sums);
            });
            cta.template wait<0>();
            cta.sync();
            fetch(chunk + 2);  // into the buffer of the chunk before this one
        }
        cta.each([&](int thread) {
            const int row = thread % 32, token = (thread - kPartThreads) / 32;
            if (thread < kPartThreads || token >= tokens || row >= rows.count) return;
            const auto leaves = leaves_of(leaf_sums, row, token);
            leaves.end_at(a.columns, a.num_leaves, leaf[thread], sum[thread]);
            leaves.write(rows.layer, rows.first + row, first_token + token);
        });
    }

private:
    static KARAT_INLINE int digits_at(int chunk, int token, int step) {
        return ((chunk % kStages * kTokens + token) * kSteps + step) * kBytes;
    }
    static KARAT_INLINE int minimum_at(int chunk, int step, int sub, int row) {
        return ((chunk % 2 * kSteps + step) * kSubs + sub) * kRowsOfBlock + row;
    }
    static KARAT_INLINE int part_at(int chunk, int step, int sub, int token, int row) {
        return (((chunk % 2 * kSteps + step) * kSubs + sub) * kTokens + token) * kRowsOfBlock + row;
    }
    template <class Sums>
    KARAT_INLINE Leaves<Sums> leaves_of(const Sums& sums, int row, int token) const {
        return {a, sums, token * kRowsOfBlock + row, kTokens * kRowsOfBlock};
    }

    // Parts of a row and kCount blocks of 32 columns, for all tokens; and minima. Whatever is read of weights is asked
    // for before any of it is used.
    template <int kCount, class Digits, class Parts, class Floats>
    KARAT_INLINE void make_parts(const RowsOfBlock& rows, int lane, int chunk, int step, int tokens,
                                 const Digits& staged, const Parts& parts, const Floats& minima) const {
        std::uint32_t codes[kCount][kSubs][Of::kWords];
        float scales[kCount][kSubs];
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            Of::decode(rows, lane, chunk * kSteps + step + i, codes[i], scales[i],
                       [&](int sub, float minimum) { minima.set(minimum_at(chunk, step + i, sub, lane), minimum); });
        for (int token = 0; token < tokens; ++token)
#pragma unroll
            for (int i = 0; i < kCount; ++i) {
                const int at = digits_at(chunk, token, step + i);
                const float power = staged.template get_as<float>(at);
#pragma unroll
                for (int sub = 0; sub < kSubs; ++sub)
                    parts.set(part_at(chunk, step + i, sub, token, lane),
                              {Of::part(codes[i][sub], sub, at, staged), scales[i][sub] * power});
            }
    }

    // The chain of a row and token after a chunk.
    template <class Digits, class Parts, class Floats>
    KARAT_INLINE void add_chunk(int chunk, int row, int token, int& leaf, float& sum, const Digits& staged,
                                const Parts& parts, const Floats& minima, const Floats& leaf_sums) const {
        const int first = chunk * kSteps, left = a.columns / kColumnsOfBlock - first;
        const int count = left < kSteps ? left : kSteps;
        for (int step = 0; step < count;) {
            leaves_of(leaf_sums, row, token).end_at((first + step) * kColumnsOfBlock, a.num_leaves, leaf, sum);
            const int leaf_end = a.leaf_ends[leaf] / kColumnsOfBlock - first,
                      until = leaf_end < count ? leaf_end : count;
            for (; step + kTogether <= until; step += kTogether)
                sum = added<kTogether>(sum, row, token, chunk, step, staged, parts, minima);
            for (; step < until; ++step) sum = added<1>(sum, row, token, chunk, step, staged, parts, minima);
        }
    }

    // The same after kCount blocks of 32 columns.
    template <int kCount, class Digits, class Parts, class Floats>
    static KARAT_INLINE float added(float sum, int row, int token, int chunk, int step, const Digits& staged,
                                    const Parts& parts, const Floats& minima) {
        Part part[kCount * kSubs];
#pragma unroll
        for (int i = 0; i < kCount * kSubs; ++i)
            part[i] = parts.get(part_at(chunk, step + i / kSubs, i % kSubs, token, row));
#pragma unroll
        for (int i = 0; i < kCount * kSubs; ++i) {
            sum = fma(part[i].sum, part[i].scale, sum);
            if constexpr (Fmt::kHasMinimum) {
                const int at = digits_at(chunk, token, step + i / kSubs), sub = i % kSubs;
                sum = fma(Of::value(sub, at, staged), minima.get(minimum_at(chunk, step + i / kSubs, sub, row)), sum);
            }
        }
        return sum;
    }
};

}  // namespace karat::gpu

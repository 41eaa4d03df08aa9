// What both kinds of linear layers share: the rows of a block of threads, and the tree over leaves
// (contract/kernels.h).
#pragma once

#include "gpu/shapes.h"
#include "gpu/simt.h"

namespace karat::gpu {

inline constexpr int kPanelRows = 64, kRowsOfBlock = 32, kColumnsOfBlock = 32;

// Up to so many tokens a layer's weights go by once for one to eight tokens, in kernels made for reading memory; for
// more they are read once for the 32 tokens of a tile.
inline constexpr int kFewTokens = 16;

// The rows of a block of threads, number `x` of those of all layers.
struct RowsOfBlock {
    Layer layer;                // its own
    const std::uint8_t* panel;  // null: a row has no matrix here (Chosen)
    int first;                  // row of the matrix
    int of_panel;               // 64 or 16
    int in_panel;               // the first of them
    int count;                  // 32 or 16

    // `row_bytes`: of all columns of a row of weights. Layers are told apart without an index that only runs know, so
    // that all else is read where it lies.
    KARAT_INLINE RowsOfBlock(const LinearShape& a, int x, int token, std::size_t row_bytes) : layer(a.layers[0]) {
        int block = x;
#pragma unroll
        for (int i = 1; i < kMostBeside; ++i)
            if (i < a.num_layers && x >= a.ends[i - 1]) {
                layer = a.layers[i];
                block = x - a.ends[i - 1];
            }
        const int halves = layer.num_groups() / 4 * 2, wide_rows = halves * kRowsOfBlock;
        const bool is_wide = block < halves;
        const int panel_row =
            is_wide ? block / 2 * kPanelRows : wide_rows + (block - halves) * static_cast<int>(kGroupRows);
        const std::uint8_t* weight = layer.weight;
        if (a.chosen.matrices) {
            const int expert = a.chosen.ids[token] - a.chosen.first;
            weight = expert >= 0 && expert < a.chosen.count ? a.chosen.matrices[expert] : nullptr;
        }
        panel = weight ? in_global(weight) + static_cast<std::size_t>(panel_row) * row_bytes : nullptr;
        of_panel = is_wide ? kPanelRows : static_cast<int>(kGroupRows);
        in_panel = is_wide ? block % 2 * kRowsOfBlock : 0;
        first = panel_row + in_panel;
        count = is_wide ? kRowsOfBlock : static_cast<int>(kGroupRows);
    }

    // Asks for what lies at first … end - 1 of a row of `block_bytes` long blocks to come to the L2 cache. Two blocks
    // of threads have the two halves of a wide panel: each asks for half of the bytes, in one piece.
    template <class Cta>
    KARAT_INLINE void prefetch(const Cta& cta, int begin, int end, int block_bytes, int thread, int threads) const {
        const int all = (end - begin) * of_panel * block_bytes, half = of_panel > kRowsOfBlock ? all / 32 * 16 : all;
        const int from = in_panel ? half : 0, bytes = in_panel ? all - half : half;
        const std::size_t at = static_cast<std::size_t>(begin) * of_panel * block_bytes + from;
        if (all > 0) cta.prefetch(panel + at, bytes, thread, threads);
    }
};

// The chains of one output: a sum for each leaf. All leaves of an output lie in shared memory, [leaves, threads].
template <class Sums>
struct Leaves {
    const LinearShape& a;
    Sums sums;
    int thread, threads;

    // Ends the leaves before `last` that end at `column`.
    KARAT_INLINE void end_at(int column, int last, int& leaf, float& sum) const {
        while (leaf < last && a.leaf_ends[leaf] == column) {
            sums.set(leaf * threads + thread, sum);
            sum = 0;
            ++leaf;
        }
    }
    // The binary tree, then bias and residual; or the leaves, each by itself.
    KARAT_INLINE void write(const Layer& layer, int row, int token) const {
        if (a.keeps_leaves) {
            for (int i = 0; i < a.num_leaves && row < layer.rows && token < a.tokens; ++i)
                layer.out[(static_cast<std::size_t>(token) * a.num_leaves + i) * layer.rows + row] =
                    sums.get(i * threads + thread);
            return;
        }
        for (int width = 1; width < a.num_leaves; width *= 2)
            for (int i = 0; i < a.num_leaves; i += 2 * width)
                sums.set(i * threads + thread,
                         sums.get(i * threads + thread) + sums.get((i + width) * threads + thread));
        if (row >= layer.rows || token >= a.tokens) return;
        const std::size_t at = static_cast<std::size_t>(token) * layer.rows + row;
        float sum = sums.get(thread);
        if (layer.bias) sum = sum + layer.bias[row];
        if (a.residual) sum = sum + a.residual[at];
        layer.out[at] = sum;
    }
};

}  // namespace karat::gpu

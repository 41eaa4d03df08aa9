// What both kinds of linear layers share: the rows of a block of threads, and the tree over leaves
// (contract/kernels.h).
#pragma once

#include "contract/kernels.h"
#include "gpu/simt.h"

namespace karat::gpu {

inline constexpr int kPanelRows = 64, kRowsOfBlock = 32, kColumnsOfBlock = 32;

// The experts of a mixture: row t of a result is pair t, of row t / per_row of x and of matrix ids[t] - first. It is
// not written if that is none of `count`.
struct Chosen {
    const std::uint8_t* const* matrices;  // null: LinearShape::weight is for all rows
    const std::int32_t* ids;
    int first, count, per_row;
};

// out[t, r] = (the sum over columns + bias[r]) + residual[t, r]; bias and residual may be null.
struct LinearShape {
    const std::uint8_t* weight;  // packed (contract/packed.h), 16-byte aligned
    int rows, columns, tokens;
    float* out;  // [tokens, rows]
    const float* bias;
    const float* residual;  // as out
    int num_leaves;         // a power of two
    int leaf_ends[kMaxLeaves];
    Chosen chosen;

    // The matrix of a row of the result, or null, and the row of x.
    KARAT_INLINE const std::uint8_t* weight_of(int token) const {
        if (!chosen.matrices) return weight;
        const int expert = chosen.ids[token] - chosen.first;
        return expert >= 0 && expert < chosen.count ? chosen.matrices[expert] : nullptr;
    }
    KARAT_INLINE int x_row(int token) const { return chosen.matrices ? token / chosen.per_row : token; }

    // A block of threads has 32 rows of a wide panel, or a panel of 16.
    KARAT_HOST KARAT_INLINE int num_groups() const { return pieces(rows, static_cast<int>(kGroupRows)); }
    KARAT_HOST KARAT_INLINE int num_blocks() const { return num_groups() / 4 * 2 + num_groups() % 4; }
};

struct RowsOfBlock {
    const std::uint8_t* panel;
    int first;     // row of the matrix
    int of_panel;  // 64 or 16
    int in_panel;  // the first of them
    int count;     // 32 or 16

    // `row_bytes`: of all columns of a row of `weight`.
    KARAT_INLINE RowsOfBlock(const LinearShape& a, const std::uint8_t* weight, int block, std::size_t row_bytes) {
        const int halves = a.num_groups() / 4 * 2, wide_rows = halves * kRowsOfBlock;
        const bool is_wide = block < halves;
        const int panel_row =
            is_wide ? block / 2 * kPanelRows : wide_rows + (block - halves) * static_cast<int>(kGroupRows);
        panel = weight + static_cast<std::size_t>(panel_row) * row_bytes;
        of_panel = is_wide ? kPanelRows : static_cast<int>(kGroupRows);
        in_panel = is_wide ? block % 2 * kRowsOfBlock : 0;
        first = panel_row + in_panel;
        count = is_wide ? kRowsOfBlock : static_cast<int>(kGroupRows);
    }
};

// The chain of one output: a sum for each leaf. All leaves of an output lie in shared memory, [leaves, threads].
template <class Sums>
struct Leaves {
    const LinearShape& a;
    Sums sums;
    int thread, threads;

    // Ends the leaves that end at `column`.
    KARAT_INLINE void end_at(int column, int& leaf, float& sum) const {
        while (leaf < a.num_leaves && a.leaf_ends[leaf] == column) {
            sums.set(leaf * threads + thread, sum);
            sum = 0;
            ++leaf;
        }
    }
    // The binary tree, then bias and residual.
    KARAT_INLINE void write(int row, int token) const {
        for (int width = 1; width < a.num_leaves; width *= 2)
            for (int i = 0; i < a.num_leaves; i += 2 * width)
                sums.set(i * threads + thread,
                         sums.get(i * threads + thread) + sums.get((i + width) * threads + thread));
        if (row >= a.rows || token >= a.tokens) return;
        const std::size_t at = static_cast<std::size_t>(token) * a.rows + row;
        float sum = sums.get(thread);
        if (a.bias) sum = sum + a.bias[row];
        if (a.residual) sum = sum + a.residual[at];
        a.out[at] = sum;
    }
};

}  // namespace karat::gpu

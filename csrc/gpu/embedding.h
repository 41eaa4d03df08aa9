// Rows of a packed table as float32, and the rows whose logits are wanted (contract/kernels.h).
#pragma once

#include "formats/formats.h"
#include "gpu/panels.h"

namespace karat::gpu {

template <class Fmt>
inline constexpr bool kIsScaled = requires { Fmt::kWordColumns; };
template <class Fmt>
inline constexpr bool kIsBlock = Fmt::kColumns > 1;

// out [tokens, columns] = rows ids[t] of the table. A thread makes a sub-block, or a number or a word of
// stored floats.
template <class Fmt>
struct Embedding {
    static constexpr bool kIsShort = true;
    static constexpr int kThreads = 128;
    LinearShape a;  // the table as a layer; tokens; out
    const std::int32_t* ids;

    static KARAT_HOST constexpr KARAT_INLINE int columns_at_once() {
        if constexpr (kIsScaled<Fmt>) return Fmt::kWordColumns;
        else if constexpr (kIsBlock<Fmt>) return Fmt::kSub;
        else return 1;
    }
    Grid grid() const { return {pieces(a.columns / columns_at_once(), kThreads), a.tokens, kThreads, 0}; }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        cta.each([&](int thread) {
            const int item = cta.x() * kThreads + thread, token = cta.y(), column = item * columns_at_once();
            if (column >= a.columns) return;
            const int row = ids[token];
            const int wide_rows = a.layers[0].num_groups() / 4 * kPanelRows, size = static_cast<int>(kGroupRows);
            const int panel_rows = row < wide_rows ? kPanelRows : size, first = row / panel_rows * panel_rows;
            const std::size_t row_bytes = static_cast<std::size_t>(a.columns / Fmt::kColumns) * Fmt::kBytes;
            const std::uint8_t* const panel = a.layers[0].weight + static_cast<std::size_t>(first) * row_bytes;
            float* const out = a.layers[0].out + static_cast<std::size_t>(token) * a.columns + column;
            const std::size_t step = static_cast<std::size_t>(panel_rows) * Fmt::kBytes;
            if constexpr (!kIsBlock<Fmt>) {
                *out = Fmt::read(panel + static_cast<std::size_t>(column) * step + (row - first) * Fmt::kBytes).v;
            } else {
                const Block block = block_of<Fmt>(panel + static_cast<std::size_t>(column / Fmt::kColumns) * step,
                                                  row - first, panel_rows);
                if constexpr (kIsScaled<Fmt>) word(block, column % Fmt::kColumns / Fmt::kWordColumns, out);
                else sub_block(block, column % Fmt::kColumns / Fmt::kSub, out);
            }
        });
    }

private:
    static KARAT_INLINE void word(const Block& block, int w, float* out) {
#pragma unroll
        for (int j = 0; j < Fmt::kWordColumns; ++j)
            out[j] = (Fmt::number(block.word(1 + w), j) * as_float(block.word(0))).v;
    }
    static KARAT_INLINE void sub_block(const Block& block, int s, float* out) {
        const auto codes = Fmt::Codes::make();
        const f32x16 scale = scale_of<Fmt>(block, s);
#pragma unroll
        for (int c = 0; c < Fmt::kSub / 4; ++c) {
            const i32x16 four = codes.of(block, s, c);
            for (int j = 0; j < 4; ++j) {
                const f32x16 code = to_float(((four >> (8 * j)) & iset1(255)) - iset1(Fmt::Codes::kZero));
                if constexpr (Fmt::kHasMinimum) out[4 * c + j] = fma(code, scale, minimum_of<Fmt>(block, s)).v;
                else out[4 * c + j] = (code * scale).v;
            }
        }
    }
};

// out [count, columns] = rows ids[i] of x.
struct SelectRows {
    static constexpr bool kIsShort = true;
    static constexpr int kThreads = 128;
    const float* x;
    const std::int32_t* ids;
    int count, columns;
    float* out;

    Grid grid() const { return {pieces(columns, kThreads), count, kThreads, 0}; }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        cta.each([&](int thread) {
            const int column = cta.x() * kThreads + thread;
            if (column >= columns) return;
            const std::size_t from = static_cast<std::size_t>(ids[cta.y()]) * columns + column;
            out[static_cast<std::size_t>(cta.y()) * columns + column] = value_at<float>(x + from);
        });
    }
};

}  // namespace karat::gpu

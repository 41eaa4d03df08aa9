// Rows of a packed table, as float32 (kernels.h).
#include "kernels/linear.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

template <class Fmt>
void row_of(const Matrix& table, std::size_t row, float* out) {
    const std::size_t group = row / kGroupRows, lane = row % kGroupRows, panel = table.panel_of_group(group);
    const int groups = static_cast<int>(table.panel_groups(panel));
    const int g = static_cast<int>(group - table.first_group(panel));
    const std::uint8_t* w = table.panel(panel);
    float lanes[kLanes];
    if constexpr (kIsScaled<Fmt>) {
        const std::size_t step = static_cast<std::size_t>(groups) * kLanes * sizeof(float);
        w += static_cast<std::size_t>(g) * kLanes * sizeof(float);
        for (std::size_t k = 0; k < table.columns; k += Fmt::kColumns, w += step) {
            const f32x16 scale = load(reinterpret_cast<const float*>(w));
            for (int word = 0; word < Fmt::kWords; ++word) {
                w += step;
                for (int j = 0; j < Fmt::kWordColumns; ++j) {
                    store(lanes, Fmt::number(iload(w), j) * scale);
                    *out++ = lanes[lane];
                }
            }
        }
    } else if constexpr (!kIsBlock<Fmt>) {
        const std::size_t step = static_cast<std::size_t>(groups) * kLanes * Fmt::kBytes;
        for (std::size_t k = 0; k < table.columns; ++k, w += step) {
            store(lanes, Fmt::read(w + static_cast<std::size_t>(g) * kLanes * Fmt::kBytes));
            out[k] = lanes[lane];
        }
    } else {
        const auto codes = Fmt::Codes::make();
        const std::size_t step = static_cast<std::size_t>(groups) * kGroupRows * Fmt::kBytes;
        for (std::size_t k = 0; k < table.columns; k += Fmt::kColumns, w += step) {
            const Block block = block_of<Fmt>(w, g, groups);
            for (int sub = 0; sub < Fmt::kColumns / Fmt::kSub; ++sub) {
                const f32x16 scale = scale_of<Fmt>(block, sub);
                for (int c = 0; c < Fmt::kSub / 4; ++c) {
                    const i32x16 four = codes.of(block, sub, c);
                    for (int j = 0; j < 4; ++j) {
                        const f32x16 code = to_float(((four >> (8 * j)) & iset1(255)) - iset1(Fmt::Codes::kZero));
                        if constexpr (Fmt::kHasMinimum) store(lanes, fma(code, scale, minimum_of<Fmt>(block, sub)));
                        else store(lanes, code * scale);
                        *out++ = lanes[lane];
                    }
                }
            }
        }
    }
}

struct Run {
    const Matrix& table;
    const std::int32_t* ids;
    std::size_t tokens;
    float* out;
    template <class Fmt>
    void run() const {
        for (std::size_t t = 0; t < tokens; ++t)
            row_of<Fmt>(table, static_cast<std::size_t>(ids[t]), out + t * table.columns);
    }
};

}  // namespace

void embedding(const Matrix& table, const std::int32_t* ids, std::size_t tokens, float* out) {
    const Run run{table, ids, tokens, out};
    table.in_blocks() ? with_blocks(table.format, run) : with_floats(table.format, run);
}

}  // namespace karat::KARAT_ISA_NAMESPACE

// Linear layers for one token: codes go straight from the packed words into the chain.
#include "linear.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// Codes of a word are always unrolled together; all of a sub-block only where one token waits for every instruction.
#if defined(__AVX2__)
#define KARAT_UNROLL_SUB_BLOCK _Pragma("GCC unroll 32")
#else
#define KARAT_UNROLL_SUB_BLOCK
#endif


template <class Fmt, int G>
KARAT_INLINE void leaf_of_floats(const std::uint8_t*& w, const float* x, std::size_t count, f32x16 (&sum)[G]) {
    constexpr std::size_t step = G * kLanes * Fmt::kBytes;
    for (std::size_t k = 0; k < count; ++k, w += step) {
        for (std::size_t line = 0; line < step; line += 64) prefetch(w + kPrefetch + line);
        const f32x16 value = broadcast(x + k);
        for (int g = 0; g < G; ++g) sum[g] = fma(Fmt::read(w + g * kLanes * Fmt::kBytes), value, sum[g]);
    }
}

template <class Fmt, int G>
KARAT_INLINE void leaf_of_blocks(const std::uint8_t*& w, const float* x, const float* x_sums, std::size_t count,
                                 f32x16 (&sum)[G]) {
    constexpr std::size_t step = G * kGroupRows * Fmt::kBytes;
    const auto codes = Fmt::Codes::make();
    for (std::size_t k = 0; k < count; k += Fmt::kColumns, w += step) {
        for (std::size_t line = 0; line < step; line += 64) prefetch(w + kPrefetch + line);
        for (int sub = 0; sub < Fmt::kColumns / Fmt::kSub; ++sub, x += Fmt::kSub) {
            f32x16 part[G];
            for (int g = 0; g < G; ++g) part[g] = zero();
            KARAT_UNROLL_SUB_BLOCK
            for (int j = 0; j < Fmt::kSub; ++j) {
                const f32x16 value = broadcast(x + j);
                for (int g = 0; g < G; ++g)
                    part[g] = fma(codes.code(block_of<Fmt>(w, g, G), sub, j / 4, j % 4), value, part[g]);
            }
            for (int g = 0; g < G; ++g) sum[g] = fma(part[g], Fmt::scale(block_of<Fmt>(w, g, G), sub), sum[g]);
            if constexpr (Fmt::kHasMinimum) {
                const f32x16 total = set1(sum_of_x<Fmt::kSub>(x_sums, (k + sub * Fmt::kSub) / Fmt::kSub));
                for (int g = 0; g < G; ++g) sum[g] = fma(total, Fmt::minimum(block_of<Fmt>(w, g, G), sub), sum[g]);
            }
        }
    }
}

template <class Fmt, int G>
void panel_of_one(const LinearArgs& a, std::size_t panel) {
    const std::uint8_t* w = a.weight->panel(panel);
    f32x16 levels[3][G], sum[G];
    std::size_t start = 0;
    for (std::size_t leaf = 0; leaf < a.num_leaves; ++leaf) {
        const std::size_t end = a.leaf_ends[leaf];
        for (int g = 0; g < G; ++g) sum[g] = zero();
        if constexpr (kIsBlock<Fmt>)
            leaf_of_blocks<Fmt, G>(w, a.x + start, a.x_sums + start / 16, end - start, sum);
        else
            leaf_of_floats<Fmt, G>(w, a.x + start, end - start, sum);
        start = end;
        climb(
            leaf, a.num_leaves,
            [&](int level) {
                for (int g = 0; g < G; ++g) sum[g] = levels[level][g] + sum[g];
            },
            [&](int level) {
                for (int g = 0; g < G; ++g) levels[level][g] = sum[g];
            });
    }
    const std::size_t row = a.weight->first_group(panel) * kGroupRows;
    for (int g = 0; g < G; ++g) finish(a, 0, row + static_cast<std::size_t>(g * kLanes), sum[g]);
}

struct Run {
    const LinearArgs& a;
    std::size_t first, last;
    template <class Fmt>
    void run() const {
        for (std::size_t panel = first; panel < last; ++panel)
            a.weight->panel_groups(panel) == kPanelGroups ? panel_of_one<Fmt, kPanelGroups>(a, panel)
                                                          : panel_of_one<Fmt, 1>(a, panel);
    }
};

}  // namespace

void one_token(const LinearArgs& a, std::size_t first, std::size_t last) {
    with_format(a.weight->format, Run{a, first, last});
}

}  // namespace karat::KARAT_ISA_NAMESPACE

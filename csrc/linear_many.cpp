// Linear layers for many tokens: a chunk of columns is unpacked once into a buffer that stays in the second-level cache,
// and tiles of tokens run over it; accumulators rest in memory between chunks, so the chain is the same.
#include "linear.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// Unpack columns first … first + count - 1 of a panel, whose block begins at w: weights (or codes) to chunk
// [count, lanes], scales and minima to [sub-blocks, lanes].
template <class Fmt, int G>
void unpack(const std::uint8_t* w, std::size_t first, std::size_t count, const Scratch& s) {
    float* out = s.chunk;
    if constexpr (!kIsBlock<Fmt>) {
        for (std::size_t i = 0; i < count * G; ++i, w += kLanes * Fmt::kBytes, out += kLanes) store(out, Fmt::read(w));
    } else {
        const auto codes = Fmt::Codes::make();
        float *scale = s.scales, *minimum = s.minima;
        for (std::size_t k = first; k < first + count; k += Fmt::kSub) {
            const std::uint8_t* block = w + (k - first / Fmt::kColumns * Fmt::kColumns) / Fmt::kColumns * (G * kGroupRows * Fmt::kBytes);
            const int sub = static_cast<int>(k % Fmt::kColumns) / Fmt::kSub;
            for (int word = 0; word < Fmt::kSub / 4; ++word)
#pragma GCC unroll 4
                for (int j = 0; j < 4; ++j)
                    for (int g = 0; g < G; ++g, out += kLanes)
                        store(out, codes.code(block_of<Fmt>(block, g, G), sub, word, j));
            for (int g = 0; g < G; ++g, scale += kLanes) store(scale, Fmt::scale(block_of<Fmt>(block, g, G), sub));
            if constexpr (Fmt::kHasMinimum)
                for (int g = 0; g < G; ++g, minimum += kLanes)
                    store(minimum, Fmt::minimum(block_of<Fmt>(block, g, G), sub));
        }
    }
}

// One tile over one chunk: sums [tokens, kWide] go on. kSub = 0: plain floats.
template <int kSub, bool kMinimum, int kStride, int TG>
struct Tile {
    const float *w, *scales, *minima, *x, *x_sums;
    std::size_t x_stride, x_sums_stride, count;
    float* sums;

    template <int T>
    KARAT_INLINE void run() const {
        f32x16 acc[T][TG];
        if constexpr (kSub == 0) {
            for (int t = 0; t < T; ++t)
                for (int g = 0; g < TG; ++g) acc[t][g] = load(sums + t * kWide + g * kLanes);
            chain<T, TG>(acc, w, kStride, x, x_stride, count);
            for (int t = 0; t < T; ++t)
                for (int g = 0; g < TG; ++g) store(sums + t * kWide + g * kLanes, acc[t][g]);
        } else {
            float* const first_sum = sums;  // in a register: for all the compiler knows, stores below change members
            const float* const first_scale = scales;
            for (std::size_t k = 0; k < count; k += kSub) {
                for (int t = 0; t < T; ++t)
                    for (int g = 0; g < TG; ++g) acc[t][g] = zero();
                chain<T, TG>(acc, w + k * kStride, kStride, x + k, x_stride, kSub);
                float totals[T];
                if constexpr (kMinimum)
                    for (int t = 0; t < T; ++t)
                        totals[t] = sum_of_x<kSub>(x_sums + static_cast<std::size_t>(t) * x_sums_stride, k / kSub);
                const float* const scale = first_scale + k / kSub * kStride;
                for (int g = 0; g < TG; ++g) {
                    const f32x16 factor = load(scale + g * kLanes);
                    f32x16 minimum;
                    if constexpr (kMinimum) minimum = load(minima + k / kSub * kStride + g * kLanes);
                    for (int t = 0; t < T; ++t) {
                        float* const at = first_sum + t * kWide + g * kLanes;
                        f32x16 sum = fma(acc[t][g], factor, load(at));
                        if constexpr (kMinimum) sum = fma(set1(totals[t]), minimum, sum);
                        store(at, sum);
                    }
                }
                settle();
            }
        }
    }
};

// Not inline: all formats of a kind share one.
template <int kSub, bool kMinimum, int kStride, int TG>
__attribute__((noinline)) void run_tile(std::size_t height, const Tile<kSub, kMinimum, kStride, TG>& tile) {
    with_height(height, tile);
}

template <class Fmt, int G>
void panel_of_many(const LinearArgs& a, std::size_t panel, const Scratch& s) {
    constexpr int TG = G % kTileGroups ? 1 : kTileGroups, kStride = G * kLanes;
    // Columns that are next to each other in memory, and their bytes.
    constexpr std::size_t columns_of_block = [] {
        if constexpr (kIsBlock<Fmt>) return static_cast<std::size_t>(Fmt::kColumns);
        return std::size_t{1};
    }();
    constexpr std::size_t block_bytes = G * kGroupRows * Fmt::kBytes;
    const std::size_t x_sums_stride = a.weight->columns / 16;
    constexpr int kSub = [] {
        if constexpr (kIsBlock<Fmt>) return Fmt::kSub;
        return 0;
    }();
    const std::size_t row = a.weight->first_group(panel) * kGroupRows;
    for (std::size_t token = 0; token < a.tokens; token += kTokenBlock) {
        const std::size_t tokens = a.tokens - token < kTokenBlock ? a.tokens - token : kTokenBlock;
        const std::uint8_t* w = a.weight->panel(panel);
        std::size_t start = 0;
        for (std::size_t leaf = 0; leaf < a.num_leaves; ++leaf) {
            for (std::size_t i = 0; i < tokens * kWide; i += kLanes) store(s.sums + i, zero());
            while (start < a.leaf_ends[leaf]) {
                const std::size_t rest = a.leaf_ends[leaf] - start, count = rest < kChunk ? rest : kChunk;
                unpack<Fmt, G>(w + start / columns_of_block * block_bytes, start, count, s);
                for (std::size_t i = 0; i < num_tiles(tokens); ++i) {
                    const std::size_t first = tile_start(tokens, i), last = tile_start(tokens, i + 1);
                    for (int g = 0; g < G; g += TG)
                        run_tile(last - first,
                                    Tile<kSub, kHasMinimum<Fmt>, kStride, TG>{
                                        s.chunk + g * kLanes, s.scales + g * kLanes, s.minima + g * kLanes,
                                        a.x + (token + first) * a.x_stride + start,
                                        a.x_sums + (token + first) * x_sums_stride + start / 16, a.x_stride,
                                        x_sums_stride, count,
                                        s.sums + first * kWide + static_cast<std::size_t>(g * kLanes)});
                }
                start += count;
            }
            climb(
                leaf, a.num_leaves,
                [&](int level) {
                    const float* left = s.levels + static_cast<std::size_t>(level) * kTokenBlock * kWide;
                    for (std::size_t i = 0; i < tokens * kWide; i += kLanes)
                        store(s.sums + i, load(left + i) + load(s.sums + i));
                },
                [&](int level) {
                    float* left = s.levels + static_cast<std::size_t>(level) * kTokenBlock * kWide;
                    for (std::size_t i = 0; i < tokens * kWide; i += kLanes) store(left + i, load(s.sums + i));
                });
        }
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t g = 0; g < G; ++g)
                finish(a, token + t, row + g * kLanes, load(s.sums + t * kWide + g * kLanes));
    }
}

struct Run {
    const LinearArgs& a;
    std::size_t first, last;
    float* scratch;
    template <class Fmt>
    void run() const {
        const Scratch s(scratch);
        for (std::size_t panel = first; panel < last; ++panel)
            a.weight->panel_groups(panel) == kPanelGroups ? panel_of_many<Fmt, kPanelGroups>(a, panel, s)
                                                          : panel_of_many<Fmt, 1>(a, panel, s);
    }
};

}  // namespace

void many_tokens(const LinearArgs& a, std::size_t first, std::size_t last, float* scratch) {
    with_format(a.weight->format, Run{a, first, last, scratch});
}

}  // namespace karat::KARAT_ISA_NAMESPACE

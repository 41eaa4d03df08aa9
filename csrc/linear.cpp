// Linear layers over packed matrices (kernels.h, LinearArgs). Compiled once for each instruction set.
//
// One token, or (with AVX-512) a few: codes go straight from the packed words into the chain. More: a chunk of columns is unpacked once into
// a buffer that stays in the second-level cache, and tiles of tokens run over it; accumulators rest in memory between
// chunks, so the chain is the same.
#include "linear.h"

#include "formats.h"
#include "kernels_isa.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

constexpr std::size_t kChunk = 128;        // columns
constexpr std::size_t kTokenBlock = 192;   // tokens that one unpacked chunk serves
constexpr std::size_t kWide = kPanelGroups * kGroupRows;
constexpr std::size_t kPrefetch = 3072;    // bytes ahead in a stream of weights
// Codes of a word are always unrolled together; all of a sub-block only where one token waits for every instruction.
#if defined(__AVX2__)
#define KARAT_UNROLL_SUB_BLOCK _Pragma("GCC unroll 32")
#else
#define KARAT_UNROLL_SUB_BLOCK
#endif

constexpr std::size_t kMinSub = 16;        // columns of the smallest sub-block

// Floats of scratch: an unpacked chunk, its scales and minima, running sums of a token block, finished leaves.
struct Scratch {
    float* chunk;   // [kChunk, lanes of the panel]
    float* scales;  // [kChunk / kMinSub, lanes]
    float* minima;  // as scales
    float* sums;    // [kTokenBlock, kWide]
    float* levels;  // [3, kTokenBlock, kWide]

    static constexpr std::size_t kFloats =
        kChunk * kWide + 2 * (kChunk / kMinSub * kWide) + 4 * kTokenBlock * kWide;
    explicit Scratch(float* base)
        : chunk(base), scales(chunk + kChunk * kWide), minima(scales + kChunk / kMinSub * kWide),
          sums(minima + kChunk / kMinSub * kWide),
          levels(sums + kTokenBlock * kWide) {}
};

// The fixed tree: leaf i waits for its brother at the level where they meet. Calls add(level) to add a waiting sum to the
// left of the current one, then keep(level) to let the current one wait, or neither for the root.
template <class Add, class Keep>
KARAT_INLINE void climb(std::size_t leaf, std::size_t num_leaves, const Add& add, const Keep& keep) {
    int level = 0;
    for (; (leaf >> level) & 1; ++level) add(level);
    if (leaf + 1 < num_leaves) keep(level);
}

KARAT_INLINE void finish(const LinearArgs& a, std::size_t token, std::size_t row, f32x16 sum) {
    const std::size_t left = a.weight->rows - row;
    const int n = left < kLanes ? static_cast<int>(left) : kLanes;
    if (a.bias) sum = sum + (n == kLanes ? load(a.bias + row) : load_first(a.bias + row, n));
    if (a.residual) {
        const float* residual = a.residual + token * a.out_stride + row;
        sum = sum + (n == kLanes ? load(residual) : load_first(residual, n));
    }
    store_first(a.out + token * a.out_stride + row, sum, n);
}

template <class Fmt>
inline constexpr bool kIsBlock = requires { typename Fmt::Codes; };

template <class Fmt>
inline constexpr bool kHasMinimum = [] {
    if constexpr (kIsBlock<Fmt>) return Fmt::kHasMinimum;
    return false;
}();

// The sum of x over sub-block `index`, as a vector.
template <int kSub>
KARAT_INLINE f32x16 sum_of_x(const float* sums, std::size_t index) {
    if constexpr (kSub == 32) return set1(sums[2 * index] + sums[2 * index + 1]);
    return set1(sums[index]);
}

// ---- one token -------------------------------------------------------------------------------------------------------

template <class Fmt, int G>
KARAT_INLINE void leaf_of_floats(const std::uint8_t*& w, const float* x, std::size_t count, f32x16 (&sum)[G]) {
    constexpr std::size_t step = G * kLanes * Fmt::kBytes;
    for (std::size_t k = 0; k < count; ++k, w += step) {
        for (std::size_t line = 0; line < step; line += 64) prefetch(w + kPrefetch + line);
        const f32x16 value = set1(x[k]);
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
                const f32x16 value = set1(x[j]);
                for (int g = 0; g < G; ++g)
                    part[g] = fma(codes.code(block_of<Fmt>(w, g, G), sub, j), value, part[g]);
            }
            for (int g = 0; g < G; ++g) sum[g] = fma(part[g], Fmt::scale(block_of<Fmt>(w, g, G), sub), sum[g]);
            if constexpr (Fmt::kHasMinimum) {
                const f32x16 total = sum_of_x<Fmt::kSub>(x_sums, (k + sub * Fmt::kSub) / Fmt::kSub);
                for (int g = 0; g < G; ++g) sum[g] = fma(total, Fmt::minimum(block_of<Fmt>(w, g, G), sub), sum[g]);
            }
        }
    }
}


template <class Fmt, int G>
void one_token(const LinearArgs& a, std::size_t panel) {
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

// ---- a few tokens ----------------------------------------------------------------------------------------------------

// Groups g … g + DG - 1 of a panel for T tokens, codes straight from the packed words as for one token.
template <class Fmt, int G, int DG>
struct FewTokens {
    const LinearArgs& a;
    std::size_t panel, token;
    int group;
    const Scratch& s;

    template <int T>
    KARAT_INLINE void run() const {
        const std::uint8_t* w = a.weight->panel(panel);
        const float* x = a.x + token * a.x_stride;
        const std::size_t stride = a.x_stride;
        float* sums = s.sums;
        std::size_t start = 0;
        for (std::size_t leaf = 0; leaf < a.num_leaves; ++leaf) {
            const std::size_t end = a.leaf_ends[leaf];
            if constexpr (kIsBlock<Fmt>) {
                for (int i = 0; i < T * DG; ++i) store(sums + i * kLanes, zero());
                const auto codes = Fmt::Codes::make();
                constexpr std::size_t step = G * kGroupRows * Fmt::kBytes;
                for (; start < end; start += Fmt::kColumns, w += step)
                    for (int sub = 0; sub < Fmt::kColumns / Fmt::kSub; ++sub) {
                        if (group == 0)
                            for (std::size_t line = 0; line < step; line += 64) prefetch(w + kPrefetch + line);
                        f32x16 part[T][DG];
                        for (int t = 0; t < T; ++t)
                            for (int g = 0; g < DG; ++g) part[t][g] = zero();
                        const float* at = x + start + static_cast<std::size_t>(sub * Fmt::kSub);
                        for (int word = 0; word < Fmt::kSub / 4; ++word)
#pragma GCC unroll 4
                            for (int j = 0; j < 4; ++j) {
                                f32x16 weight[DG];
                                for (int g = 0; g < DG; ++g)
                                    weight[g] = codes.code(block_of<Fmt>(w, group + g, G), sub, 4 * word + j);
                                for (int t = 0; t < T; ++t) {
                                    const float* of_token = at + static_cast<std::size_t>(t) * stride;
                                    const f32x16 value = set1(of_token[4 * word + j]);
                                    for (int g = 0; g < DG; ++g) part[t][g] = fma(weight[g], value, part[t][g]);
                                }
                            }
                        for (int g = 0; g < DG; ++g) {
                            const f32x16 factor = Fmt::scale(block_of<Fmt>(w, group + g, G), sub);
                            for (int t = 0; t < T; ++t) {
                                float* sum = sums + (t * DG + g) * kLanes;
                                store(sum, fma(part[t][g], factor, load(sum)));
                            }
                        }
                        if constexpr (Fmt::kHasMinimum) {
                            const std::size_t index = start / Fmt::kSub + static_cast<std::size_t>(sub);
                            for (int g = 0; g < DG; ++g) {
                                const f32x16 minimum = Fmt::minimum(block_of<Fmt>(w, group + g, G), sub);
                                for (int t = 0; t < T; ++t) {
                                    const float* totals = a.x_sums + (token + static_cast<std::size_t>(t)) * (a.weight->columns / 16);
                                    float* sum = sums + (t * DG + g) * kLanes;
                                    store(sum, fma(sum_of_x<Fmt::kSub>(totals, index), minimum, load(sum)));
                                }
                            }
                        }
                        settle();
                    }
            } else {
                f32x16 sum[T][DG];
                for (int t = 0; t < T; ++t)
                    for (int g = 0; g < DG; ++g) sum[t][g] = zero();
                constexpr std::size_t step = G * kLanes * Fmt::kBytes;
                for (; start < end; ++start, w += step) {
                    f32x16 weight[DG];
                    for (int g = 0; g < DG; ++g) weight[g] = Fmt::read(w + (group + g) * kLanes * Fmt::kBytes);
                    for (int t = 0; t < T; ++t) {
                        const f32x16 value = set1(x[static_cast<std::size_t>(t) * stride + start]);
                        for (int g = 0; g < DG; ++g) sum[t][g] = fma(weight[g], value, sum[t][g]);
                    }
                }
                for (int t = 0; t < T; ++t)
                    for (int g = 0; g < DG; ++g) store(sums + (t * DG + g) * kLanes, sum[t][g]);
            }
            constexpr std::size_t size = T * DG * kLanes;
            climb(
                leaf, a.num_leaves,
                [&](int level) {
                    const float* left = s.levels + static_cast<std::size_t>(level) * size;
                    for (std::size_t i = 0; i < size; i += kLanes) store(sums + i, load(left + i) + load(sums + i));
                },
                [&](int level) {
                    float* left = s.levels + static_cast<std::size_t>(level) * size;
                    for (std::size_t i = 0; i < size; i += kLanes) store(left + i, load(sums + i));
                });
        }
        const std::size_t row = (a.weight->first_group(panel) + static_cast<std::size_t>(group)) * kGroupRows;
        for (std::size_t t = 0; t < T; ++t)
            for (std::size_t g = 0; g < DG; ++g)
                finish(a, token + t, row + g * kLanes, load(sums + (t * DG + g) * kLanes));
    }
};

template <class Fmt>
void few_tokens(const LinearArgs& a, std::size_t panel, const Scratch& s) {
    const std::size_t tiles = (a.tokens + kDirectTokens - 1) / kDirectTokens;
    for (int group = 0; group < static_cast<int>(kPanelGroups); group += kDirectGroups)
        for (std::size_t i = 0; i < tiles; ++i) {
            const std::size_t first = i * a.tokens / tiles, last = (i + 1) * a.tokens / tiles;
            with_height<kDirectTokens, 2>(
                last - first, FewTokens<Fmt, kPanelGroups, kDirectGroups>{a, panel, first, group, s});
        }
}

// ---- many tokens -----------------------------------------------------------------------------------------------------

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
                        store(out, codes.code(block_of<Fmt>(block, g, G), sub, 4 * word + j));
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
            for (std::size_t k = 0; k < count; k += kSub) {
                for (int t = 0; t < T; ++t)
                    for (int g = 0; g < TG; ++g) acc[t][g] = zero();
                chain<T, TG>(acc, w + k * kStride, kStride, x + k, x_stride, kSub);
                const float* scale = scales + k / kSub * kStride;
                for (int g = 0; g < TG; ++g) {
                    const f32x16 factor = load(scale + g * kLanes);
                    for (int t = 0; t < T; ++t) {
                        float* sum = sums + t * kWide + g * kLanes;
                        store(sum, fma(acc[t][g], factor, load(sum)));
                    }
                }
                if constexpr (kMinimum)
                    for (int g = 0; g < TG; ++g) {
                        const f32x16 minimum = load(minima + k / kSub * kStride + g * kLanes);
                        for (int t = 0; t < T; ++t) {
                            const float* totals = x_sums + static_cast<std::size_t>(t) * x_sums_stride;
                            float* sum = sums + t * kWide + g * kLanes;
                            store(sum, fma(sum_of_x<kSub>(totals, k / kSub), minimum, load(sum)));
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
void many_tokens(const LinearArgs& a, std::size_t panel, const Scratch& s) {
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

template <class Fmt, int G>
void panel_of(const LinearArgs& a, std::size_t panel, const Scratch& scratch) {
    if (a.tokens == 1) return one_token<Fmt, G>(a, panel);
    if constexpr (kDirectTokens > 1 && G == kPanelGroups)
        if (a.tokens <= 2 * kDirectTokens) return few_tokens<Fmt>(a, panel, scratch);
    many_tokens<Fmt, G>(a, panel, scratch);
}

template <class Fmt>
void panels(const LinearArgs& a, std::size_t first, std::size_t last, float* scratch) {
    const Scratch s(scratch);
    for (std::size_t panel = first; panel < last; ++panel) {
        if (a.weight->panel_groups(panel) == kPanelGroups)
            panel_of<Fmt, kPanelGroups>(a, panel, s);
        else
            panel_of<Fmt, 1>(a, panel, s);
    }
}

// ---- rows of a table -------------------------------------------------------------------------------------------------

template <class Fmt>
void row_of(const Matrix& table, std::size_t row, float* out) {
    const std::size_t group = row / kGroupRows, lane = row % kGroupRows, panel = table.panel_of_group(group);
    const int groups = static_cast<int>(table.panel_groups(panel));
    const int g = static_cast<int>(group - table.first_group(panel));
    const std::uint8_t* w = table.panel(panel);
    float lanes[kLanes];
    if constexpr (!kIsBlock<Fmt>) {
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
                const f32x16 scale = Fmt::scale(block, sub);
                for (int j = 0; j < Fmt::kSub; ++j) {
                    const f32x16 code = codes.code(block, sub, j);
                    if constexpr (Fmt::kHasMinimum)
                        store(lanes, fma(code, scale, Fmt::minimum(block, sub)));
                    else
                        store(lanes, code * scale);
                    *out++ = lanes[lane];
                }
            }
        }
    }
}

template <class F>
KARAT_INLINE void with_format(Format format, const F& f) {
    switch (format) {
        case Format::f32: return f.template run<F32>();
        case Format::f16: return f.template run<F16>();
        case Format::bf16: return f.template run<BF16>();
        case Format::q8_0: return f.template run<Q8_0>();
        case Format::q4_0: return f.template run<Q4_0>();
        case Format::q4_1: return f.template run<Q4_1>();
        case Format::q5_0: return f.template run<Q5_0>();
        case Format::q5_1: return f.template run<Q5_1>();
        case Format::q2_k: return f.template run<Q2_K>();
        case Format::q3_k: return f.template run<Q3_K>();
        case Format::q4_k: return f.template run<Q4_K>();
        case Format::q5_k: return f.template run<Q5_K>();
        case Format::q6_k: return f.template run<Q6_K>();
        case Format::iq4_nl: return f.template run<IQ4_NL>();
        case Format::iq4_xs: return f.template run<IQ4_XS>();
    }
}

struct RunLinear {
    const LinearArgs& a;
    std::size_t first, last;
    float* scratch;
    template <class Fmt>
    void run() const { panels<Fmt>(a, first, last, scratch); }
};

struct RunEmbedding {
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

std::size_t linear_scratch_floats() { return Scratch::kFloats; }

void linear(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch) {
    with_format(args.weight->format, RunLinear{args, first, last, scratch});
}

void sums_of_16(const float* x, float* out, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[i] = fold(load(x + 16 * i));
}

void embedding(const Matrix& table, const std::int32_t* ids, std::size_t tokens, float* out) {
    with_format(table.format, RunEmbedding{table, ids, tokens, out});
}

}  // namespace karat::KARAT_ISA_NAMESPACE

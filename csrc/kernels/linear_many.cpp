// Linear layers for many tokens, of formats that are multiplied column by column. A chunk of columns is unpacked once
// into a buffer that stays in the second-level cache; tiles of tokens then run over it. Sums are stored between chunks
// and loaded again, so the chain is the same.
#include "kernels/linear.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// Unpack columns first … first + count - 1 of a panel, whose block begins at w: weights (or codes) to chunk
// [count, lanes], scales and minima to [sub-blocks, lanes].
template <class Fmt, int G>
void unpack(const std::uint8_t* w, std::size_t first, std::size_t count, const LinearScratch& s) {
    float* out = s.chunk;
    if constexpr (!kIsBlock<Fmt>) {
        for (std::size_t i = 0; i < count * G; ++i, w += kLanes * Fmt::kBytes, out += kLanes) store(out, Fmt::read(w));
    } else {
        const auto codes = Fmt::Codes::make();
        float *scale = s.scales, *minimum = s.minima;
        for (std::size_t k = first; k < first + count; k += Fmt::kSub) {
            const std::uint8_t* block =
                w + (k - first / Fmt::kColumns * Fmt::kColumns) / Fmt::kColumns * (G * kGroupRows * Fmt::kBytes);
            const int sub = static_cast<int>(k % Fmt::kColumns) / Fmt::kSub;
            for (int word = 0; word < Fmt::kSub / 4; ++word)
#pragma GCC unroll 4
                for (int j = 0; j < 4; ++j)
                    for (int g = 0; g < G; ++g, out += kLanes)
                        store(out, codes.code(block_of<Fmt>(block, g, G), sub, word, j));
            for (int g = 0; g < G; ++g, scale += kLanes) store(scale, scale_of<Fmt>(block_of<Fmt>(block, g, G), sub));
            if constexpr (Fmt::kHasMinimum)
                for (int g = 0; g < G; ++g, minimum += kLanes)
                    store(minimum, minimum_of<Fmt>(block_of<Fmt>(block, g, G), sub));
        }
    }
}

// Whether the first tile of a chunk unpacks it, in panels of G groups.
template <int G>
inline constexpr bool kUnpackInTile =
#if defined(KARAT_TWO_PORTS)
    G == kPanelGroups;
#else
    false;
#endif

// A tile's part of the next chunk as it is packed.
struct NextChunk {
    const std::uint8_t* lines;
    std::size_t bytes;
};

// Input of a tile: one chunk of columns, added to sums [tokens, kWide].
struct TileArgs {
    const float *x, *x_sums;
    std::size_t x_stride, x_sums_stride, count;
    float* sums;
    NextChunk next;
};

// Prefetches while a tile runs over columns k … k + 31: a part of the next chunk, and on Intel's cores also the next
// tile's part of x and a line of its sums. That saves a tenth of the time and more there, and nothing on Zen 4.
template <int T>
KARAT_INLINE void fetch_next(const TileArgs& a, std::size_t k) {
#if defined(KARAT_TWO_PORTS)
    const float* x = a.x + T * a.x_stride + k;
    const float* sums = a.sums + T * kWide + k / 32 % (kWide / kLanes) * kLanes;
    for (int t = 0; t < T; ++t, x += a.x_stride, sums += kWide) {
        prefetch(x);
        prefetch(x + 16);
        prefetch(sums);
    }
#endif
    constexpr std::size_t kTimes = kChunk / 32;  // while it runs over a whole chunk
    const std::size_t part = (a.next.bytes / 64 + kTimes - 1) / kTimes * 64, begin = k / 32 * part, end = begin + part;
    for (std::size_t at = begin; at < end && at < a.next.bytes; at += 64) prefetch_far(a.next.lines + at);
}

// Ends a sub-block that begins at column k: multiplies its parts by factor(g), and adds minimum(g), for each group g.
template <int kSub, bool kMinimum, int T, int TG, class Factor, class Minimum>
KARAT_INLINE void end_sub_block(const TileArgs& a, float* first_sum, std::size_t k, const f32x16 (&part)[T][TG],
                                const Factor& factor, const Minimum& minimum) {
    float totals[T];
    if constexpr (kMinimum)
        for (int t = 0; t < T; ++t)
            totals[t] = sum_of_x<kSub>(a.x_sums + static_cast<std::size_t>(t) * a.x_sums_stride, k / kSub);
    for (int g = 0; g < TG; ++g) {
        const f32x16 scale = factor(g);
        f32x16 least;
        if constexpr (kMinimum) least = minimum(g);
        for (int t = 0; t < T; ++t) {
            float* const at = first_sum + t * kWide + g * kLanes;
            f32x16 sum = fma(part[t][g], scale, load(at));
            if constexpr (kMinimum) sum = fma(set1(totals[t]), least, sum);
            store(at, sum);
        }
    }
    forget_stored();
}

// Whether a tile keeps its sums in registers, too, and is half as wide for that: where sub-blocks end after 16 columns
// and a store takes two cycles (Zen 4).
template <int kSub>
inline constexpr bool kSumsInRegisters =
#if defined(KARAT_AVX512) && !defined(KARAT_TWO_PORTS)
    kSub == 16;
#else
    false;
#endif

// A tile that reads an unpacked chunk. kSub = 0: stored floats.
template <int kSub, bool kMinimum, int kStride, int TG>
struct Tile : TileArgs {
    const float *w, *scales, *minima;

    template <int T>
    KARAT_INLINE void run() const {
        f32x16 acc[T][TG];
        if constexpr (kSub == 0) {
            for (int t = 0; t < T; ++t)
                for (int g = 0; g < TG; ++g) acc[t][g] = load(sums + t * kWide + g * kLanes);
            for (std::size_t k = 0; k < count; k += 32) {
                fetch_next<T>(*this, k);
                chain<T, TG>(acc, w + k * kStride, kStride, x + k, x_stride, count - k < 32 ? count - k : 32);
            }
            for (int t = 0; t < T; ++t)
                for (int g = 0; g < TG; ++g) store(sums + t * kWide + g * kLanes, acc[t][g]);
        } else if constexpr (kSumsInRegisters<kSub>) {
            static_assert(!kMinimum);
            f32x16 sum[T][TG];
            for (int t = 0; t < T; ++t)
                for (int g = 0; g < TG; ++g) sum[t][g] = load(sums + t * kWide + g * kLanes);
            const float* scale = scales;
            for (std::size_t k = 0; k < count; k += kSub, scale += kStride) {
                if (k % 32 == 0) fetch_next<T>(*this, k);
                for (int t = 0; t < T; ++t)
                    for (int g = 0; g < TG; ++g) acc[t][g] = zero();
                chain<T, TG>(acc, w + k * kStride, kStride, x + k, x_stride, kSub);
                for (int g = 0; g < TG; ++g) {
                    const f32x16 factor = load(scale + g * kLanes);
                    for (int t = 0; t < T; ++t) sum[t][g] = fma(acc[t][g], factor, sum[t][g]);
                }
            }
            for (int t = 0; t < T; ++t)
                for (int g = 0; g < TG; ++g) store(sums + t * kWide + g * kLanes, sum[t][g]);
        } else {
            float* const first_sum = sums;  // in a register: for all the compiler knows, stores below change members
            const float *const first_scale = scales, *const first_minimum = minima;
            for (std::size_t k = 0; k < count; k += kSub) {
                if (k % 32 == 0) fetch_next<T>(*this, k);
                for (int t = 0; t < T; ++t)
                    for (int g = 0; g < TG; ++g) acc[t][g] = zero();
                chain<T, TG>(acc, w + k * kStride, kStride, x + k, x_stride, kSub);
                const std::size_t at = k / kSub * kStride;
                end_sub_block<kSub, kMinimum>(
                    *this, first_sum, k, acc, [&](int g) { return load(first_scale + at + g * kLanes); },
                    [&](int g) { return load(first_minimum + at + g * kLanes); });
            }
        }
    }
};

// The first tile of a chunk, which unpacks it: it multiplies codes as it reads them, and stores them to the buffer for
// the other tiles. For cores whose multiply-add shares its ports: a few tokens would wait for an unpacking of its own.
template <class Fmt, int G>
struct FirstTile : TileArgs {
    const std::uint8_t* from;  // the block of the chunk's first column
    std::size_t first;         // that column
    const LinearScratch& s;

    template <int T>
    KARAT_INLINE void run() const {
        f32x16 acc[T][G];
        if constexpr (!kIsBlock<Fmt>) {
            for (int t = 0; t < T; ++t)
                for (int g = 0; g < G; ++g) acc[t][g] = load(sums + t * kWide + g * kLanes);
            for (std::size_t k = 0; k < count; ++k) {
                if (k % 32 == 0) fetch_next<T>(*this, k);
                const std::uint8_t* const at = from + k * (G * kLanes * Fmt::kBytes);
                column<T>(acc, s.chunk, [&](int g) { return Fmt::read(at + g * kLanes * Fmt::kBytes); }, k);
            }
            for (int t = 0; t < T; ++t)
                for (int g = 0; g < G; ++g) store(sums + t * kWide + g * kLanes, acc[t][g]);
        } else {
            const auto codes = Fmt::Codes::make();
            float* __restrict const chunk = s.chunk;
            constexpr std::size_t kBlock = std::size_t{G} * kGroupRows * Fmt::kBytes;
            for (std::size_t k = 0; k < count; k += Fmt::kSub) {
                const std::size_t column_of_first = first % Fmt::kColumns + k;
                const std::uint8_t* const block = from + column_of_first / Fmt::kColumns * kBlock;
                const auto group = [&](int g) { return block_of<Fmt>(block, g, G); };
                const int sub = static_cast<int>(column_of_first % Fmt::kColumns) / Fmt::kSub;
                if (k % 32 == 0) fetch_next<T>(*this, k);
                for (int t = 0; t < T; ++t)
                    for (int g = 0; g < G; ++g) acc[t][g] = zero();
                // Columns in halves of 16; the half is a constant.
                const auto sixteen = [&](auto half) {
                    const std::size_t start = k + 16 * half;
                    for (std::size_t c = 0; c < 4; ++c) {
#pragma GCC unroll 4
                        for (int j = 0; j < 4; ++j)
                            column<T>(
                                acc, chunk,
                                [&](int g) { return codes.code(group(g), sub, half * 4 + static_cast<int>(c), j); },
                                start + 4 * c + static_cast<std::size_t>(j));
                    }
                };
                sixteen(Constant<0>());
                if constexpr (Fmt::kSub == 32) sixteen(Constant<1>());
                const std::size_t at = k / Fmt::kSub * (G * kLanes);
                end_sub_block<Fmt::kSub, Fmt::kHasMinimum>(
                    *this, sums, k, acc,
                    [&](int g) { return stored(s.scales + at + g * kLanes, scale_of<Fmt>(group(g), sub)); },
                    [&](int g) {
                        if constexpr (Fmt::kHasMinimum)
                            return stored(s.minima + at + g * kLanes, minimum_of<Fmt>(group(g), sub));
                        else return zero();
                    });
            }
        }
    }

private:
    static KARAT_INLINE f32x16 stored(float* at, f32x16 value) {
        store(at, value);
        return value;
    }

    // Column k of the chunk, of which weight(g) is group g.
    template <int T, class Weight>
    KARAT_INLINE void column(f32x16 (&acc)[T][G], float* __restrict chunk, const Weight& weight, std::size_t k) const {
        f32x16 of_group[G];
        for (int g = 0; g < G; ++g) of_group[g] = stored(chunk + k * (G * kLanes) + g * kLanes, weight(g));
        for (int t = 0; t < T; ++t) {
            const f32x16 value = broadcast(x + static_cast<std::size_t>(t) * x_stride + k);
            for (int g = 0; g < G; ++g) acc[t][g] = fma(of_group[g], value, acc[t][g]);
        }
    }
};

// Not inline: all formats of a kind share one function.
template <int kSub, bool kMinimum, int kStride, int TG>
KARAT_NOINLINE void run_tile(std::size_t height, const Tile<kSub, kMinimum, kStride, TG>& tile) {
    with_height(height, tile);
}

// One panel and up to kTokenBlock tokens from `token` on. Each tile begins and ends its leaves itself: its sums are
// then in the first-level cache, and its stores overlap the next tile's arithmetic.
template <class Fmt, int G>
struct PanelOfMany {
    static constexpr int kSub = [] {
        if constexpr (kIsBlock<Fmt>) return Fmt::kSub;
        return 0;
    }();
    static constexpr int TG = G % kTuning.tile_vectors ? 1
                              : kSumsInRegisters<kSub> ? kTuning.tile_vectors / 2
                                                       : kTuning.tile_vectors;
    // Columns that are next to each other in memory, and their bytes.
    static constexpr std::size_t kBlockColumns = [] {
        if constexpr (kIsBlock<Fmt>) return static_cast<std::size_t>(Fmt::kColumns);
        return std::size_t{1};
    }();
    static constexpr std::size_t kBlockBytes = G * kGroupRows * Fmt::kBytes;
    const LinearArgs& a;
    std::size_t panel, token, tokens;
    const LinearScratch& s;

    void run() const {
        const std::uint8_t* const w = a.weight->panel(panel);
        std::size_t start = 0;
        for (std::size_t leaf = 0; leaf < a.num_leaves; ++leaf) {
            const std::size_t begin = start, end = a.leaf_ends[leaf];
            if (begin == end) {  // a leaf of no columns
                leaf_sums().begin(0, tokens);
                leaf_sums().end(a, panel, leaf, token, 0, tokens);
            }
            for (std::size_t count; start < end; start += count) {
                count = end - start < kChunk ? end - start : kChunk;
                const std::uint8_t* const packed = w + start / kBlockColumns * kBlockBytes;
                if constexpr (!kUnpackInTile<G>) unpack<Fmt, G>(packed, start, count, s);
                // The bytes of the next chunk. Where a block is longer than a chunk: as many bytes of it.
                const std::size_t bytes = count * kBlockBytes / kBlockColumns;
                const std::uint8_t* const next = w + (start + count) * kBlockBytes / kBlockColumns;
                const std::size_t each = (bytes / 64 + num_tiles(tokens) - 1) / num_tiles(tokens) * 64;
                for (std::size_t i = 0; i < num_tiles(tokens); ++i) {
                    const std::size_t first = tile_start(tokens, i), last = tile_start(tokens, i + 1);
                    if (start == begin) leaf_sums().begin(first, last);
                    const std::size_t fetched = i * each < bytes ? i * each : bytes;
                    tile(first, last, packed, start, count, {next + fetched, fetched < bytes ? each : 0});
                    if (start + count == end) leaf_sums().end(a, panel, leaf, token, first, last);
                }
            }
        }
    }

private:
    KARAT_INLINE LeafSums<G> leaf_sums() const { return {s.sums, s.levels}; }

    void tile(std::size_t first, std::size_t last, const std::uint8_t* packed, std::size_t start, std::size_t count,
              NextChunk next) const {
        const std::size_t x_sums_stride = a.weight->columns / 16;
        const auto args_from = [&](int g) {  // from group g on; the first asks for what comes next
            return TileArgs{a.x + (token + first) * a.x_stride + start,
                            a.x_sums + (token + first) * x_sums_stride + start / 16,
                            a.x_stride,
                            x_sums_stride,
                            count,
                            s.sums + first * kWide + g * kLanes,
                            g == 0 ? next : NextChunk{}};
        };
        if constexpr (kUnpackInTile<G>)
            if (first == 0) return with_height(last, NotInlined(FirstTile<Fmt, G>{args_from(0), packed, start, s}));
        for (int g = 0; g < G; g += TG)
            run_tile(last - first,
                     Tile<kSub, kHasMinimum<Fmt>, G * kLanes, TG>{args_from(g), s.chunk + g * kLanes,
                                                                  s.scales + g * kLanes, s.minima + g * kLanes});
    }
};

template <class Fmt, int G>
void panel_of_many(const LinearArgs& a, std::size_t panel, const LinearScratch& s) {
    for (std::size_t token = 0; token < a.tokens; token += kTokenBlock)
        PanelOfMany<Fmt, G>{a, panel, token, a.tokens - token < kTokenBlock ? a.tokens - token : kTokenBlock, s}.run();
}

struct Run {
    const LinearArgs& a;
    std::size_t first, last;
    float* scratch;
    template <class Fmt>
    void run() const {
        const LinearScratch s(scratch);
        if constexpr (!kByNibbles<Fmt>)
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

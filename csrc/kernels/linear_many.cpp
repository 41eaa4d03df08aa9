// Linear layers of stored floats for many tokens. A chunk of columns is unpacked once into a buffer that stays in the
// second-level cache; tiles of tokens then run over it. Sums are stored between chunks and loaded again, so the chain
// is the same.
#include "kernels/linear.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

inline constexpr std::size_t kChunk = 128;  // columns; of floats that share a scale a block

// Floats of scratch: an unpacked chunk and its scales, running sums of a token block, finished leaves.
struct Scratch {
    float* chunk;   // [kChunk, lanes of the panel]
    float* scales;  // [lanes of the panel]
    float* sums;    // [kTokenBlock, kWide]
    float* levels;  // [3, kTokenBlock, kWide]

    static constexpr std::size_t kFloats = (kChunk + 1) * kWide + 4 * kTokenBlock * kWide;
    KARAT_INLINE explicit Scratch(float* base)
        : chunk(base), scales(chunk + kChunk * kWide), sums(scales + kWide), levels(sums + kTokenBlock * kWide) {}
};

// Unpacks columns of a panel that lie at w: to chunk [count, lanes], and of floats that share a scale, to scales.
template <class Fmt, int G>
void unpack(const std::uint8_t* w, std::size_t count, const Scratch& to) {
    float* chunk = to.chunk;
    if constexpr (kIsScaled<Fmt>) {
        static_assert(kChunk == Fmt::kColumns);
        constexpr int lanes = G * kLanes;
        for (int at = 0; at < lanes; at += kLanes, w += sizeof(float) * kLanes)
            store(to.scales + at, load(reinterpret_cast<const float*>(w)));
        for (int word = 0; word < Fmt::kWords; ++word, chunk += Fmt::kWordColumns * lanes)
            for (int at = 0; at < lanes; at += kLanes, w += sizeof(float) * kLanes)
                for (int j = 0; j < Fmt::kWordColumns; ++j) store(chunk + j * lanes + at, Fmt::number(iload(w), j));
    } else {
        for (std::size_t i = 0; i < count * G; ++i, w += kLanes * Fmt::kBytes, chunk += kLanes)
            store(chunk, Fmt::read(w));
    }
}

// Whether the first tile of a chunk unpacks it, in panels of G groups.
template <class Fmt, int G>
inline constexpr bool kUnpackInTile = kTuning.first_tile_unpacks && G == kPanelGroups && !kIsScaled<Fmt>;

// A tile's part of the next chunk as it is packed.
struct NextChunk {
    const std::uint8_t* lines;
    std::size_t bytes;
};

// Input of a tile: one chunk of columns, added to sums [tokens, kWide].
struct TileArgs {
    const float* x;
    std::size_t x_stride, count;
    float* sums;
    NextChunk next;
};

// Prefetches while a tile runs over columns k … k + 31: a part of the next chunk, and on Intel's cores also the next
// tile's part of x and a line of its sums. That saves a tenth of the time and more there, and nothing on Zen 4.
template <int T>
KARAT_INLINE void fetch_next(const TileArgs& a, std::size_t k) {
    if constexpr (kTuning.tile_fetches_next) {
        const float* x = a.x + T * a.x_stride + k;
        const float* sums = a.sums + T * kWide + k / 32 % (kWide / kLanes) * kLanes;
        for (int t = 0; t < T; ++t, x += a.x_stride, sums += kWide) {
            prefetch(x);
            prefetch(x + 16);
            prefetch(sums);
        }
    }
    constexpr std::size_t kTimes = kChunk / 32;  // while it runs over a whole chunk
    const std::size_t part = (a.next.bytes / 64 + kTimes - 1) / kTimes * 64, begin = k / 32 * part, end = begin + part;
    for (std::size_t at = begin; at < end && at < a.next.bytes; at += 64) prefetch_far(a.next.lines + at);
}

// A tile that reads an unpacked chunk, whose rows are kStride floats apart. With scales the chunk is a chain of its
// own, which is added to the sums.
template <int kStride, int TG, bool kHasScales>
struct Tile : TileArgs {
    const float* w;
    const float* scales;

    template <int T>
    KARAT_INLINE void run() const {
        f32x16 acc[T][TG];
        for (int t = 0; t < T; ++t)
            for (int g = 0; g < TG; ++g) acc[t][g] = kHasScales ? zero() : load(sums + t * kWide + g * kLanes);
        for (std::size_t k = 0; k < count; k += 32) {
            fetch_next<T>(*this, k);
            chain<T, TG>(acc, w + k * kStride, kStride, x + k, x_stride, count - k < 32 ? count - k : 32);
        }
        for (int t = 0; t < T; ++t)
            for (int g = 0; g < TG; ++g) {
                float* const sum = sums + t * kWide + g * kLanes;
                store(sum, kHasScales ? fma(acc[t][g], load(scales + g * kLanes), load(sum)) : acc[t][g]);
            }
    }
};

// The first tile of a chunk, which unpacks it: it multiplies weights as it reads them, and stores them to the buffer
// for the other tiles. For cores whose multiply-add shares its ports: a few tokens would wait for an unpacking of its
// own.
template <class Fmt, int G>
struct FirstTile : TileArgs {
    const std::uint8_t* from;  // the chunk's first column
    float* chunk;

    template <int T>
    KARAT_INLINE void run() const {
        f32x16 acc[T][G];
        float* __restrict const to = chunk;
        for (int t = 0; t < T; ++t)
            for (int g = 0; g < G; ++g) acc[t][g] = load(sums + t * kWide + g * kLanes);
        for (std::size_t k = 0; k < count; ++k) {
            if (k % 32 == 0) fetch_next<T>(*this, k);
            f32x16 weight[G];
            for (int g = 0; g < G; ++g) {
                weight[g] = Fmt::read(from + (k * G + static_cast<std::size_t>(g)) * kLanes * Fmt::kBytes);
                store(to + (k * G + static_cast<std::size_t>(g)) * kLanes, weight[g]);
            }
            for (int t = 0; t < T; ++t) {
                const f32x16 value = broadcast(x + static_cast<std::size_t>(t) * x_stride + k);
                for (int g = 0; g < G; ++g) acc[t][g] = fma(weight[g], value, acc[t][g]);
            }
        }
        for (int t = 0; t < T; ++t)
            for (int g = 0; g < G; ++g) store(sums + t * kWide + g * kLanes, acc[t][g]);
    }
};

// Not inline: all formats share one function, and those with scales another.
template <int kStride, int TG, bool kHasScales>
KARAT_NOINLINE void run_tile(std::size_t height, const Tile<kStride, TG, kHasScales>& tile) {
    with_height(height, tile);
}

// One panel and up to kTokenBlock tokens from `token` on. Each tile begins and ends its leaves itself: its sums are
// then in the first-level cache, and its stores overlap the next tile's arithmetic.
template <class Fmt, int G>
struct PanelOfMany {
    static constexpr int TG = G % kTuning.tile_vectors ? 1 : kTuning.tile_vectors;
    static constexpr std::size_t kBlockBytes = G * kGroupRows * Fmt::kBytes;  // a column, where floats have no scale
    const LinearArgs& a;
    std::size_t panel, token, tokens;
    const Scratch& s;

    void run() const {
        const std::uint8_t* packed = begin_of<Fmt, G>(a, panel);
        std::size_t start = a.first_column;
        for (std::size_t leaf = 0; leaf < a.num_leaves; ++leaf) {
            const std::size_t begin = start, end = a.leaf_ends[leaf];
            if (begin == end) {  // a leaf of no columns
                leaf_sums().begin(0, tokens);
                leaf_sums().end(a, panel, leaf, token, 0, tokens);
            }
            for (std::size_t count; start < end; start += count) {
                count = end - start < kChunk ? end - start : kChunk;
                if constexpr (!kUnpackInTile<Fmt, G>) unpack<Fmt, G>(packed, count, s);
                const std::size_t bytes = count / Fmt::kColumns * kBlockBytes;
                const std::uint8_t* const next = packed + bytes;
                const std::size_t each = (bytes / 64 + num_tiles(tokens) - 1) / num_tiles(tokens) * 64;
                for (std::size_t i = 0; i < num_tiles(tokens); ++i) {
                    const std::size_t first = tile_start(tokens, i), last = tile_start(tokens, i + 1);
                    if (start == begin) leaf_sums().begin(first, last);
                    const std::size_t fetched = i * each < bytes ? i * each : bytes;
                    tile(first, last, packed, start, count, {next + fetched, fetched < bytes ? each : 0});
                    if (start + count == end) leaf_sums().end(a, panel, leaf, token, first, last);
                }
                packed = next;
            }
        }
    }

private:
    KARAT_INLINE LeafSums<G> leaf_sums() const { return {s.sums, s.levels}; }

    void tile(std::size_t first, std::size_t last, const std::uint8_t* packed, std::size_t start, std::size_t count,
              NextChunk next) const {
        const auto args_from = [&](int g) {  // from group g on; the first asks for what comes next
            return TileArgs{a.x + (token + first) * a.x_stride + start, a.x_stride, count,
                            s.sums + first * kWide + g * kLanes, g == 0 ? next : NextChunk{}};
        };
        if constexpr (kUnpackInTile<Fmt, G>)
            if (first == 0) return with_height(last, NotInlined(FirstTile<Fmt, G>{args_from(0), packed, s.chunk}));
        for (int g = 0; g < G; g += TG)
            run_tile(last - first,
                     Tile<G * kLanes, TG, kIsScaled<Fmt>>{args_from(g), s.chunk + g * kLanes, s.scales + g * kLanes});
    }
};

template <class Fmt, int G>
void panel_of_many(const LinearArgs& a, std::size_t panel, const Scratch& s) {
    for (std::size_t token = 0; token < a.tokens; token += kTokenBlock)
        PanelOfMany<Fmt, G>{a, panel, token, a.tokens - token < kTokenBlock ? a.tokens - token : kTokenBlock, s}.run();
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

std::size_t linear_scratch_floats() { return Scratch::kFloats; }

void many_tokens(const LinearArgs& a, std::size_t first, std::size_t last, float* scratch) {
    with_floats(a.weight->format, Run{a, first, last, scratch});
}

}  // namespace karat::KARAT_ISA_NAMESPACE

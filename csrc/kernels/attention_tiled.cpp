// Attention of many rows: unpacks keys and values once for all rows, and computes both products in the tiles of linear
// layers (tile.h).
#include "kernels/attention.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// Unpacks K of positions first + skipped … first + count - 1 to [head_dim, kKeys]. Beyond them `out` is not defined:
// no row sees the keys before, whose blocks may be gone.
template <class From>
void unpack_keys(From, const Keys& keys, std::size_t first, std::size_t skipped, std::size_t count, float* out) {
    using Stored = typename From::Stored;
    const auto head = keys.head<Stored>();
    const std::size_t dim = keys.a.cache.head_dim;
    for (std::size_t lanes = skipped / kLanes * kLanes; lanes < count; lanes += kLanes) {
        const std::size_t position = first + lanes;
        if (keys.a.batch.block_size % kLanes == 0) {
            const Stored* in = head.k(keys.slot(position));
            for (std::size_t d = 0; d < dim; ++d) store(out + d * kKeys + lanes, From::read(in + d * kLanes));
        } else {
            const std::size_t some = least(kLanes, count - lanes);
            for (std::size_t i = most(skipped, lanes) - lanes; i < some; ++i) {
                const std::size_t slot = keys.slot(position + i);
                const Stored* in = head.k(slot) + slot % kLanes;
                for (std::size_t d = 0; d < dim; ++d) out[d * kKeys + lanes + i] = From::one(in[d * kLanes]);
            }
            for (std::size_t i = some; i < kLanes; ++i)
                for (std::size_t d = 0; d < dim; ++d) out[d * kKeys + lanes + i] = 0.0f;
        }
    }
}

// Unpacks V of positions first + skipped … first + count - 1 to [count, head_dim rounded up to 16].
template <class From>
void unpack_values(From, const Keys& keys, std::size_t first, std::size_t skipped, std::size_t count, float* out) {
    using Stored = typename From::Stored;
    const auto head = keys.head<Stored>();
    const std::size_t padded = padded_dim(keys.a.cache.head_dim);
    for (std::size_t i = skipped; i < count; ++i) {
        const Stored* in = head.v(keys.slot(first + i));
        for (std::size_t d = 0; d < padded; d += kLanes) store(out + i * padded + d, From::read(in + d));
    }
}

inline constexpr std::size_t kTileKeys = kTuning.tile_vectors * kLanes;  // scores of a row of a tile

template <int TG>
struct ScoreTile {
    const float *keys, *q;
    std::size_t dim, q_stride;
    float scale;
    float* out;  // [rows, kSplitKeys]

    template <int T>
    KARAT_INLINE void run() const {
        f32x16 acc[T][TG];
        for (int t = 0; t < T; ++t)
            for (int g = 0; g < TG; ++g) acc[t][g] = zero();
        chain<T, TG>(acc, keys, kKeys, q, q_stride, dim);
        const f32x16 factor = set1(scale);
        for (int t = 0; t < T; ++t)
            for (int g = 0; g < TG; ++g) store(out + t * kSplitKeys + g * kLanes, acc[t][g] * factor);
    }
};

template <int TG>
struct ValueTile {
    const float *values, *weights;
    std::size_t padded, count;
    float* part;

    template <int T>
    KARAT_INLINE void run() const {
        f32x16 acc[T][TG];
        for (std::size_t t = 0; t < T; ++t)
            for (int g = 0; g < TG; ++g) acc[t][g] = load(part + t * (padded + kPartStats) + g * kLanes);
        chain<T, TG>(acc, values, padded, weights, kSplitKeys, count);
        for (std::size_t t = 0; t < T; ++t)
            for (int g = 0; g < TG; ++g) store(part + t * (padded + kPartStats) + g * kLanes, acc[t][g]);
    }
};

// part[rows first … last - 1] += weights · values over keys from … to - 1 of the unpacked ones (which begin at `base`).
void add_values(const AttentionScratch& s, std::size_t first, std::size_t last, std::size_t base, std::size_t from,
                std::size_t to) {
    if (from >= to) return;
    const float* values = s.unpacked + (from - base) * s.padded;
    const float* weights = s.weights + first * kSplitKeys + from;
    std::size_t d = 0;
    for (; d + kTuning.tile_vectors * kLanes <= s.padded; d += kTuning.tile_vectors * kLanes)
        with_height(last - first,
                    ValueTile<kTuning.tile_vectors>{values + d, weights, s.padded, to - from, s.part_of(first) + d});
    for (; d < s.padded; d += kLanes)
        with_height(last - first, ValueTile<1>{values + d, weights, s.padded, to - from, s.part_of(first) + d});
}

// Keys of the split from the first to the last that any of rows first … last - 1 sees.
struct KeysSeen { std::size_t from, to; };
KARAT_INLINE KeysSeen seen_by_any(const AttentionScratch& s, std::size_t first, std::size_t last) {
    KeysSeen seen{kSplitKeys, 0};
    for (std::size_t r = first; r < last; ++r)
        if (s.from[r] < s.to[r]) seen = {least(seen.from, s.from[r]), most(seen.to, s.to[r])};
    return seen;
}

}  // namespace

void tiled_split(const Rows& rows, const Keys& keys, std::size_t first, std::size_t count, std::size_t index,
                 const AttentionScratch& s) {
    const std::size_t start = index * kSplitKeys;
    for (std::size_t r = 0; r < count; ++r) {
        s.from[r] = most(rows.begin(first + r), start) - start;
        s.to[r] = most(least(rows.end(first + r), start + kSplitKeys), start) - start;
        if (s.from[r] >= s.to[r]) s.from[r] = s.to[r] = 0;
    }
    const KeysSeen all = seen_by_any(s, 0, count);
    for (std::size_t base = all.from / kKeys * kKeys; base < all.to; base += kKeys) {
        const std::size_t end = least(base + kKeys, all.to), skipped = most(all.from, base) - base;
        with_reader(rows.a.cache.type,
                    [&](auto from) { unpack_keys(from, keys, start + base, skipped, end - base, s.unpacked); });
        for (std::size_t i = 0; i < num_tiles(count); ++i) {
            const std::size_t r0 = tile_start(count, i), r1 = tile_start(count, i + 1);
            const KeysSeen seen = seen_by_any(s, r0, r1);
            for (std::size_t j = most(base, seen.from / kTileKeys * kTileKeys); j < least(end, seen.to); j += kTileKeys)
                with_height(r1 - r0,
                            ScoreTile<kTuning.tile_vectors>{s.unpacked + j - base, s.q + r0 * s.padded, s.dim, s.padded,
                                                            rows.a.scale, s.weights + r0 * kSplitKeys + j});
        }
    }
    cap_scores(s, count, rows.a.cap);
    copy_scores_out(rows, keys, first, count, start, s);
    for (std::size_t r = 0; r < count; ++r)
        for (std::size_t d = 0; d < s.padded + kPartStats; d += kLanes) store(s.part_of(r) + d, zero());
    scores_to_weights(s, count);
    for (std::size_t base = all.from / kKeys * kKeys; base < all.to; base += kKeys) {
        const std::size_t end = least(base + kKeys, all.to), skipped = most(all.from, base) - base;
        with_reader(rows.a.cache.type,
                    [&](auto from) { unpack_values(from, keys, start + base, skipped, end - base, s.unpacked); });
        for (std::size_t i = 0; i < num_tiles(count); ++i) {
            const std::size_t r0 = tile_start(count, i), r1 = tile_start(count, i + 1);
            // Keys that all rows of the tile see run as a tile. Keys before and after, which only some rows see, run
            // row by row.
            std::size_t from = base, to = end;
            for (std::size_t r = r0; r < r1; ++r) {
                from = most(from, s.from[r]);
                to = least(to, s.to[r]);
            }
            from = least(from, end);
            to = most(to, from);
            for (std::size_t r = r0; r < r1; ++r)
                add_values(s, r, r + 1, base, most(s.from[r], base), least(from, s.to[r]));
            add_values(s, r0, r1, base, from, to);
            for (std::size_t r = r0; r < r1; ++r)
                add_values(s, r, r + 1, base, most(to, s.from[r]), least(end, s.to[r]));
        }
    }
}

}  // namespace karat::KARAT_ISA_NAMESPACE

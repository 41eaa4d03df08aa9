// Attention of one token: K and V go straight from the cache into the chains.
#include "kernels/attention.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// All rows see the same keys. Some of them at a time, as many as there are registers for: keys and values are still in
// the nearest cache for the next. What is not in the caches comes into the second level, evenly and long before: V
// while scores are made, and K of the next split while values are summed.
template <class From>
struct Direct {
    using Stored = typename From::Stored;
    static constexpr std::size_t kLine = 64 / sizeof(Stored), kNear = 16384 / sizeof(Stored);
    static constexpr std::size_t kGroups = kSplitKeys / kLanes;  // of keys
    const AttentionScratch& s;
    const float* q;                  // [num_rows, head_dim]
    std::size_t num_rows, from, to;  // visible keys of the split
    float scale;
    const Stored *k[2 * kGroups], *v[kGroups];  // of each group; K of those of the next split, too

    Direct(const Keys& keys, const AttentionScratch& s, const float* q, std::size_t num_rows, std::size_t start,
           std::size_t from, std::size_t to)
        : s(s), q(q), num_rows(num_rows), from(from), to(to), scale(keys.a.scale) {
        const auto head = keys.head<const Stored>();
        const std::size_t size = keys.a.batch.block_size, first = start + from / kLanes * kLanes;
        const std::int32_t* block = keys.table + first / size;
        std::size_t offset = first % size;
        std::size_t group = from / kLanes;
        for (; group < 2 * kGroups && start + group * kLanes < keys.context; ++group) {
            const std::size_t slot = static_cast<std::size_t>(*block) * size + offset;
            k[group] = head.k(slot);
            if (group < kGroups) v[group] = head.v(slot);
            offset += kLanes;
            if (offset == size) {
                offset = 0;
                ++block;
            }
        }
        for (; group < 2 * kGroups; ++group) k[group] = k[group - 1];
    }

    // Of keys first … last - 1, for T rows.
    struct Scores {
        const Direct& d;
        std::size_t row, first, last;
        template <int T>
        KARAT_INLINE void run() const {
            const std::size_t dim = d.s.dim, end = (last + kLanes - 1) / kLanes;
            const f32x16 factor = set1(d.scale);
            const float* const queries = d.q + row * dim;
            float* const weights = d.s.weights + row * kSplitKeys;
            for (std::size_t group = first / kLanes; group < end; group += kDirectGroups) {
                const Stored *in[kDirectGroups], *next[kDirectGroups];
                for (std::size_t g = 0; g < kDirectGroups; ++g) {
                    in[g] = d.k[least(group + g, end - 1)];
                    next[g] = d.v[least(group + g, end - 1)];
                }
                f32x16 acc[T][kDirectGroups];
                for (int t = 0; t < T; ++t)
                    for (int g = 0; g < kDirectGroups; ++g) acc[t][g] = zero();
                for (std::size_t i = 0; i < dim; ++i) {
                    f32x16 key[kDirectGroups];
                    for (int g = 0; g < kDirectGroups; ++g) {
                        key[g] = From::read(in[g] + i * kLanes);
                        if (i * kLanes % kLine == 0) prefetch_far(next[g] + i * kLanes);
                    }
                    for (int t = 0; t < T; ++t) {
                        const f32x16 value = broadcast(queries + static_cast<std::size_t>(t) * dim + i);
                        for (int g = 0; g < kDirectGroups; ++g) acc[t][g] = fma(key[g], value, acc[t][g]);
                    }
                }
                for (std::size_t t = 0; t < T; ++t)
                    for (std::size_t g = 0; g < kDirectGroups && group + g < end; ++g)
                        store(weights + t * kSplitKeys + (group + g) * kLanes, acc[t][g] * factor);
            }
        }
    };

    // Of keys first … last - 1, into the parts of T rows: DG groups of dimensions.
    template <int DG>
    struct Values {
        const Direct& d;
        std::size_t row, dims, first, last;
        template <int T>
        KARAT_INLINE void run() const {
            const std::size_t padded = d.s.padded;
            const float* const weights = d.s.weights + row * kSplitKeys;
            f32x16 acc[T][DG];
            for (std::size_t t = 0; t < T; ++t)
                for (int g = 0; g < DG; ++g) acc[t][g] = load(d.s.part_of(row + t) + dims + g * kLanes);
            for (std::size_t group = first / kLanes; group * kLanes < last; ++group) {
                const Stored *in = d.v[group] + dims, *next = d.k[group + kGroups] + dims * kLanes;
                const std::size_t begin = most(first, group * kLanes), end = least(last, (group + 1) * kLanes);
                for (std::size_t j = begin; j < end; ++j) {
                    f32x16 value[DG];
                    for (int g = 0; g < DG; ++g) value[g] = From::read(in + (j - group * kLanes) * padded + g * kLanes);
                    for (std::size_t i = 0; i < DG * kLanes; i += kLine)
                        prefetch_far(next + (j - group * kLanes) * DG * kLanes + i);
                    for (int t = 0; t < T; ++t) {
                        const f32x16 weight = broadcast(weights + static_cast<std::size_t>(t) * kSplitKeys + j);
                        for (int g = 0; g < DG; ++g) acc[t][g] = fma(value[g], weight, acc[t][g]);
                    }
                }
            }
            for (std::size_t t = 0; t < T; ++t)
                for (int g = 0; g < DG; ++g) store(d.s.part_of(row + t) + dims + g * kLanes, acc[t][g]);
        }
    };

    // So many keys stay in the nearest cache.
    KARAT_INLINE std::size_t near() const {
        constexpr std::size_t step = kDirectGroups * kLanes;
        return most(kNear / s.padded / step, 1) * step;
    }

    // tile(row, height, first, last) for as many rows at a time as there are registers for, in pieces of so many keys.
    template <class Tile>
    KARAT_INLINE void pieces(std::size_t piece, const Tile& tile) const {
        const std::size_t count = (num_rows + kDirectTokens - 1) / kDirectTokens;
        for (std::size_t first = from, last; first < to; first = last) {
            last = least(to, (first / piece + 1) * piece);
            for (std::size_t i = 0; i < count; ++i) {
                const std::size_t row = i * num_rows / count;
                tile(row, (i + 1) * num_rows / count - row, first, last);
            }
        }
    }

    void scores() const {
        const std::size_t piece = num_rows <= kDirectTokens ? kSplitKeys : near();
        pieces(piece, [&](std::size_t row, std::size_t height, std::size_t first, std::size_t last) {
            with_height<kDirectTokens>(height, Scores{*this, row, first, last});
        });
    }

    void values() const {
        pieces(near(), [&](std::size_t row, std::size_t height, std::size_t first, std::size_t last) {
            std::size_t dims = 0;
            for (; dims + kDirectGroups * kLanes <= s.padded; dims += kDirectGroups * kLanes)
                with_height<kDirectTokens>(height, Values<kDirectGroups>{*this, row, dims, first, last});
            for (; dims < s.padded; dims += kLanes)
                with_height<kDirectTokens>(height, Values<1>{*this, row, dims, first, last});
        });
    }
};

template <class From>
void direct_split(const Rows& rows, const Keys& keys, std::size_t first, std::size_t count, std::size_t index,
                  const AttentionScratch& s) {
    const std::size_t start = index * kSplitKeys;
    for (std::size_t r = 0; r < count; ++r) {
        s.from[r] = most(rows.begin(first), start) - start;
        s.to[r] = least(rows.end(first), start + kSplitKeys) - start;
        for (std::size_t d = 0; d < s.padded + kStats; d += kLanes) store(s.part_of(r) + d, zero());
    }
    const Direct<From> direct(keys, s, rows.a.q + rows.offset(first), count, start, s.from[0], s.to[0]);
    direct.scores();
    show(rows, keys, first, count, start, s);
    soften(s, count);
    direct.values();
}

}  // namespace

void direct_split(const Rows& rows, const Keys& keys, std::size_t first, std::size_t count, std::size_t index,
                  const AttentionScratch& s) {
    switch (rows.a.cache.type) {
        case CacheType::f32: return direct_split<FromF32>(rows, keys, first, count, index, s);
        case CacheType::f16: return direct_split<FromF16>(rows, keys, first, count, index, s);
        case CacheType::bf16: return direct_split<FromBF16>(rows, keys, first, count, index, s);
    }
}

}  // namespace karat::KARAT_ISA_NAMESPACE

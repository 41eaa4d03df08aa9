// Attention of one token: K and V go straight from the cache into the chains.
#include "attention.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// All rows see the same keys. What is not in the caches comes into the second level, evenly and long before: V while scores
// are made, and K of the next split while values are summed.
template <class From>
struct Direct {
    using Stored = typename From::Stored;
    const Keys& keys;
    const Scratch& s;
    std::size_t start, from, to;  // the split, and its visible keys

    const CachedHead<const Stored> head = keys.head<const Stored>();

    KARAT_INLINE std::size_t slot(std::size_t group) const { return keys.slot(start + group * kLanes); }

    struct Scores {
        const Direct& d;
        template <int T>
        KARAT_INLINE void run() const {
            const std::size_t dim = d.s.dim, last = (d.to + kLanes - 1) / kLanes;
            const f32x16 factor = set1(d.keys.a.scale);
            for (std::size_t group = d.from / kLanes; group < last; group += kDirectGroups) {
                const Stored *in[kDirectGroups], *next[kDirectGroups];
                for (std::size_t g = 0; g < kDirectGroups; ++g) {
                    const std::size_t slot = d.slot(least(group + g, last - 1));
                    in[g] = d.head.k(slot);
                    next[g] = d.head.v(slot);
                }
                f32x16 acc[T][kDirectGroups];
                for (int t = 0; t < T; ++t)
                    for (int g = 0; g < kDirectGroups; ++g) acc[t][g] = zero();
                for (std::size_t i = 0; i < dim; ++i) {
                    f32x16 key[kDirectGroups];
                    for (int g = 0; g < kDirectGroups; ++g) {
                        key[g] = From::read(in[g] + i * kLanes);
                        if (i * kLanes * sizeof(Stored) % 64 == 0) prefetch_far(next[g] + i * kLanes);
                    }
                    for (int t = 0; t < T; ++t) {
                        const f32x16 q = broadcast(d.s.q + static_cast<std::size_t>(t) * d.s.padded + i);
                        for (int g = 0; g < kDirectGroups; ++g) acc[t][g] = fma(key[g], q, acc[t][g]);
                    }
                }
                for (int t = 0; t < T; ++t)
                    for (std::size_t g = 0; g < kDirectGroups && group + g < last; ++g)
                        store(d.s.weights + t * kSplitKeys + (group + g) * kLanes, acc[t][g] * factor);
            }
        }
    };

    template <int DG>
    struct Values {
        const Direct& d;
        std::size_t dims;  // the first of DG groups of dimensions
        template <int T>
        KARAT_INLINE void run() const {
            const std::size_t padded = d.s.padded;
            f32x16 acc[T][DG];
            for (int t = 0; t < T; ++t)
                for (int g = 0; g < DG; ++g) acc[t][g] = zero();
            for (std::size_t group = d.from / kLanes; group * kLanes < d.to; ++group) {
                const Stored* in = d.head.v(d.slot(group)) + dims;
                const std::size_t later = least(d.start + kSplitKeys + group * kLanes, d.keys.context - 1);
                const Stored* next = d.head.k(d.keys.slot(later)) + dims * kLanes;
                const std::size_t first = most(d.from, group * kLanes), last = least(d.to, (group + 1) * kLanes);
                for (std::size_t j = first; j < last; ++j) {
                    f32x16 value[DG];
                    for (int g = 0; g < DG; ++g)
                        value[g] = From::read(in + (j - group * kLanes) * padded + g * kLanes);
                    for (std::size_t i = 0; i < DG * kLanes; i += 64 / sizeof(Stored))
                        prefetch_far(next + (j - group * kLanes) * DG * kLanes + i);
                    for (int t = 0; t < T; ++t) {
                        const f32x16 weight = broadcast(d.s.weights + static_cast<std::size_t>(t) * kSplitKeys + j);
                        for (int g = 0; g < DG; ++g) acc[t][g] = fma(value[g], weight, acc[t][g]);
                    }
                }
            }
            for (std::size_t t = 0; t < T; ++t)
                for (int g = 0; g < DG; ++g) store(d.s.part_of(t) + dims + g * kLanes, acc[t][g]);
        }
    };

    KARAT_INLINE void scores(std::size_t rows) const { with_height<kDirectTokens>(rows, Scores{*this}); }
    KARAT_INLINE void values(std::size_t rows) const {
        std::size_t dims = 0;
        for (; dims + kDirectGroups * kLanes <= s.padded; dims += kDirectGroups * kLanes)
            with_height<kDirectTokens>(rows, Values<kDirectGroups>{*this, dims});
        for (; dims < s.padded; dims += kLanes) with_height<kDirectTokens>(rows, Values<1>{*this, dims});
    }
};

template <class From>
void direct_split(const Rows& rows, const Keys& keys, std::size_t first, std::size_t count, std::size_t index,
                  const Scratch& s) {
    const std::size_t start = index * kSplitKeys;
    for (std::size_t r = 0; r < count; ++r) {
        s.from[r] = most(rows.begin(first), start) - start;
        s.to[r] = least(rows.end(first), start + kSplitKeys) - start;
        for (std::size_t d = s.padded; d < s.padded + kStats; ++d) s.part_of(r)[d] = 0.0f;
    }
    const Direct<From> direct{keys, s, start, s.from[0], s.to[0]};
    direct.scores(count);
    show(rows, keys, first, count, start, s);
    soften(s, count);
    direct.values(count);
}

}  // namespace

void direct_split(const Rows& rows, const Keys& keys, std::size_t first, std::size_t count, std::size_t index,
                  const Scratch& s) {
    switch (rows.a.cache.type) {
        case CacheType::f32: return direct_split<FromF32>(rows, keys, first, count, index, s);
        case CacheType::f16: return direct_split<FromF16>(rows, keys, first, count, index, s);
        case CacheType::bf16: return direct_split<FromBF16>(rows, keys, first, count, index, s);
    }
}

}  // namespace karat::KARAT_ISA_NAMESPACE

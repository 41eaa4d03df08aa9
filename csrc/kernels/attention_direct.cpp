// Attention of one token: K and V are multiplied as they lie in the cache, without an unpacked copy.
#include "kernels/attention.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// One split of one KV head. All rows belong to one token and see the same keys. A pass computes kTuning.direct_rows
// rows, as many as there are registers for; the next pass finds keys and values still in the first-level cache. Memory
// is read ahead into the second-level cache, a line with each step: V while scores are computed, K of the next split
// while values are summed.
template <class From>
struct Direct {
    using Stored = typename From::Stored;
    static constexpr std::size_t kLine = 64 / sizeof(Stored), kNear = kTuning.near_bytes / sizeof(Stored);
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

    // Scores of keys first … last - 1 for T rows. One step is one dimension of 16 * direct_vectors keys.
    struct Scores {
        const Direct& d;
        std::size_t row, first, last;
        template <int T>
        KARAT_INLINE void run() const {
            const std::size_t dim = d.s.dim, end = (last + kLanes - 1) / kLanes;
            const f32x16 factor = set1(d.scale);
            const float* const queries = d.q + row * dim;
            float* const weights = d.s.weights + row * kSplitKeys;
            for (std::size_t group = first / kLanes; group < end; group += kTuning.direct_vectors) {
                const Stored *in[kTuning.direct_vectors], *next[kTuning.direct_vectors];
                for (std::size_t g = 0; g < kTuning.direct_vectors; ++g) {
                    in[g] = d.k[least(group + g, end - 1)];
                    next[g] = d.v[least(group + g, end - 1)];
                }
                f32x16 acc[T][kTuning.direct_vectors];
                for (int t = 0; t < T; ++t)
                    for (int g = 0; g < kTuning.direct_vectors; ++g) acc[t][g] = zero();
                for (std::size_t i = 0; i < dim; ++i) {
                    f32x16 key[kTuning.direct_vectors];
                    for (int g = 0; g < kTuning.direct_vectors; ++g) {
                        key[g] = From::read(in[g] + i * kLanes);
                        if (i * kLanes % kLine == 0) prefetch_far(next[g] + i * kLanes);
                    }
                    for (int t = 0; t < T; ++t) {
                        const f32x16 value = broadcast(queries + static_cast<std::size_t>(t) * dim + i);
                        for (int g = 0; g < kTuning.direct_vectors; ++g) acc[t][g] = fma(key[g], value, acc[t][g]);
                    }
                }
                for (std::size_t t = 0; t < T; ++t)
                    for (std::size_t g = 0; g < kTuning.direct_vectors && group + g < end; ++g)
                        store(weights + t * kSplitKeys + (group + g) * kLanes, acc[t][g] * factor);
            }
        }
    };

    // Adds values of keys first … last - 1 to the parts of T rows, DG vectors of dimensions. One step is one key.
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

    // The number of keys whose K or V stays in the first-level cache (kTuning.near_bytes).
    KARAT_INLINE std::size_t near() const {
        constexpr std::size_t step = kTuning.direct_vectors * kLanes;
        return most(kNear / s.padded / step, 1) * step;
    }

    // Cuts the keys into pieces and the rows into passes, and calls tile(row, height, first key, last key) for each.
    template <class Tile>
    KARAT_INLINE void pieces(std::size_t piece, const Tile& tile) const {
        const std::size_t count = (num_rows + kTuning.direct_rows - 1) / kTuning.direct_rows;
        for (std::size_t first = from, last; first < to; first = last) {
            last = least(to, (first / piece + 1) * piece);
            for (std::size_t i = 0; i < count; ++i) {
                const std::size_t row = i * num_rows / count;
                tile(row, (i + 1) * num_rows / count - row, first, last);
            }
        }
    }

    void scores() const {
        const std::size_t piece = num_rows <= kTuning.direct_rows ? kSplitKeys : near();
        pieces(piece, [&](std::size_t row, std::size_t height, std::size_t first, std::size_t last) {
            with_height<kTuning.direct_rows>(height, Scores{*this, row, first, last});
        });
    }

    void values() const {
        pieces(near(), [&](std::size_t row, std::size_t height, std::size_t first, std::size_t last) {
            std::size_t dims = 0;
            for (; dims + kTuning.direct_vectors * kLanes <= s.padded; dims += kTuning.direct_vectors * kLanes)
                with_height<kTuning.direct_rows>(height, Values<kTuning.direct_vectors>{*this, row, dims, first, last});
            for (; dims < s.padded; dims += kLanes)
                with_height<kTuning.direct_rows>(height, Values<1>{*this, row, dims, first, last});
        });
    }
};

}  // namespace

void direct_split(const Rows& rows, const Keys& keys, std::size_t first, std::size_t count, std::size_t index,
                  const AttentionScratch& s) {
    const std::size_t start = index * kSplitKeys;
    for (std::size_t r = 0; r < count; ++r) {
        s.from[r] = most(rows.begin(first), start) - start;
        s.to[r] = least(rows.end(first), start + kSplitKeys) - start;
        for (std::size_t d = 0; d < s.padded + kPartStats; d += kLanes) store(s.part_of(r) + d, zero());
    }
    with_reader(rows.a.cache.type, [&](auto from) {
        const Direct<decltype(from)> direct(keys, s, rows.a.q + rows.offset(first), count, start, s.from[0], s.to[0]);
        direct.scores();
        cap_scores(s, count, rows.a.cap);
        copy_scores_out(rows, keys, first, count, start, s);
        scores_to_weights(s, count);
        direct.values();
    });
}

}  // namespace karat::KARAT_ISA_NAMESPACE

// Attention over a paged cache (kernels.h, AttentionArgs). Compiled once for each instruction set.
//
// A row is one query head of one token; rows that read the same KV head are taken together, so that a key or value is
// unpacked once for all of them. Both products run in the tiles of linear layers: scores with lanes over keys (K is
// stored that way), values with lanes over the head's dimensions.
#include "exp.h"
#include "kernels_isa.h"
#include "linear.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

constexpr std::size_t kRows = 96;      // rows taken together
constexpr std::size_t kKeys = 64;      // keys unpacked at a time
constexpr std::size_t kStats = 16;     // floats beside a part: total, top, and what fills up a vector
const float kNegInf = float_of(0xff800000);

KARAT_INLINE std::size_t padded_dim(std::size_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }
KARAT_INLINE std::size_t least(std::size_t a, std::size_t b) { return a < b ? a : b; }
KARAT_INLINE std::size_t most(std::size_t a, std::size_t b) { return a < b ? b : a; }

struct Scratch {
    std::size_t dim, padded;
    float *unpacked, *q, *weights, *part, *sum;
    std::size_t *from, *to;  // visible keys of each row, relative to the split

    Scratch(float* base, std::size_t head_dim) : dim(head_dim), padded(padded_dim(head_dim)) {
        unpacked = base;
        q = unpacked + kKeys * padded;
        weights = q + kRows * padded;
        part = weights + kRows * kSplitKeys;
        sum = part + kRows * (padded + kStats);
        from = reinterpret_cast<std::size_t*>(sum + kRows * (padded + kStats));
        to = from + kRows;
    }
    static std::size_t floats(std::size_t head_dim) {
        const std::size_t padded = padded_dim(head_dim);
        return kKeys * padded + kRows * padded + kRows * kSplitKeys + 2 * kRows * (padded + kStats) +
               2 * kRows * sizeof(std::size_t) / sizeof(float);
    }
    float* part_of(std::size_t row) const { return part + row * (padded + kStats); }
    float* sum_of(std::size_t row) const { return sum + row * (padded + kStats); }
};

// One KV head of one sequence, by position.
struct Keys {
    const AttentionArgs& a;
    const std::int32_t* table;
    std::size_t kv_head, context;

    KARAT_INLINE std::size_t slot(std::size_t position) const {
        const std::size_t size = a.batch.block_size;
        return static_cast<std::size_t>(table[position / size]) * size + position % size;
    }
    KARAT_INLINE std::size_t place(std::size_t slot) const {
        return slot / kLanes * a.cache.num_kv_heads + kv_head;
    }
};

struct FromF32 {
    using Stored = float;
    static KARAT_INLINE f32x16 read(const Stored* p) { return load(p); }
    static KARAT_INLINE float one(Stored x) { return x; }
};
struct FromF16 {
    using Stored = std::uint16_t;
    static KARAT_INLINE f32x16 read(const Stored* p) { return load_f16(p); }
    static KARAT_INLINE float one(Stored x) { return float_of_f16(x); }
};
struct FromBF16 {
    using Stored = std::uint16_t;
    static KARAT_INLINE f32x16 read(const Stored* p) { return load_bf16(p); }
    static KARAT_INLINE float one(Stored x) { return float_of(static_cast<std::uint32_t>(x) << 16); }
};

// K of positions first … first + kKeys - 1 as [head_dim, kKeys]; beyond the context anything.
template <class From>
void unpack_keys(const Keys& keys, std::size_t first, float* out) {
    using Stored = typename From::Stored;
    const auto* k = reinterpret_cast<const Stored*>(keys.a.cache.k);
    const std::size_t dim = keys.a.cache.head_dim;
    for (std::size_t lanes = 0; lanes < kKeys && first + lanes < keys.context; lanes += kLanes) {
        const std::size_t position = first + lanes;
        if (keys.a.batch.block_size % kLanes == 0) {
            const Stored* in = k + keys.place(keys.slot(position)) * dim * kLanes;
            for (std::size_t d = 0; d < dim; ++d) store(out + d * kKeys + lanes, From::read(in + d * kLanes));
        } else {
            const std::size_t count = least(kLanes, keys.context - position);
            for (std::size_t i = 0; i < count; ++i) {
                const std::size_t slot = keys.slot(position + i);
                const Stored* in = k + keys.place(slot) * dim * kLanes + slot % kLanes;
                for (std::size_t d = 0; d < dim; ++d) out[d * kKeys + lanes + i] = From::one(in[d * kLanes]);
            }
            for (std::size_t i = count; i < kLanes; ++i)
                for (std::size_t d = 0; d < dim; ++d) out[d * kKeys + lanes + i] = 0.0f;
        }
    }
}

// V of positions first … as [kKeys, head_dim filled up].
template <class From>
void unpack_values(const Keys& keys, std::size_t first, std::size_t count, float* out) {
    using Stored = typename From::Stored;
    const auto* v = reinterpret_cast<const Stored*>(keys.a.cache.v);
    const std::size_t padded = padded_dim(keys.a.cache.head_dim);
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t slot = keys.slot(first + i);
        const Stored* in = v + (keys.place(slot) * kLanes + slot % kLanes) * padded;
        for (std::size_t d = 0; d < padded; d += kLanes) store(out + i * padded + d, From::read(in + d));
    }
}

void unpack_keys(const Keys& keys, std::size_t first, float* out) {
    switch (keys.a.cache.type) {
        case CacheType::f32: return unpack_keys<FromF32>(keys, first, out);
        case CacheType::f16: return unpack_keys<FromF16>(keys, first, out);
        case CacheType::bf16: return unpack_keys<FromBF16>(keys, first, out);
    }
}

void unpack_values(const Keys& keys, std::size_t first, std::size_t count, float* out) {
    switch (keys.a.cache.type) {
        case CacheType::f32: return unpack_values<FromF32>(keys, first, count, out);
        case CacheType::f16: return unpack_values<FromF16>(keys, first, count, out);
        case CacheType::bf16: return unpack_values<FromBF16>(keys, first, count, out);
    }
}

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
            for (int g = 0; g < TG; ++g) acc[t][g] = load(part + t * (padded + kStats) + g * kLanes);
        chain<T, TG>(acc, values, padded, weights, kSplitKeys, count);
        for (std::size_t t = 0; t < T; ++t)
            for (int g = 0; g < TG; ++g) store(part + t * (padded + kStats) + g * kLanes, acc[t][g]);
    }
};

// part[rows first … last - 1] += weights · values over keys from … to - 1 of the unpacked ones (which begin at `base`).
void add_values(const Scratch& s, std::size_t first, std::size_t last, std::size_t base, std::size_t from,
                std::size_t to) {
    if (from >= to) return;
    const float* values = s.unpacked + (from - base) * s.padded;
    const float* weights = s.weights + first * kSplitKeys + from;
    std::size_t d = 0;
    for (; d + kTileGroups * kLanes <= s.padded; d += kTileGroups * kLanes)
        with_height(last - first, ValueTile<kTileGroups>{values + d, weights, s.padded, to - from, s.part_of(first) + d});
    for (; d < s.padded; d += kLanes)
        with_height(last - first, ValueTile<1>{values + d, weights, s.padded, to - from, s.part_of(first) + d});
}

// ---- one token: K and V straight from the cache into the chains --------------------------------------------------------

// Blocks hold whole groups of 16 positions, and all rows see the same keys.
template <class From>
struct Direct {
    using Stored = typename From::Stored;
    const Keys& keys;
    const Scratch& s;
    std::size_t start, from, to;  // the split, and its visible keys

    KARAT_INLINE std::size_t place(std::size_t group) const { return keys.place(keys.slot(start + group * kLanes)); }

    struct Scores {
        const Direct& d;
        template <int T>
        KARAT_INLINE void run() const {
            const std::size_t dim = d.s.dim, last = (d.to + kLanes - 1) / kLanes;
            const auto* k = reinterpret_cast<const Stored*>(d.keys.a.cache.k);
            const f32x16 factor = set1(d.keys.a.scale);
            for (std::size_t group = d.from / kLanes; group < last; group += kDirectGroups) {
                const Stored *in[kDirectGroups], *next[kDirectGroups];
                for (std::size_t g = 0; g < kDirectGroups; ++g) {
                    in[g] = k + d.place(least(group + g, last - 1)) * dim * kLanes;
                    next[g] = k + d.place(least(group + g + kDirectGroups, last - 1)) * dim * kLanes;
                }
                f32x16 acc[T][kDirectGroups];
                for (int t = 0; t < T; ++t)
                    for (int g = 0; g < kDirectGroups; ++g) acc[t][g] = zero();
                for (std::size_t i = 0; i < dim; ++i) {
                    f32x16 key[kDirectGroups];
                    for (int g = 0; g < kDirectGroups; ++g) {
                        key[g] = From::read(in[g] + i * kLanes);
                        prefetch(next[g] + i * kLanes);
                    }
                    for (int t = 0; t < T; ++t) {
                        const f32x16 q = set1(d.s.q[static_cast<std::size_t>(t) * d.s.padded + i]);
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
            const auto* v = reinterpret_cast<const Stored*>(d.keys.a.cache.v);
            f32x16 acc[T][DG];
            for (int t = 0; t < T; ++t)
                for (int g = 0; g < DG; ++g) acc[t][g] = zero();
            for (std::size_t group = d.from / kLanes; group * kLanes < d.to; ++group) {
                const Stored* in = v + d.place(group) * kLanes * padded + dims;
                const std::size_t after = (group + 1) * kLanes < d.to ? group + 1 : group;
                const Stored* next = v + d.place(after) * kLanes * padded + dims;
                const std::size_t first = most(d.from, group * kLanes), last = least(d.to, (group + 1) * kLanes);
                for (std::size_t j = first; j < last; ++j) {
                    f32x16 value[DG];
                    for (int g = 0; g < DG; ++g)
                        value[g] = From::read(in + (j - group * kLanes) * padded + g * kLanes);
                    prefetch(next + (j - group * kLanes) * padded);
                    for (int t = 0; t < T; ++t) {
                        const f32x16 weight = set1(d.s.weights[static_cast<std::size_t>(t) * kSplitKeys + j]);
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

// Scores of a row to weights, in place; the row's total and top behind its part.
void soften(const Scratch& s, std::size_t row) {
    const std::size_t from = s.from[row], to = s.to[row];
    float* weights = s.weights + row * kSplitKeys;
    // What is not visible at both ends counts as the lowest score, and then as weight 0.
    const auto visible = [&](std::size_t j, f32x16 value, float other) {
        if (from <= j && j + kLanes <= to) return value;
        float lanes[kLanes];
        store(lanes, value);
        for (std::size_t i = 0; i < kLanes; ++i)
            if (j + i < from || to <= j + i) lanes[i] = other;
        return load(lanes);
    };
    f32x16 tops = set1(kNegInf);
    for (std::size_t j = from / kLanes * kLanes; j < to; j += kLanes) {
        const f32x16 score = visible(j, load(weights + j), kNegInf);
        tops = select(tops < score, score, tops);
    }
    float lanes[kLanes], top = kNegInf;
    store(lanes, tops);
    for (const float lane : lanes) top = top < lane ? lane : top;
    f32x16 total = zero();
    for (std::size_t j = from / kLanes * kLanes; j < to; j += kLanes) {
        const f32x16 weight = visible(j, exp(load(weights + j) - set1(top)), 0.0f);
        store(weights + j, weight);
        total = total + weight;
    }
    s.part_of(row)[s.padded] = fold(total);
    s.part_of(row)[s.padded + 1] = top;
}

// (sum, total, top) of `sum` and those of `part`, a later split, together in `sum`.
void merge(float* sum, const float* part, std::size_t padded) {
    const float top = sum[padded + 1] < part[padded + 1] ? part[padded + 1] : sum[padded + 1];
    const f32x16 a = exp(set1(sum[padded + 1] - top)), b = exp(set1(part[padded + 1] - top));
    for (std::size_t d = 0; d < padded + kLanes; d += kLanes)
        store(sum + d, fma(load(sum + d), a, load(part + d) * b));
    sum[padded + 1] = top;
}

void copy(float* to, const float* from, std::size_t n) {
    for (std::size_t i = 0; i < n; i += kLanes) store(to + i, load(from + i));
}

// Rows of a query: those of one KV head, token by token.
struct Rows {
    const AttentionArgs& a;
    std::size_t seq, kv_head, per_token, first_token;

    KARAT_INLINE std::size_t token(std::size_t row) const { return first_token + row / per_token; }
    KARAT_INLINE std::size_t head(std::size_t row) const { return kv_head * per_token + row % per_token; }
    KARAT_INLINE std::size_t end(std::size_t row) const {  // one past the last visible key
        return static_cast<std::size_t>(a.batch.positions[token(row)]) + 1;
    }
    KARAT_INLINE std::size_t begin(std::size_t row) const {
        return a.window && a.window < end(row) ? end(row) - a.window : 0;
    }
    // Of [tokens, heads, head_dim].
    KARAT_INLINE std::size_t offset(std::size_t row) const {
        return (token(row) * a.num_heads + head(row)) * a.cache.head_dim;
    }
};

KARAT_INLINE Rows rows_of(const AttentionArgs& a, std::size_t seq, std::size_t kv_head, std::size_t first) {
    return {a, seq, kv_head, a.num_heads / a.cache.num_kv_heads,
            static_cast<std::size_t>(a.batch.query_starts[seq]) + first};
}

KARAT_INLINE Keys keys_of(const AttentionArgs& a, std::size_t seq, std::size_t kv_head) {
    return {a, a.batch.block_tables + seq * a.batch.max_blocks, kv_head,
            static_cast<std::size_t>(a.batch.context_lens[seq])};
}

void gather_queries(const Rows& rows, std::size_t first, std::size_t count, const Scratch& s) {
    for (std::size_t r = 0; r < count; ++r) {
        const float* q = rows.a.q + rows.offset(first + r);
        for (std::size_t d = 0; d < s.dim; ++d) s.q[r * s.padded + d] = q[d];
    }
}

// Scores for an observer, as far as they are visible.
void show(const Rows& rows, const Keys& keys, std::size_t first, std::size_t count, std::size_t start,
          const Scratch& s) {
    if (!rows.a.scores || rows.seq != rows.a.score_seq) return;
    const std::size_t begin = static_cast<std::size_t>(rows.a.batch.query_starts[rows.seq]);
    const std::size_t tokens = static_cast<std::size_t>(rows.a.batch.query_starts[rows.seq + 1]) - begin;
    for (std::size_t r = 0; r < count; ++r) {
        const std::size_t row = rows.head(first + r) * tokens + rows.token(first + r) - begin;
        float* out = rows.a.scores + row * keys.context + start;
        for (std::size_t j = s.from[r]; j < s.to[r]; ++j) out[j] = s.weights[r * kSplitKeys + j];
    }
}

// One split for rows first … first + count - 1 (at most kRows), whose queries are gathered: parts, totals and tops.
void split(const Rows& rows, const Keys& keys, std::size_t first, std::size_t count, std::size_t index,
           const Scratch& s) {
    const std::size_t start = index * kSplitKeys;
    std::size_t lowest = kSplitKeys, highest = 0;
    for (std::size_t r = 0; r < count; ++r) {
        s.from[r] = most(rows.begin(first + r), start) - start;
        s.to[r] = most(least(rows.end(first + r), start + kSplitKeys), start) - start;
        if (s.from[r] >= s.to[r]) s.from[r] = s.to[r] = 0;
        if (s.from[r] < s.to[r]) {
            lowest = least(lowest, s.from[r]);
            highest = most(highest, s.to[r]);
        }
    }
    for (std::size_t base = lowest / kKeys * kKeys; base < highest; base += kKeys) {
        unpack_keys(keys, start + base, s.unpacked);
        for (std::size_t i = 0; i < num_tiles(count); ++i) {
            const std::size_t r = tile_start(count, i), end = tile_start(count, i + 1);
            for (std::size_t g = 0; g < kKeys; g += kTileGroups * kLanes)
                with_height(end - r, ScoreTile<kTileGroups>{s.unpacked + g, s.q + r * s.padded, s.dim, s.padded,
                                                            rows.a.scale, s.weights + r * kSplitKeys + base + g});
        }
    }
    show(rows, keys, first, count, start, s);
    for (std::size_t r = 0; r < count; ++r) {
        for (std::size_t d = 0; d < s.padded; d += kLanes) store(s.part_of(r) + d, zero());
        for (std::size_t d = s.padded; d < s.padded + kStats; ++d) s.part_of(r)[d] = 0.0f;
        soften(s, r);
    }
    for (std::size_t base = lowest / kKeys * kKeys; base < highest; base += kKeys) {
        const std::size_t end = least(base + kKeys, highest);
        unpack_values(keys, start + base, end - base, s.unpacked);
        for (std::size_t i = 0; i < num_tiles(count); ++i) {
            const std::size_t r0 = tile_start(count, i), r1 = tile_start(count, i + 1);
            // What all rows of the tile see runs as a tile; what only some see before and after it, row by row.
            std::size_t from = base, to = end;
            for (std::size_t r = r0; r < r1; ++r) {
                from = most(from, s.from[r]);
                to = least(to, s.to[r]);
            }
            from = least(from, end);
            to = most(to, from);
            for (std::size_t r = r0; r < r1; ++r) add_values(s, r, r + 1, base, most(s.from[r], base), least(from, s.to[r]));
            add_values(s, r0, r1, base, from, to);
            for (std::size_t r = r0; r < r1; ++r) add_values(s, r, r + 1, base, most(to, s.from[r]), least(end, s.to[r]));
        }
    }
}

void write_out(const Rows& rows, std::size_t row, const float* sum, std::size_t padded) {
    const std::size_t dim = rows.a.cache.head_dim;
    float* out = rows.a.out + rows.offset(row);
    const f32x16 total = set1(sum[padded]);
    for (std::size_t d = 0; d < dim; d += kLanes)
        store_first(out + d, load(sum + d) / total, static_cast<int>(least(kLanes, dim - d)));
}

}  // namespace

std::size_t attention_scratch_floats(std::size_t head_dim) { return Scratch::floats(head_dim); }

void attention(const AttentionArgs& a, std::size_t seq, std::size_t kv_head, std::size_t first, std::size_t last,
               float* scratch) {
    const Scratch s(scratch, a.cache.head_dim);
    const Rows rows = rows_of(a, seq, kv_head, first);
    const Keys keys = keys_of(a, seq, kv_head);
    const std::size_t num_rows = (last - first) * rows.per_token;
    for (std::size_t row = 0; row < num_rows; row += kRows) {
        const std::size_t count = least(kRows, num_rows - row);
        gather_queries(rows, row, count, s);
        const std::size_t begin = rows.begin(row) / kSplitKeys, end = (rows.end(row + count - 1) - 1) / kSplitKeys + 1;
        for (std::size_t index = begin; index < end; ++index) {
            split(rows, keys, row, count, index, s);
            for (std::size_t r = 0; r < count; ++r) {
                if (s.from[r] == s.to[r]) continue;
                if (rows.begin(row + r) / kSplitKeys == index)
                    copy(s.sum_of(r), s.part_of(r), s.padded + kStats);
                else
                    merge(s.sum_of(r), s.part_of(r), s.padded);
            }
        }
        for (std::size_t r = 0; r < count; ++r) write_out(rows, row + r, s.sum_of(r), s.padded);
    }
}

namespace {

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
    for (std::size_t r = 0; r < count; ++r) soften(s, r);
    direct.values(count);
}

void direct_split(const Rows& rows, const Keys& keys, std::size_t first, std::size_t count, std::size_t index,
                  const Scratch& s) {
    switch (rows.a.cache.type) {
        case CacheType::f32: return direct_split<FromF32>(rows, keys, first, count, index, s);
        case CacheType::f16: return direct_split<FromF16>(rows, keys, first, count, index, s);
        case CacheType::bf16: return direct_split<FromBF16>(rows, keys, first, count, index, s);
    }
}

}  // namespace

void attention_split(const AttentionArgs& a, std::size_t seq, std::size_t kv_head, std::size_t index, float* part,
                     float* scratch) {
    const Scratch s(scratch, a.cache.head_dim);
    const Rows rows = rows_of(a, seq, kv_head, 0);
    const Keys keys = keys_of(a, seq, kv_head);
    const std::size_t stride = s.padded + kStats;
    const bool is_direct = kDirectTokens > 1 && a.batch.block_size % kLanes == 0;
    const std::size_t most_rows = is_direct ? kDirectTokens : kRows;
    for (std::size_t row = 0; row < rows.per_token; row += most_rows) {
        const std::size_t count = least(most_rows, rows.per_token - row);
        gather_queries(rows, row, count, s);
        if (is_direct)
            direct_split(rows, keys, row, count, index, s);
        else
            split(rows, keys, row, count, index, s);
        for (std::size_t r = 0; r < count; ++r) copy(part + (row + r) * stride, s.part_of(r), stride);
    }
}

void attention_merge(const AttentionArgs& a, std::size_t seq, std::size_t kv_head, std::size_t num_splits,
                     float* parts, std::size_t part_stride) {
    const Rows rows = rows_of(a, seq, kv_head, 0);
    const std::size_t padded = padded_dim(a.cache.head_dim), stride = padded + kStats;
    const std::size_t begin = rows.begin(0) / kSplitKeys;
    float* sums = parts + begin * part_stride;  // the first visible split becomes the sum
    for (std::size_t r = 0; r < rows.per_token; ++r) {
        for (std::size_t index = begin + 1; index < num_splits; ++index)
            merge(sums + r * stride, parts + index * part_stride + r * stride, padded);
        write_out(rows, r, sums + r * stride, padded);
    }
}

}  // namespace karat::KARAT_ISA_NAMESPACE

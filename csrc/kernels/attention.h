// Shared by both kernels of attention (kernels.h, AttentionArgs): where rows and keys lie, and the scratch memory.
//
// A row is one query head of one token. Rows that read the same KV head are computed together: a key or value is
// unpacked once for all of them. Both products are chains as in linear layers. Scores have lanes over keys, as K is
// stored; values have lanes over the head's dimensions, as V is stored.
#pragma once

#include "kernels/cache.h"
#include "simd/tile.h"

namespace karat::KARAT_ISA_NAMESPACE {

inline constexpr std::size_t kRows = kTuning.attention_rows;  // taken together
inline constexpr std::size_t kKeys = kTuning.unpacked_keys;   // unpacked at a time
inline constexpr float kNegInf = -__builtin_inff();

KARAT_INLINE std::size_t padded_dim(std::size_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }
KARAT_INLINE std::size_t least(std::size_t a, std::size_t b) { return a < b ? a : b; }
KARAT_INLINE std::size_t most(std::size_t a, std::size_t b) { return a < b ? b : a; }

struct AttentionScratch {
    std::size_t dim, padded;
    float *unpacked, *q, *weights, *part, *sum;
    std::size_t *from, *to;  // visible keys of each row, relative to the split

    KARAT_INLINE AttentionScratch(float* base, std::size_t head_dim) : dim(head_dim), padded(padded_dim(head_dim)) {
        unpacked = base;
        q = unpacked + kKeys * padded;
        weights = q + kRows * padded;
        part = weights + kRows * kSplitKeys;
        sum = part + kRows * (padded + kPartStats);
        from = reinterpret_cast<std::size_t*>(sum + kRows * (padded + kPartStats));
        to = from + kRows;
    }
    static KARAT_INLINE std::size_t floats(std::size_t head_dim) {
        const std::size_t padded = padded_dim(head_dim);
        return kKeys * padded + kRows * padded + kRows * kSplitKeys + 2 * kRows * (padded + kPartStats) +
               2 * kRows * sizeof(std::size_t) / sizeof(float);
    }
    KARAT_INLINE float* part_of(std::size_t row) const { return part + row * (padded + kPartStats); }
    KARAT_INLINE float* sum_of(std::size_t row) const { return sum + row * (padded + kPartStats); }
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
    template <class Stored>
    KARAT_INLINE CachedHead<Stored> head() const {
        return {a.cache, kv_head};
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

// Calls f with the one of these that reads what the cache stores.
template <class F>
KARAT_INLINE void with_reader(CacheType type, const F& f) {
    switch (type) {
        case CacheType::f32: return f(FromF32{});
        case CacheType::f16: return f(FromF16{});
        case CacheType::bf16: return f(FromBF16{});
    }
}

// The rows that read one KV head, token by token.
struct Rows {
    const AttentionArgs& a;
    std::size_t seq, first_head, per_token, first_token;

    KARAT_INLINE std::size_t token(std::size_t row) const { return first_token + row / per_token; }
    KARAT_INLINE std::size_t head(std::size_t row) const { return first_head + row % per_token; }
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
    const std::size_t begin = kv_head * a.group_heads, end = begin + a.group_heads;  // of the whole group
    const std::size_t first_head = most(begin, a.first_head) - a.first_head;
    const std::size_t last_head = least(end - a.first_head, a.num_heads);
    return {a, seq, first_head, last_head - first_head, static_cast<std::size_t>(a.batch.query_starts[seq]) + first};
}

KARAT_INLINE Keys keys_of(const AttentionArgs& a, std::size_t seq, std::size_t kv_head) {
    return {a, a.batch.block_tables + seq * a.batch.max_blocks, kv_head,
            static_cast<std::size_t>(a.batch.context_lens[seq])};
}

// Compute one split for rows first … first + count - 1 (at most kRows): parts, totals and tops. tiled_split unpacks
// keys and values into tiles, for queries gathered into scratch. direct_split reads them straight from the cache: for
// rows of one token, where blocks hold whole groups of 16 positions. Both give the same bits.
void tiled_split(const Rows& rows, const Keys& keys, std::size_t first, std::size_t count, std::size_t index,
                 const AttentionScratch& s);
void direct_split(const Rows& rows, const Keys& keys, std::size_t first, std::size_t count, std::size_t index,
                  const AttentionScratch& s);

// Caps the visible scores of the first `rows` rows, if there is a cap.
void cap_scores(const AttentionScratch& s, std::size_t rows, float cap);

// Turns the scores of the first `rows` rows into weights exp(score - top), in place. Total and top are stored behind
// each row's part.
void scores_to_weights(const AttentionScratch& s, std::size_t rows);

// Copies the visible scores to AttentionArgs::scores, if an observer asked for this sequence.
void copy_scores_out(const Rows& rows, const Keys& keys, std::size_t first, std::size_t count, std::size_t start,
                     const AttentionScratch& s);

}  // namespace karat::KARAT_ISA_NAMESPACE

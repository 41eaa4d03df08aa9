// Attention over a paged cache (kernels.h, AttentionArgs): computes splits of keys in turn and merges their parts.
#include "kernels/attention.h"

#include "simd/exp.h"
#include "simd/tanh.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// Factors of sixteen merges: of the sum so far, and of the part that is added to it. `set` notes how far both tops lie
// below the larger one; `finish` takes the exponentials of all sixteen at once.
struct Factors {
    float of_sum[kLanes] = {}, of_part[kLanes] = {};

    void set(std::size_t i, float& top, float next) {  // `top` becomes the larger one
        const float largest = top < next ? next : top;
        of_sum[i] = top - largest;
        of_part[i] = next - largest;
        top = largest;
    }
    void finish() {
        f32x16 both[] = {load(of_sum), load(of_part)};
        exp_of_no_positive(both);
        store(of_sum, both[0]);
        store(of_part, both[1]);
    }
    KARAT_INLINE f32x16 added(std::size_t i, f32x16 sum, const float* part) const {
        return fma(sum, broadcast(of_sum + i), load(part) * broadcast(of_part + i));
    }
};

// Merges `count` (at most 16) later splits of one row into `sum`, in turn. A split is (part, total, top).
void merge_splits(float* sum, const float* parts, std::size_t part_stride, std::size_t count, std::size_t padded) {
    Factors factors;
    float top = sum[padded + 1];
    for (std::size_t i = 0; i < count; ++i) factors.set(i, top, parts[i * part_stride + padded + 1]);
    factors.finish();
    for (std::size_t d = 0; d < padded + kLanes; d += kLanes) {
        f32x16 value = load(sum + d);
        for (std::size_t i = 0; i < count; ++i) value = factors.added(i, value, parts + i * part_stride + d);
        store(sum + d, value);
    }
    sum[padded + 1] = top;
}

void copy(float* to, const float* from, std::size_t n) {
    for (std::size_t i = 0; i < n; i += kLanes) store(to + i, load(from + i));
}

// Merges a head's first split, which has become its sum, into the part that its sink is.
void begin_with_sink(float* sum, float sink, std::size_t padded) {
    alignas(64) const float total[kLanes] = {1.0f};
    Factors factors;
    float top = sink;
    factors.set(0, top, sum[padded + 1]);
    factors.finish();
    for (std::size_t d = 0; d < padded; d += kLanes) store(sum + d, factors.added(0, zero(), sum + d));
    store(sum + padded, factors.added(0, load(total), sum + padded));
    sum[padded + 1] = top;
}

// Merges a split into the sums of its rows. is_first(row): this split is the row's first, so it becomes the sum.
template <class IsFirst>
void add_parts(const Rows& rows, std::size_t first, const AttentionScratch& s, std::size_t count, IsFirst is_first) {
    const float* const sinks = rows.a.sinks;
    for (std::size_t base = 0; base < count; base += kLanes) {
        const std::size_t end = least(base + kLanes, count);
        Factors factors;
        float tops[kLanes] = {};
        for (std::size_t r = base; r < end; ++r) {
            if (s.from[r] == s.to[r] || is_first(r)) continue;
            tops[r - base] = s.sum_of(r)[s.padded + 1];
            factors.set(r - base, tops[r - base], s.part_of(r)[s.padded + 1]);
        }
        factors.finish();
        for (std::size_t r = base; r < end; ++r) {
            if (s.from[r] == s.to[r]) continue;
            float* sum = s.sum_of(r);
            const float* part = s.part_of(r);
            if (is_first(r)) {
                copy(sum, part, s.padded + kPartStats);
                if (sinks) begin_with_sink(sum, sinks[rows.head(first + r)], s.padded);
                continue;
            }
            for (std::size_t d = 0; d < s.padded + kLanes; d += kLanes)
                store(sum + d, factors.added(r - base, load(sum + d), part + d));
            sum[s.padded + 1] = tops[r - base];
        }
    }
}

void gather_queries(const Rows& rows, std::size_t first, std::size_t count, const AttentionScratch& s) {
    for (std::size_t r = 0; r < count; ++r) {
        const float* q = rows.a.q + rows.offset(first + r);
        for (std::size_t d = 0; d < s.dim; ++d) s.q[r * s.padded + d] = q[d];
    }
}

// Turns N vectors of scores into weights, in place, and returns total + their sum.
template <int N>
KARAT_INLINE f32x16 exponentials_and_sum(float* scores, f32x16 top, f32x16 total) {
    f32x16 x[N];
    for (int i = 0; i < N; ++i) x[i] = load(scores + i * kLanes) - top;
    exp_of_no_positive(x);
    for (int i = 0; i < N; ++i) store(scores + i * kLanes, x[i]);
    for (int i = 0; i < N; ++i) total = total + x[i];
    return total;
}

void write_out(const Rows& rows, std::size_t row, const float* sum, std::size_t padded) {
    const std::size_t dim = rows.a.cache.head_dim;
    float* out = rows.a.out + rows.offset(row);
    const f32x16 total = set1(sum[padded]);
    for (std::size_t d = 0; d < dim; d += kLanes)
        store_first(out + d, load(sum + d) / total, static_cast<int>(least(kLanes, dim - d)));
}

}  // namespace

void cap_scores(const AttentionScratch& s, std::size_t rows, float cap) {
    if (cap == 0.0f) return;
    for (std::size_t r = 0; r < rows; ++r) {
        float* scores = s.weights + r * kSplitKeys;
        for (std::size_t j = s.from[r] / kLanes * kLanes; j < s.to[r]; j += kLanes)
            store(scores + j, capped(load(scores + j), set1(cap)));
    }
}

void scores_to_weights(const AttentionScratch& s, std::size_t rows) {
    for (std::size_t r = 0; r < rows; ++r) {
        const std::size_t from = s.from[r], to = s.to[r], begin = from / kLanes * kLanes;
        float* weights = s.weights + r * kSplitKeys;
        // Keys that are not visible, before and after, get the lowest score: their weight is 0.
        for (std::size_t j = begin; j < from; ++j) weights[j] = kNegInf;
        for (std::size_t j = to; j % kLanes; ++j) weights[j] = kNegInf;
        f32x16 tops = set1(kNegInf);
        for (std::size_t j = begin; j < to; j += kLanes) tops = larger(load(weights + j), tops);
        s.part_of(r)[s.padded + 1] = largest_of(tops);
    }
    for (std::size_t r = 0; r < rows; ++r) {
        const std::size_t to = s.to[r], begin = s.from[r] / kLanes * kLanes;
        float *weights = s.weights + r * kSplitKeys, *stats = s.part_of(r) + s.padded;
        const f32x16 top = set1(stats[1]);
        f32x16 total = zero();
        std::size_t j = begin;
        for (; j + kTuning.exp_vectors * kLanes <= to; j += kTuning.exp_vectors * kLanes)
            total = exponentials_and_sum<kTuning.exp_vectors>(weights + j, top, total);
        for (; j < to; j += kLanes) total = exponentials_and_sum<1>(weights + j, top, total);
        stats[0] = fold(total);
    }
}

void copy_scores_out(const Rows& rows, const Keys& keys, std::size_t first, std::size_t count, std::size_t start,
                     const AttentionScratch& s) {
    if (!rows.a.scores || rows.seq != rows.a.score_seq) return;
    const std::size_t begin = static_cast<std::size_t>(rows.a.batch.query_starts[rows.seq]);
    const std::size_t tokens = static_cast<std::size_t>(rows.a.batch.query_starts[rows.seq + 1]) - begin;
    for (std::size_t r = 0; r < count; ++r) {
        const std::size_t row = rows.head(first + r) * tokens + rows.token(first + r) - begin;
        float* out = rows.a.scores + row * keys.context + start;
        for (std::size_t j = s.from[r]; j < s.to[r]; ++j) out[j] = s.weights[r * kSplitKeys + j];
    }
}

std::size_t attention_scratch_floats(std::size_t head_dim) { return AttentionScratch::floats(head_dim); }

void attention(const AttentionArgs& a, std::size_t seq, std::size_t kv_head, std::size_t first, std::size_t last,
               float* scratch) {
    const AttentionScratch s(scratch, a.cache.head_dim);
    const Rows rows = rows_of(a, seq, kv_head, first);
    const Keys keys = keys_of(a, seq, kv_head);
    const std::size_t num_rows = (last - first) * rows.per_token;
    for (std::size_t row = 0; row < num_rows; row += kRows) {
        const std::size_t count = least(kRows, num_rows - row);
        gather_queries(rows, row, count, s);
        const std::size_t begin = rows.begin(row) / kSplitKeys, end = (rows.end(row + count - 1) - 1) / kSplitKeys + 1;
        for (std::size_t index = begin; index < end; ++index) {
            tiled_split(rows, keys, row, count, index, s);
            add_parts(rows, row, s, count, [&](std::size_t r) { return rows.begin(row + r) / kSplitKeys == index; });
        }
        for (std::size_t r = 0; r < count; ++r) write_out(rows, row + r, s.sum_of(r), s.padded);
    }
}

void attention_split(const AttentionArgs& a, std::size_t seq, std::size_t kv_head, std::size_t index, float* part,
                     float* scratch) {
    const AttentionScratch s(scratch, a.cache.head_dim);
    const Rows rows = rows_of(a, seq, kv_head, 0);
    const Keys keys = keys_of(a, seq, kv_head);
    const std::size_t stride = s.padded + kPartStats;
    const bool is_direct = kTuning.direct_rows > 1 && a.batch.block_size % kLanes == 0;
    for (std::size_t row = 0; row < rows.per_token; row += kRows) {
        const std::size_t count = least(kRows, rows.per_token - row);
        if (is_direct) {
            direct_split(rows, keys, row, count, index, s);
        } else {
            gather_queries(rows, row, count, s);
            tiled_split(rows, keys, row, count, index, s);
        }
        for (std::size_t r = 0; r < count; ++r) copy(part + (row + r) * stride, s.part_of(r), stride);
    }
}

void attention_merge(const AttentionArgs& a, std::size_t seq, std::size_t kv_head, std::size_t num_splits, float* parts,
                     std::size_t part_stride) {
    const Rows rows = rows_of(a, seq, kv_head, 0);
    const std::size_t padded = padded_dim(a.cache.head_dim), stride = padded + kPartStats;
    const std::size_t begin = rows.begin(0) / kSplitKeys;
    float* sums = parts + begin * part_stride;  // the first visible split becomes the sum
    for (std::size_t r = 0; r < rows.per_token; ++r) {
        if (a.sinks) begin_with_sink(sums + r * stride, a.sinks[rows.head(r)], padded);
        for (std::size_t index = begin + 1; index < num_splits; index += kLanes)
            merge_splits(sums + r * stride, parts + index * part_stride + r * stride, part_stride,
                         least(kLanes, num_splits - index), padded);
        write_out(rows, r, sums + r * stride, padded);
    }
}

}  // namespace karat::KARAT_ISA_NAMESPACE

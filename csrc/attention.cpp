// Attention over a paged cache (kernels.h, AttentionArgs): splits of keys in turn, and what becomes of their parts.
#include "attention.h"

#include "exp.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// (sum, total, top) of `sum` and those of `count` (at most 16) later splits in turn, together in `sum`. The factors are all
// made at once.
void merge(float* sum, const float* parts, std::size_t part_stride, std::size_t count, std::size_t padded) {
    float before[kLanes] = {}, own[kLanes] = {}, top = sum[padded + 1];
    for (std::size_t i = 0; i < count; ++i) {
        const float next = parts[i * part_stride + padded + 1], largest = top < next ? next : top;
        before[i] = top - largest;
        own[i] = next - largest;
        top = largest;
    }
    store(before, exp_of_no_positive(load(before)));
    store(own, exp_of_no_positive(load(own)));
    for (std::size_t d = 0; d < padded + kLanes; d += kLanes) {
        f32x16 value = load(sum + d);
        for (std::size_t i = 0; i < count; ++i)
            value = fma(value, set1(before[i]), load(parts + i * part_stride + d) * set1(own[i]));
        store(sum + d, value);
    }
    sum[padded + 1] = top;
}

void copy(float* to, const float* from, std::size_t n) {
    for (std::size_t i = 0; i < n; i += kLanes) store(to + i, load(from + i));
}

void gather_queries(const Rows& rows, std::size_t first, std::size_t count, const Scratch& s) {
    for (std::size_t r = 0; r < count; ++r) {
        const float* q = rows.a.q + rows.offset(first + r);
        for (std::size_t d = 0; d < s.dim; ++d) s.q[r * s.padded + d] = q[d];
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
        const f32x16 weight = visible(j, exp_of_no_positive(load(weights + j) - set1(top)), 0.0f);
        store(weights + j, weight);
        total = total + weight;
    }
    s.part_of(row)[s.padded] = fold(total);
    s.part_of(row)[s.padded + 1] = top;
}

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
            tiled_split(rows, keys, row, count, index, s);
            for (std::size_t r = 0; r < count; ++r) {
                if (s.from[r] == s.to[r]) continue;
                if (rows.begin(row + r) / kSplitKeys == index)
                    copy(s.sum_of(r), s.part_of(r), s.padded + kStats);
                else
                    merge(s.sum_of(r), s.part_of(r), 0, 1, s.padded);
            }
        }
        for (std::size_t r = 0; r < count; ++r) write_out(rows, row + r, s.sum_of(r), s.padded);
    }
}

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
            tiled_split(rows, keys, row, count, index, s);
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
        for (std::size_t index = begin + 1; index < num_splits; index += kLanes)
            merge(sums + r * stride, parts + index * part_stride + r * stride, part_stride,
                  least(kLanes, num_splits - index), padded);
        write_out(rows, r, sums + r * stride, padded);
    }
}

}  // namespace karat::KARAT_ISA_NAMESPACE

// Causal attention over a paged cache, as AttentionArgs in contract/kernels.h defines it: splits of 256 keys, each by a
// block of threads, then their merge.
#pragma once

#include "gpu/cache.h"
#include "gpu/shapes.h"
#include "simd/exp.h"

namespace karat::gpu {

KARAT_INLINE float exp_of_no_positive(float x) {
    f32x16 power[] = {set1(x)};
    exp_of_no_positive(power);
    return power[0].v;
}

// A split of one token and the query heads of one KV head.
template <class Fmt>
struct AttendSplit {
    static constexpr int kThreads = 128, kKeys = static_cast<int>(kSplitKeys), kLanesOfSum = 16, kAtOnce = 4;
    AttentionShape a;

    Grid grid() const {
        const int floats = a.group_heads * (a.head_dim() + kKeys + kLanesOfSum + 1);
        return {a.num_tokens * a.num_splits, static_cast<int>(a.cache.num_kv_heads), kThreads,
                sizeof(float) * static_cast<std::size_t>(floats) + sizeof(std::int32_t) * kKeys + 5 * 128};
    }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const int token = a.first_token + cta.x() / a.num_splits, split = cta.x() % a.num_splits, dim = a.head_dim();
        const int start = split * kKeys;
        const int from = a.begin(token) - start > 0 ? a.begin(token) - start : 0;
        const int to = a.end(token) - start < kKeys ? a.end(token) - start : kKeys;
        if (from >= to) return;
        const int group_first = cta.y() * a.group_heads - a.first_head;  // the first and last group may be cut
        const int first_head = group_first > 0 ? group_first : 0;
        const int end_head = group_first + a.group_heads < a.num_heads ? group_first + a.group_heads : a.num_heads;
        const int rows = end_head - first_head;
        int seq = 0;
        while (a.query_starts[seq + 1] <= token) ++seq;
        const std::int32_t* const table = a.block_tables + static_cast<std::size_t>(seq) * a.max_blocks;
        const CachedHead<Fmt> keys(a.cache, cta.y());

        const auto q = cta.template shared<float>(a.group_heads * dim);
        const auto weights = cta.template shared<float>(a.group_heads * kKeys);
        const auto lanes = cta.template shared<float>(a.group_heads * kLanesOfSum);
        const auto tops = cta.template shared<float>(a.group_heads);
        const auto slots = cta.template shared<std::int32_t>(kKeys);

        cta.each([&](int thread) {
            const float* const of_token = a.q + (static_cast<std::size_t>(token) * a.num_heads + first_head) * dim;
            for (int i = thread; i < rows * dim; i += kThreads) q.set(i, value_at<float>(of_token + i));
            for (int j = from + thread; j < to; j += kThreads) {
                const int position = start + j;
                slots.set(j, table[position / a.block_size] * a.block_size + position % a.block_size);
            }
        });
        cta.sync();
        cta.each([&](int thread) {  // scores: a thread a key, for kAtOnce rows
            for (int j = from + thread; j < to; j += kThreads) {
                const auto* const k = keys.k(static_cast<std::size_t>(slots.get(j)));
                for (int row = 0; row < rows; row += kAtOnce) {
                    float score[kAtOnce] = {};
                    for (int d = 0; d < dim; ++d) {
                        const float key = keys.read(k + d * static_cast<int>(CachedHead<Fmt>::kGroup));
#pragma unroll
                        for (int r = 0; r < kAtOnce; ++r)
                            if (row + r < rows) score[r] = fma(key, q.get((row + r) * dim + d), score[r]);
                    }
#pragma unroll
                    for (int r = 0; r < kAtOnce; ++r)
                        if (row + r < rows) {
                            weights.set((row + r) * kKeys + j, score[r] * a.scale);
                            if (a.scores && seq == a.score_seq)
                                *a.score(token, seq, first_head + row + r, start + j) = score[r] * a.scale;
                        }
                }
            }
        });
        cta.sync();
        cta.each([&](int thread) {
            for (int row = thread; row < rows; row += kThreads) {
                float top = -__builtin_inff();
                for (int j = from; j < to; ++j) {
                    const float score = weights.get(row * kKeys + j);
                    top = top < score ? score : top;
                }
                tops.set(row, top);
                a.part(token, first_head + row, split)[dim + 1] = top;
            }
        });
        cta.sync();
        cta.each([&](int thread) {
            for (int i = thread; i < rows * kKeys; i += kThreads)
                if (const int j = i % kKeys; j >= from && j < to)
                    weights.set(i, exp_of_no_positive(weights.get(i) - tops.get(i / kKeys)));
        });
        cta.sync();
        cta.each([&](int thread) {
            for (int i = thread; i < rows * kLanesOfSum; i += kThreads) {
                const int row = i / kLanesOfSum;
                float sum = 0;
                for (int j = i % kLanesOfSum; j < to; j += kLanesOfSum)
                    if (j >= from) sum = sum + weights.get(row * kKeys + j);
                lanes.set(i, sum);
            }
            for (int i = thread; i < rows * dim; i += kThreads) {
                const int row = i / dim, d = i % dim;
                float sum = 0;
                for (int j = from; j < to; ++j)
                    sum = fma(keys.read(keys.v(static_cast<std::size_t>(slots.get(j))) + d),
                              weights.get(row * kKeys + j), sum);
                a.part(token, first_head + row, split)[d] = sum;
            }
        });
        cta.sync();
        cta.each([&](int thread) {
            for (int row = thread; row < rows; row += kThreads) {
                for (int half = kLanesOfSum / 2; half > 0; half /= 2)
                    for (int l = 0; l < half; ++l) {
                        const int at = row * kLanesOfSum + l;
                        lanes.set(at, lanes.get(at) + lanes.get(at + half));
                    }
                a.part(token, first_head + row, split)[dim] = lanes.get(row * kLanesOfSum);
            }
        });
    }
};

// Merges the splits of one token and query head, in order. Each thread has some dimensions, and the totals besides.
struct AttendMerge {
    static constexpr int kThreads = 128;
    AttentionShape a;

    Grid grid() const { return {a.num_tokens, a.num_heads, kThreads, 0}; }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        cta.each([&](int thread) {
            const int token = a.first_token + cta.x(), head = cta.y(), dim = a.head_dim(),
                      split_keys = static_cast<int>(kSplitKeys);
            const int first = a.begin(token) / split_keys, last = (a.end(token) - 1) / split_keys;
            float* const out = a.out + (static_cast<std::size_t>(token) * a.num_heads + head) * dim;
            for (int d = thread; d < dim; d += kThreads) {
                const float* part = a.part(token, head, first);
                float sum = part[d], total = part[dim], top = part[dim + 1];
                for (int split = first + 1; split <= last; ++split) {
                    part = a.part(token, head, split);
                    const float next = part[dim + 1], largest = top < next ? next : top;
                    const float of_sum = exp_of_no_positive(top - largest);
                    const float of_part = exp_of_no_positive(next - largest);
                    sum = fma(sum, of_sum, part[d] * of_part);
                    total = fma(total, of_sum, part[dim] * of_part);
                    top = largest;
                }
                out[d] = sum / total;
            }
        });
    }
};

}  // namespace karat::gpu

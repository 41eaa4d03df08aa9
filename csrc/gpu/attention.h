// Causal attention over a paged cache, as AttentionArgs in contract/kernels.h defines it: splits of 256 keys, each by a
// block of threads, then their merge.
#pragma once

#include "gpu/cache.h"
#include "gpu/shapes.h"
#include "simd/exp.h"
#include "simd/tanh.h"

namespace karat::gpu {

KARAT_INLINE float exp_of_no_positive(float x) {
    f32x16 power[] = {set1(x)};
    exp_of_no_positive(power);
    return power[0].v;
}

// A split of one token and up to kRows query heads of one KV head.
//
// K comes to shared memory in pieces of some dimensions, then V in pieces of some keys, all through one ring of
// buffers. A thread has a key while K goes by, and the scores of all rows in registers; while V goes by it has a
// dimension, and the sums of all rows.
template <class Fmt, int kRows, bool kIsCapped>
struct AttendSplit {
    using Stored = StoredAs<Fmt>;
    static constexpr int kThreads = 256, kKeys = static_cast<int>(kSplitKeys), kLanesOfSum = 16, kStages = 4;
    static constexpr int kWarps = kThreads / 32, kGroup = static_cast<int>(CachedHead<Fmt>::kGroup);
    static constexpr int kCopied = 16 / Fmt::kBytes;              // numbers at once
    static constexpr int kDims = 64 / Fmt::kBytes;                // of a piece of K
    static constexpr int kGroupStride = kDims * kGroup + kGroup;  // in shared memory: groups lie in different banks
    static constexpr int kStage = kKeys / kGroup * kGroupStride;  // numbers of a buffer
    static_assert(kThreads == kKeys, "a thread has a key");

    struct alignas(4 * kRows) Row { float v[kRows]; };  // a number of each row

    AttentionShape a;

    KARAT_HOST KARAT_INLINE int parts_of_group() const { return pieces(a.group_heads, kRows); }
    KARAT_HOST KARAT_INLINE int padded_dim() const { return pieces(a.head_dim(), kGroup) * kGroup; }
    Grid grid() const {
        const int rows = padded_dim() + kKeys + kWarps + kLanesOfSum;
        return {a.num_tokens * a.num_splits, static_cast<int>(a.cache.num_kv_heads) * parts_of_group(), kThreads,
                sizeof(Row) * static_cast<std::size_t>(rows) + sizeof(std::int32_t) * kKeys +
                    sizeof(Stored) * kStages * kStage + 6 * 128};
    }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const int token = a.first_token + cta.x() / a.num_splits, split = cta.x() % a.num_splits, dim = a.head_dim();
        const int start = split * kKeys;
        const int from = a.begin(token) - start > 0 ? a.begin(token) - start : 0;
        const int to = a.end(token) - start < kKeys ? a.end(token) - start : kKeys;
        const int kv_head = cta.y() / parts_of_group(), group_first = kv_head * a.group_heads - a.first_head;
        const int own_first = group_first + cta.y() % parts_of_group() * kRows;  // the first and last group may be cut
        const int group_end = group_first + a.group_heads < a.num_heads ? group_first + a.group_heads : a.num_heads;
        const int first_head = own_first > 0 ? own_first : 0;
        const int end_head = own_first + kRows < group_end ? own_first + kRows : group_end;
        const int rows = end_head - first_head;
        if (from >= to || rows <= 0) return;
        int seq = 0;
        while (a.query_starts[seq + 1] <= token) ++seq;
        const std::int32_t* const table = a.block_tables + static_cast<std::size_t>(seq) * a.max_blocks;
        const CachedHead<Fmt> cached(a.cache, kv_head);

        const auto q = cta.template shared<Row>(padded_dim());
        const auto weights = cta.template shared<Row>(kKeys);
        const auto tops = cta.template shared<Row>(kWarps);
        const auto lanes = cta.template shared<float>(kLanesOfSum * kRows);
        const auto slots = cta.template shared<std::int32_t>(kKeys);
        const auto staged = cta.template shared<Stored>(kStages * kStage);
        PerThread<Cta, Row> sums(cta);
        PerThread<Cta, Row> top(cta);

        cta.each([&](int thread) {
            const float* const of_token = a.q + (static_cast<std::size_t>(token) * a.num_heads + first_head) * dim;
            for (int d = thread; d < dim; d += kThreads) {
                Row of_dim{};
#pragma unroll
                for (int r = 0; r < kRows; ++r)
                    if (r < rows) of_dim.v[r] = value_at<float>(of_token + r * dim + d);
                q.set(d, of_dim);
            }
            if (thread >= from && thread < to) {
                const int position = start + thread;
                slots.set(thread, table[position / a.block_size] * a.block_size + position % a.block_size);
            }
            sums[thread] = {};
        });
        cta.sync();

        // Pieces of K, then of V: of all keys for kThreads dimensions at a time.
        const int v_dims = padded_dim() < kThreads ? padded_dim() : kThreads, fitting = kStage / v_dims / 16 * 16;
        const int v_keys = fitting < kKeys ? fitting : kKeys, v_pieces = pieces(to, v_keys);
        const int k_pieces = pieces(dim, kDims), all_pieces = k_pieces + v_pieces * pieces(dim, kThreads);
        const auto fetch = [&](int piece) {
            const int stage = piece % kStages * kStage;
            cta.each([&](int thread) {
                if (piece < k_pieces) fetch_keys(cta, thread, piece * kDims, stage, from, to, cached, slots, staged);
                else if (piece < all_pieces)
                    fetch_values(cta, thread, (piece - k_pieces) / v_pieces * kThreads, v_dims,
                                 (piece - k_pieces) % v_pieces * v_keys, v_keys, stage, from, to, cached, slots,
                                 staged);
            });
            cta.commit();
        };
        for (int piece = 0; piece < kStages - 1; ++piece) fetch(piece);
        const auto next = [&](int piece) {  // it is there, and another one is asked for
            cta.template wait<kStages - 2>();
            cta.sync();
            fetch(piece + kStages - 1);
        };

        for (int piece = 0; piece < k_pieces; ++piece) {
            next(piece);
            cta.each([&](int thread) {
                if (thread < from || thread >= to) return;
                const int at = piece % kStages * kStage + thread / kGroup * kGroupStride + thread % kGroup;
                const int first = piece * kDims;
                if (first + kDims <= dim) add_products<kDims>(sums[thread], staged, at, kGroup, q, first);
                else
                    for (int d = first; d < dim; ++d)
                        add_products<1>(sums[thread], staged, at + (d - first) * kGroup, kGroup, q, d);
            });
        }
        cta.each([&](int thread) {
            const bool is_visible = thread >= from && thread < to;
            constexpr float kLeast = -__builtin_inff();
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                sums[thread].v[r] = sums[thread].v[r] * a.scale;
                if constexpr (kIsCapped) sums[thread].v[r] = capped(set1(sums[thread].v[r]), set1(a.cap)).v;
                top[thread].v[r] = is_visible && sums[thread].v[r] > kLeast ? sums[thread].v[r] : kLeast;  // or NaN
                if (a.scores && seq == a.score_seq && is_visible && r < rows)
                    *a.score(token, seq, first_head + r, start + thread) = sums[thread].v[r];
            }
        });
        cta.largest_of_warp(top);
        cta.each([&](int thread) {
            if (thread % 32 == 0) tops.set(thread / 32, top[thread]);
        });
        cta.sync();
        cta.each([&](int thread) {
            Row largest = tops.get(0);
#pragma unroll
            for (int warp = 1; warp < kWarps; ++warp) {
                const Row other = tops.get(warp);
#pragma unroll
                for (int r = 0; r < kRows; ++r) largest.v[r] = largest.v[r] < other.v[r] ? other.v[r] : largest.v[r];
            }
            f32x16 powers[kRows];
#pragma unroll
            for (int r = 0; r < kRows; ++r) powers[r] = set1(sums[thread].v[r] - largest.v[r]);
            exp_of_no_positive(powers);
            Row of_key;
#pragma unroll
            for (int r = 0; r < kRows; ++r) of_key.v[r] = powers[r].v;
            if (thread >= from && thread < to) weights.set(thread, of_key);
            if (thread == 0) {
#pragma unroll
                for (int r = 0; r < kRows; ++r)
                    if (r < rows) a.part(token, first_head + r, split)[dim + 1] = largest.v[r];
            }
            sums[thread] = {};
        });
        for (int piece = k_pieces; piece < all_pieces; ++piece) {
            next(piece);
            cta.each([&](int thread) {
                const int pass = (piece - k_pieces) / v_pieces, number = (piece - k_pieces) % v_pieces;
                const int first = number * v_keys, end = first + v_keys < to ? first + v_keys : to;
                const int d = pass * kThreads + thread;
                if (d >= dim) return;
                const int at = piece % kStages * kStage + thread;
                for (int key = first > from ? first : from; key < end;) {
                    if (key + kTogether <= end) {
                        add_products<kTogether>(sums[thread], staged, at + (key - first) * v_dims, v_dims, weights,
                                                key);
                        key += kTogether;
                    } else {
                        add_products<1>(sums[thread], staged, at + (key - first) * v_dims, v_dims, weights, key);
                        ++key;
                    }
                }
                if (number + 1 < v_pieces) return;
#pragma unroll
                for (int r = 0; r < kRows; ++r)
                    if (r < rows) a.part(token, first_head + r, split)[d] = sums[thread].v[r];
                sums[thread] = {};
            });
            if (piece > k_pieces) continue;
            cta.each([&](int thread) {  // the last threads: they have the fewest dimensions
                const int lane = kThreads - 1 - thread;
                if (lane >= kLanesOfSum) return;
                Row sum{};
#pragma unroll
                for (int i = 0; i < kKeys / kLanesOfSum; ++i)
                    if (const int key = i * kLanesOfSum + lane; key >= from && key < to) {
                        const Row of_key = weights.get(key);
#pragma unroll
                        for (int r = 0; r < kRows; ++r) sum.v[r] = sum.v[r] + of_key.v[r];
                    }
#pragma unroll
                for (int r = 0; r < kRows; ++r) lanes.set(lane * kRows + r, sum.v[r]);
            });
        }
        cta.sync();
        cta.each([&](int thread) {
            if (thread >= rows) return;
            float sum[kLanesOfSum];
#pragma unroll
            for (int lane = 0; lane < kLanesOfSum; ++lane) sum[lane] = lanes.get(lane * kRows + thread);
            fold(sum);
            a.part(token, first_head + thread, split)[dim] = sum[0];
        });
    }

private:
    static constexpr int kTogether = 16;  // keys whose V a thread reads at once

    // This thread's copies of dimensions first … first + kDims - 1 of all visible keys' K.
    template <class Cta, class Slots, class Staged>
    KARAT_INLINE void fetch_keys(Cta& cta, int thread, int first, int stage, int from, int to,
                                 const CachedHead<Fmt>& cached, const Slots& slots, const Staged& staged) const {
        constexpr int kOfDim = kGroup / kCopied, kOfGroup = kDims * kOfDim;
        const int count = a.head_dim() - first < kDims ? a.head_dim() - first : kDims;
#pragma unroll
        for (int i = thread; i < kKeys / kGroup * kOfGroup; i += kThreads) {
            const int group = i / kOfGroup, d = i % kOfGroup / kOfDim, in_group = i % kOfDim * kCopied;
            const int key = group * kGroup + in_group, at = stage + group * kGroupStride + d * kGroup + in_group;
            if (d >= count || key >= to || key + kCopied <= from) continue;
            if (a.block_size % kCopied == 0) {  // all are in one block
                const auto slot = static_cast<std::size_t>(slots.get(key > from ? key : from) / kCopied * kCopied);
                cta.copy16(staged, at, cached.k(slot) + (first + d) * kGroup);
            } else {
                for (int k = key > from ? key : from; k < key + kCopied && k < to; ++k) {
                    const auto slot = static_cast<std::size_t>(slots.get(k));
                    staged.set(at + k - key, value_at<Stored>(cached.k(slot) + (first + d) * kGroup));
                }
            }
        }
    }
    // The same of `dims` dimensions of V from first_dim on, and of `count` keys from `first` on.
    template <class Cta, class Slots, class Staged>
    KARAT_INLINE void fetch_values(Cta& cta, int thread, int first_dim, int dims, int first, int count, int stage,
                                   int from, int to, const CachedHead<Fmt>& cached, const Slots& slots,
                                   const Staged& staged) const {
        const int of_key = dims / kCopied, left = to - first;
        for (int i = thread; i < (left < count ? left : count) * of_key; i += kThreads) {
            const int key = i / of_key, d = i % of_key * kCopied;
            if (first + key < from || first_dim + d >= padded_dim()) continue;
            const auto slot = static_cast<std::size_t>(slots.get(first + key));
            cta.copy16(staged, stage + key * dims + d, cached.v(slot) + first_dim + d);
        }
    }

    static KARAT_INLINE float read(Stored stored) { return CachedHead<Fmt>::read(&stored); }

    // Scores of a key after kCount dimensions more, or sums of a dimension after kCount keys more: they lie `step`
    // apart.
    template <int kCount, class Staged, class Rows>
    static KARAT_INLINE void add_products(Row& sums, const Staged& staged, int at, int step, const Rows& rows,
                                          int first) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const float stored = read(staged.get(at + i * step));
            const Row factors = rows.get(first + i);
#pragma unroll
            for (int r = 0; r < kRows; ++r) sums.v[r] = fma(stored, factors.v[r], sums.v[r]);
        }
    }
};

// All splits: query heads of a KV head together, or one by one where there would be too few blocks of threads for all
// multiprocessors.
template <class Fmt, bool kIsCapped>
void launch_splits(Device& device, const AttentionShape& a) {
    constexpr int kFewBlocks = 256;
    const int blocks = a.num_tokens * a.num_splits * static_cast<int>(a.cache.num_kv_heads);
    if (a.group_heads == 1 || blocks * a.group_heads <= kFewBlocks) launch(device, AttendSplit<Fmt, 1, kIsCapped>{a});
    else if (a.group_heads <= 4) launch(device, AttendSplit<Fmt, 4, kIsCapped>{a});
    else launch(device, AttendSplit<Fmt, 8, kIsCapped>{a});
}

// Merges the splits of one token and query head, in order: with sinks into a part of zeros, else into the first one.
// Each thread has some dimensions, and the totals besides.
struct AttendMerge {
    static constexpr bool kIsShort = true;
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
                const bool has_sink = a.sinks != nullptr;
                float sum = has_sink ? 0.0f : part[d], total = has_sink ? 1.0f : part[dim];
                float top = has_sink ? value_at<float>(a.sinks + head) : part[dim + 1];
                for (int split = has_sink ? first : first + 1; split <= last; ++split) {
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

// Norms of rows, and ops on single elements or pairs of them (contract/kernels.h).
#pragma once

#include "gpu/shapes.h"
#include "gpu/simt.h"
#include "simd/exp.h"
#include "simd/tanh.h"

namespace karat::gpu {

// What a norm makes of a row: RMSNorm, or x * (1 / sqrt(sum of squares + eps)) * factor.
struct ByWeight {
    static constexpr bool kHasWeights = true;
    const float* weight;
    KARAT_INLINE float scale(float total, int n, float eps) const {
        return 1.0f / square_root(total / static_cast<float>(n) + eps);
    }
    KARAT_INLINE float of(float scaled, float weight_of_column) const { return scaled * weight_of_column; }
};
struct ByFactor {
    static constexpr bool kHasWeights = false;
    const float* weight;  // null
    float factor;
    KARAT_INLINE float scale(float total, int, float eps) const { return 1.0f / square_root(total + eps); }
    KARAT_INLINE float of(float scaled, float) const { return scaled * factor; }
};

// A block of threads has a row. Its first kColumns numbers and their weights lie in shared memory; longer rows go by in
// chunks of as many. Sixteen threads are the lanes of the sum.
template <class By>
struct RowNorm {
    static constexpr bool kIsShort = true;
    static constexpr int kThreads = 256, kSumLanes = 16, kColumns = 8192, kTogether = 32;
    const float* x;  // [rows, n]
    By by;
    float eps;
    int rows, n;
    float* out;

    KARAT_HOST KARAT_INLINE int held() const { return n < kColumns ? n : kColumns; }
    KARAT_HOST KARAT_INLINE int later() const { return n - held() < kColumns ? n - held() : kColumns; }
    Grid grid() const {
        return {rows, 1, kThreads,
                sizeof(float) * static_cast<std::size_t>(2 * held() + later() + kSumLanes) + 5 * 128};
    }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const float* const from = x + static_cast<std::size_t>(cta.x()) * n;
        float* const to = out + static_cast<std::size_t>(cta.x()) * n;
        const auto first_xs = cta.template shared<float>(held());
        const auto weights = cta.template shared<float>(held());
        const auto later_xs = cta.template shared<float>(later());
        const auto lanes = cta.template shared<float>(kSumLanes);
        const auto scale = cta.template shared<float>(1);
        PerThread<Cta, float> sum(cta);

        const auto fetch = [&](const auto& shared, const float* numbers, int count) {
            cta.each([&](int thread) {
                if (n % 4 == 0)
                    for (int i = 4 * thread; i < count; i += 4 * kThreads) cta.copy16(shared, i, numbers + i);
                else
                    for (int i = thread; i < count; i += kThreads) cta.copy4(shared, i, numbers + i);
            });
            cta.commit();
        };
        const auto add = [&](const auto& xs, int count) {
            cta.each([&](int thread) {
                if (thread >= kSumLanes) return;
                int i = thread;
                for (; i + kSumLanes * (kTogether - 1) < count; i += kSumLanes * kTogether) {
                    float values[kTogether];
#pragma unroll
                    for (int k = 0; k < kTogether; ++k) values[k] = xs.get(i + k * kSumLanes);
#pragma unroll
                    for (int k = 0; k < kTogether; ++k) sum[thread] = fma(values[k], values[k], sum[thread]);
                }
                for (; i < count; i += kSumLanes) sum[thread] = fma(xs.get(i), xs.get(i), sum[thread]);
            });
        };

        fetch(first_xs, from, held());
        if constexpr (By::kHasWeights) fetch(weights, by.weight, held());
        else cta.commit();
        cta.each([&](int thread) { sum[thread] = 0; });
        cta.template wait<1>();
        cta.sync();
        add(first_xs, held());
        for (int first = kColumns; first < n; first += kColumns) {
            const int count = n - first < kColumns ? n - first : kColumns;
            cta.sync();
            fetch(later_xs, from + first, count);
            cta.template wait<0>();
            cta.sync();
            add(later_xs, count);
        }
        cta.each([&](int thread) {
            if (thread < kSumLanes) lanes.set(thread, sum[thread]);
        });
        cta.sync();
        cta.each([&](int thread) {
            if (thread != 0) return;
            float all[kSumLanes];
#pragma unroll
            for (int lane = 0; lane < kSumLanes; ++lane) all[lane] = lanes.get(lane);
            fold(all);
            scale.set(0, by.scale(all[0], n, eps));
        });
        cta.template wait<0>();
        cta.sync();
        cta.each([&](int thread) {
            for (int i = thread; i < held(); i += kThreads)
                to[i] = by.of(first_xs.get(i) * scale.get(0), By::kHasWeights ? weights.get(i) : 0.0f);
            for (int i = held() + thread; i < n; i += kThreads)
                to[i] = by.of(value_at<float>(from + i) * scale.get(0),
                              By::kHasWeights ? value_at<float>(by.weight + i) : 0.0f);
        });
    }
};
using RmsNorm = RowNorm<ByWeight>;
using L2Norm = RowNorm<ByFactor>;

// A block of threads for a row of q (y = 0) or of k. Sixteen threads are the lanes of a leaf's sum.
struct SquareSums {
    static constexpr bool kIsShort = true;
    static constexpr int kSumLanes = 16, kThreads = kSumLanes * static_cast<int>(kMaxLeaves);
    SquareSumsShape shape;

    Grid grid() const {
        const int lanes = shape.num_leaves * kSumLanes;
        return {shape.rows, 2, lanes < 32 ? 32 : lanes, sizeof(float) * static_cast<std::size_t>(lanes) + 128};
    }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const SquareSumsShape::Part& part = shape.parts[cta.y()];
        const int n = part.ends[shape.num_leaves - 1];
        const float* const x = part.x + static_cast<std::size_t>(cta.x()) * n;
        const auto lanes = cta.template shared<float>(shape.num_leaves * kSumLanes);
        cta.each([&](int thread) {
            const int leaf = thread / kSumLanes;
            if (leaf >= shape.num_leaves) return;
            float sum = 0;
            for (int i = (leaf ? part.ends[leaf - 1] : part.first) + thread % kSumLanes; i < part.ends[leaf];
                 i += kSumLanes) {
                const float value = value_at<float>(x + i);
                sum = fma(value, value, sum);
            }
            lanes.set(thread, sum);
        });
        cta.sync();
        cta.each([&](int thread) {
            if (thread != 0) return;
            for (int leaf = 0; leaf < shape.num_leaves; ++leaf) {
                float all[kSumLanes];
#pragma unroll
                for (int lane = 0; lane < kSumLanes; ++lane) all[lane] = lanes.get(leaf * kSumLanes + lane);
                fold(all);
                lanes.set(leaf, all[0]);  // of a leaf that was read
            }
            for (int count = shape.num_leaves; count > 1; count /= 2)
                for (int leaf = 0; leaf < count / 2; ++leaf)
                    lanes.set(leaf, lanes.get(2 * leaf) + lanes.get(2 * leaf + 1));
            shape.out[2 * cta.x() + cta.y()] = lanes.get(0);
        });
    }
};

// An item is a number of x [rows, n], of rows of `count` numbers whose squares add up to squares[row][part].
struct PartNorm {
    const float *x, *squares, *weight;
    float eps;
    int part, count, n;
    float* out;
    KARAT_INLINE void operator()(int i) const {
        const float total = value_at<float>(squares + 2 * (i / n) + part);
        const float scale = 1.0f / square_root(total / static_cast<float>(count) + eps);
        out[i] = value_at<float>(x + i) * scale * value_at<float>(weight + i % n);
    }
};

// A thread for each of `count` items: what the ops below are made of.
template <class Item>
struct ForEach {
    static constexpr bool kIsShort = true;
    static constexpr int kThreads = 128;
    Item item;
    int count;

    KARAT_HOST KARAT_INLINE Grid grid() const { return {pieces(count, kThreads), 1, kThreads, 0}; }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        cta.each([&](int thread) {
            if (const int i = cta.x() * kThreads + thread; i < count) item(i);
        });
    }
};

// 1 + exp(-x): what is divided by it is multiplied by sigmoid(x).
KARAT_INLINE float one_plus_exp_of_minus(float x) {
    f32x16 power[] = {zero() - set1(x)};
    exp(power);
    return 1.0f + power[0].v;
}

struct SiluMul {
    const float *gate, *up;
    float* out;
    KARAT_INLINE void operator()(int i) const {
        const float g = value_at<float>(gate + i);
        out[i] = g / one_plus_exp_of_minus(g) * value_at<float>(up + i);
    }
};

// gelu(gate) * up, of 2 sqrt(2 / pi) times 0.044715, and by itself.
struct GeluMul {
    const float *gate, *up;
    float* out;
    KARAT_INLINE void operator()(int i) const {
        const float g = value_at<float>(gate + i);
        f32x16 power[] = {set1(g * fma(g * g, -0x1.2444f2p-4f, -0x1.988454p+0f))};
        exp(power);
        out[i] = g / (1.0f + power[0].v) * value_at<float>(up + i);
    }
};

// SwiGLU of a gate that is at most `limit`, and of `up` from -limit to limit, plus 1; NaN stays NaN.
struct ClampedMul {
    const float *gate, *up;
    float limit, alpha;
    float* out;
    KARAT_INLINE void operator()(int i) const {
        float g = value_at<float>(gate + i), u = value_at<float>(up + i);
        g = limit < g ? limit : g;
        u = limit < u ? limit : u < -limit ? -limit : u;
        out[i] = g / one_plus_exp_of_minus(alpha * g) * (u + 1.0f);
    }
};

struct SoftCap {
    const float* x;
    float cap;
    float* out;
    KARAT_INLINE void operator()(int i) const { out[i] = capped(load(x + i), set1(cap)).v; }
};

// A part of each row of x, whose `groups` pieces have `share` columns of it each, from `first` on.
struct SplitPart {
    const float* x;
    float* out;
    int piece, first, share;
    KARAT_INLINE void operator()(int i) const {
        out[i] = value_at<float>(x + static_cast<std::size_t>(i / share) * piece + first + i % share);
    }
};

struct SigmoidMul {
    const float *x, *gate;
    float* out;
    int columns;  // a gate is for so many elements
    KARAT_INLINE void operator()(int i) const {
        out[i] = value_at<float>(x + i) / one_plus_exp_of_minus(value_at<float>(gate + i / columns));
    }
};

struct Sigmoid {
    const float* x;
    float* out;
    KARAT_INLINE void operator()(int i) const { out[i] = 1.0f / one_plus_exp_of_minus(value_at<float>(x + i)); }
};

// 16 bytes.
struct Copy16 {
    const U4* from;
    U4* to;
    KARAT_INLINE void operator()(int i) const { to[i] = value_at<U4>(from + i); }
};

struct Add {
    const float *x, *y;
    float* out;
    KARAT_INLINE void operator()(int i) const { out[i] = value_at<float>(x + i) + value_at<float>(y + i); }
};

struct Mul {
    const float *x, *y;
    float* out;
    KARAT_INLINE void operator()(int i) const { out[i] = value_at<float>(x + i) * value_at<float>(y + i); }
};

struct Scale {
    const float* x;
    float factor;
    float* out;
    KARAT_INLINE void operator()(int i) const { out[i] = value_at<float>(x + i) * factor; }
};

struct ScaleBy {
    const float *x, *factor;  // one number
    float* out;
    KARAT_INLINE void operator()(int i) const { out[i] = value_at<float>(x + i) * value_at<float>(factor); }
};

// An item is a pair of x [tokens, heads, head_dim], or a number behind the first 2 * half of a head, which stays as it
// is; cos and sin are [positions, half].
struct Rope {
    const float* x;
    const std::int32_t* positions;
    const float *cos, *sin;
    float* out;
    int heads, half, head_dim;
    struct Pair {
        std::size_t at;  // of the left one; the right one is `half` further on, if there is one
        float left, right;
        bool is_pair;
    };
    KARAT_INLINE Pair turned(int i) const {
        const int items = head_dim - half, pair = i % items, head = i / items;
        const std::size_t first = static_cast<std::size_t>(head) * head_dim, at = first + pair;
        if (pair >= half) return {at + half, value_at<float>(x + at + half), 0, false};
        const std::size_t angle = static_cast<std::size_t>(positions[head / heads]) * half + pair;
        const float left = value_at<float>(x + at), right = value_at<float>(x + at + half);
        const float c = value_at<float>(cos + angle), s = value_at<float>(sin + angle);
        return {at, fma(left, c, -(right * s)), fma(right, c, left * s), true};
    }
    KARAT_INLINE void operator()(int i) const {
        const Pair pair = turned(i);
        out[pair.at] = pair.left;
        if (pair.is_pair) out[pair.at + half] = pair.right;
    }
};

}  // namespace karat::gpu

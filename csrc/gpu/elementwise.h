// RMSNorm, and ops on single elements or pairs of them (contract/kernels.h).
#pragma once

#include "gpu/simt.h"
#include "simd/exp.h"

namespace karat::gpu {

// A block of threads has a row. Its first sixteen threads are the lanes of the sum.
struct RmsNorm {
    static constexpr int kThreads = 128, kSumLanes = 16;
    const float* x;  // [rows, n]
    const float* weight;
    float eps;
    int rows, n;
    float* out;

    Grid grid() const { return {rows, 1, kThreads, 256}; }

    template <class Cta>
    KARAT_INLINE void run(Cta& cta) const {
        const float* const from = x + static_cast<std::size_t>(cta.x()) * n;
        float* const to = out + static_cast<std::size_t>(cta.x()) * n;
        const auto lanes = cta.template shared<float>(kSumLanes);
        const auto scale = cta.template shared<float>(1);
        cta.each([&](int thread) {
            if (thread >= kSumLanes) return;
            float sum = 0;
            for (int i = thread; i < n; i += kSumLanes) {
                const float value = value_at<float>(from + i);
                sum = fma(value, value, sum);
            }
            lanes.set(thread, sum);
        });
        cta.sync();
        cta.each([&](int thread) {
            if (thread != 0) return;
            for (int half = kSumLanes / 2; half > 0; half /= 2)
                for (int l = 0; l < half; ++l) lanes.set(l, lanes.get(l) + lanes.get(l + half));
            scale.set(0, 1.0f / square_root(lanes.get(0) / static_cast<float>(n) + eps));
        });
        cta.sync();
        cta.each([&](int thread) {
            for (int i = thread; i < n; i += kThreads)
                to[i] = value_at<float>(from + i) * scale.get(0) * value_at<float>(weight + i);
        });
    }
};

// A thread for each of `count` items: what the ops below are made of.
template <class Item>
struct ForEach {
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

struct SigmoidMul {
    const float *x, *gate;
    float* out;
    int columns;  // a gate is for so many elements
    KARAT_INLINE void operator()(int i) const {
        out[i] = value_at<float>(x + i) / one_plus_exp_of_minus(value_at<float>(gate + i / columns));
    }
};

struct Add {
    const float *x, *y;
    float* out;
    KARAT_INLINE void operator()(int i) const { out[i] = value_at<float>(x + i) + value_at<float>(y + i); }
};

struct Scale {
    const float* x;
    float factor;
    float* out;
    KARAT_INLINE void operator()(int i) const { out[i] = value_at<float>(x + i) * factor; }
};

// An item is a pair of x [tokens, heads, head_dim]; cos and sin are [positions, half].
struct Rope {
    const float* x;
    const std::int32_t* positions;
    const float *cos, *sin;
    float* out;
    int heads, half;
    struct Pair {
        std::size_t at;  // of the left one; the right one is `half` further on
        float left, right;
    };
    KARAT_INLINE Pair turned(int i) const {
        const int pair = i % half, head = i / half;
        const std::size_t at = static_cast<std::size_t>(head) * 2 * half + pair;
        const std::size_t angle = static_cast<std::size_t>(positions[head / heads]) * half + pair;
        const float left = value_at<float>(x + at), right = value_at<float>(x + at + half);
        const float c = value_at<float>(cos + angle), s = value_at<float>(sin + angle);
        return {at, fma(left, c, -(right * s)), fma(right, c, left * s)};
    }
    KARAT_INLINE void operator()(int i) const {
        const Pair pair = turned(i);
        out[pair.at] = pair.left;
        out[pair.at + half] = pair.right;
    }
};

}  // namespace karat::gpu

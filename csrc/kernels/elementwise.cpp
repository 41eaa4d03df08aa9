// Ops on single elements or pairs of them: SwiGLU, GELU, gates, sum, factor, cap, RoPE, writing K and V (kernels.h).
#include "kernels/cache.h"
#include "simd/exp.h"
#include "simd/narrow.h"
#include "simd/simd.h"
#include "simd/tanh.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// x = 1 + exp(-x): what is divided by it is multiplied by sigmoid(x)
template <int N>
KARAT_INLINE void one_plus_exp_of_minus(f32x16 (&x)[N]) {
    for (int i = 0; i < N; ++i) x[i] = zero() - x[i];
    exp(x);
    for (int i = 0; i < N; ++i) x[i] = set1(1.0f) + x[i];
}

// up *= silu(gate)
template <int N>
KARAT_INLINE void times_silu(f32x16 (&up)[N], const f32x16 (&gate)[N]) {
    f32x16 divisor[N];
    for (int i = 0; i < N; ++i) divisor[i] = gate[i];
    one_plus_exp_of_minus(divisor);
    for (int i = 0; i < N; ++i) up[i] = gate[i] / divisor[i] * up[i];
}

// up *= gelu(gate). The quotient is at most 1.17e-7 · |gate| from GELU in double precision, where gate is 4.14.
template <int N>
KARAT_INLINE void times_gelu(f32x16 (&up)[N], const f32x16 (&gate)[N]) {
    f32x16 divisor[N];
    for (int i = 0; i < N; ++i)  // 2 sqrt(2 / pi) times 0.044715, and by itself
        divisor[i] = gate[i] * fma(gate[i] * gate[i], set1(-0x1.2444f2p-4f), set1(-0x1.988454p+0f));
    exp(divisor);
    for (int i = 0; i < N; ++i) up[i] = gate[i] / (set1(1.0f) + divisor[i]) * up[i];
}

// times(up, gate), vector by vector.
template <class Times>
KARAT_INLINE void each_pair(const float* gate, const float* up, float* out, std::size_t n, Times times) {
    std::size_t i = 0;
    for (; i + kTuning.exp_vectors * kLanes <= n; i += kTuning.exp_vectors * kLanes) {
        f32x16 g[kTuning.exp_vectors], result[kTuning.exp_vectors];
        for (int v = 0; v < kTuning.exp_vectors; ++v) g[v] = load(gate + i + v * kLanes);
        for (int v = 0; v < kTuning.exp_vectors; ++v) result[v] = load(up + i + v * kLanes);
        times(result, g);
        for (int v = 0; v < kTuning.exp_vectors; ++v) store(out + i + v * kLanes, result[v]);
    }
    for (; i < n; i += kLanes) {
        const int count = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
        f32x16 g[] = {load_first(gate + i, count)}, result[] = {load_first(up + i, count)};
        times(result, g);
        store_first(out + i, result[0], count);
    }
}

}  // namespace

void silu_mul(const float* gate, const float* up, float* out, std::size_t n) {
    each_pair(gate, up, out, n,
              [](auto& result, const auto& g) __attribute__((always_inline)) { times_silu(result, g); });
}

void gelu_mul(const float* gate, const float* up, float* out, std::size_t n) {
    each_pair(gate, up, out, n,
              [](auto& result, const auto& g) __attribute__((always_inline)) { times_gelu(result, g); });
}

void soft_cap(const float* x, float cap, float* out, std::size_t n) {
    for (std::size_t i = 0; i < n; i += kLanes) {
        const int count = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
        store_first(out + i, capped(load_first(x + i, count), set1(cap)), count);
    }
}

void clamped_mul(const float* gate, const float* up, float limit, float alpha, float* out, std::size_t n) {
    const f32x16 most = set1(limit), least = set1(-limit);
    for (std::size_t i = 0; i < n; i += kLanes) {
        const int count = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
        f32x16 g = load_first(gate + i, count), u = load_first(up + i, count);
        g = select(most < g, most, g);
        u = select(most < u, most, select(u < least, least, u));
        f32x16 divisor[] = {set1(alpha) * g};
        one_plus_exp_of_minus(divisor);
        store_first(out + i, g / divisor[0] * (u + set1(1.0f)), count);
    }
}

void sigmoid_mul(const float* x, const float* gate, float* out, std::size_t n, std::size_t columns) {
    const std::size_t num_gates = n / columns;
    for (std::size_t i = 0; i < num_gates; i += kLanes) {
        const int count = num_gates - i < kLanes ? static_cast<int>(num_gates - i) : kLanes;
        f32x16 divisor[] = {load_first(gate + i, count)};
        one_plus_exp_of_minus(divisor);
        if (columns == 1) {
            store_first(out + i, load_first(x + i, count) / divisor[0], count);
            continue;
        }
        float divisors[kLanes];
        store(divisors, divisor[0]);
        std::size_t at = i * columns;
        for (int lane = 0; lane < count; ++lane)
            for (const std::size_t end = at + columns; at < end; ++at) out[at] = x[at] / divisors[lane];
    }
}

void add(const float* x, const float* y, float* out, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) out[i] = x[i] + y[i];
}

void mul(const float* x, const float* y, float* out, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) out[i] = x[i] * y[i];
}

void sigmoid(const float* x, float* out, std::size_t n) {
    for (std::size_t i = 0; i < n; i += kLanes) {
        const int count = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
        f32x16 divisor[] = {load_first(x + i, count)};
        one_plus_exp_of_minus(divisor);
        store_first(out + i, set1(1.0f) / divisor[0], count);
    }
}

void scale(const float* x, float factor, float* out, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) out[i] = x[i] * factor;
}

void rope(const float* x, const std::int32_t* positions, const float* cos, const float* sin, float* out,
          std::size_t tokens, std::size_t heads, std::size_t head_dim, std::size_t half) {
    for (std::size_t t = 0; t < tokens; ++t) {
        const float* c = cos + static_cast<std::size_t>(positions[t]) * half;
        const float* s = sin + static_cast<std::size_t>(positions[t]) * half;
        for (std::size_t h = 0; h < heads; ++h, x += head_dim, out += head_dim) {
            for (std::size_t i = 0; i < half; ++i) {
                const float left = x[i], right = x[i + half];
                out[i] = __builtin_fmaf(left, c[i], -(right * s[i]));
                out[i + half] = __builtin_fmaf(right, c[i], left * s[i]);
            }
            for (std::size_t i = 2 * half; i < head_dim; ++i) out[i] = x[i];
        }
    }
}

namespace {

struct AsF32 {
    using Stored = float;
    static float convert(float x) { return x; }
    static bool infinite(float) { return false; }
};
struct AsF16 {
    using Stored = std::uint16_t;
    static std::uint16_t convert(float x) { return f16_of(x); }
    static bool infinite(std::uint16_t x) { return (x & 0x7fff) == 0x7c00; }
};
struct AsBF16 {
    using Stored = std::uint16_t;
    static std::uint16_t convert(float x) { return bf16_of(x); }
    static bool infinite(std::uint16_t x) { return (x & 0x7fff) == 0x7f80; }
};

template <class As>
std::ptrdiff_t write(const float* k, const float* v, const CacheView& cache, const std::int32_t* slots,
                     std::size_t tokens) {
    using Stored = typename As::Stored;
    const std::size_t heads = cache.num_kv_heads, dim = cache.head_dim;
    std::ptrdiff_t lost = -1;
    const auto put = [&](Stored* to, float value, std::size_t index) {
        *to = As::convert(value);
        if (As::infinite(*to) && (bits_of(value) & 0x7f800000) != 0x7f800000 && lost < 0)
            lost = static_cast<std::ptrdiff_t>(index);
    };
    for (int part = 0; part < 2; ++part) {
        const float* x = part == 0 ? k : v;
        for (std::size_t t = 0; t < tokens; ++t) {
            const std::size_t slot = static_cast<std::size_t>(slots[t]);
            for (std::size_t h = 0; h < heads; ++h, x += dim) {
                const CachedHead<Stored> head(cache, h);
                const std::size_t index = (static_cast<std::size_t>(part) * tokens * heads + t * heads + h) * dim;
                if (part == 0) {
                    Stored* to = head.k(slot) + slot % kLanes;
                    for (std::size_t d = 0; d < dim; ++d) put(to + d * kLanes, x[d], index + d);
                } else {
                    Stored* to = head.v(slot);
                    for (std::size_t d = 0; d < dim; ++d) put(to + d, x[d], index + d);
                }
            }
        }
    }
    return lost;
}

}  // namespace

std::ptrdiff_t kv_write(const float* k, const float* v, const CacheView& cache, const std::int32_t* slots,
                        std::size_t tokens) {
    switch (cache.type) {
        case CacheType::f32: return write<AsF32>(k, v, cache, slots, tokens);
        case CacheType::f16: return write<AsF16>(k, v, cache, slots, tokens);
        case CacheType::bf16: return write<AsBF16>(k, v, cache, slots, tokens);
    }
    return -1;
}

}  // namespace karat::KARAT_ISA_NAMESPACE

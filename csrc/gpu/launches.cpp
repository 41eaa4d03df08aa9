#include "gpu/launches.h"

#include "gpu/attention.h"
#include "gpu/digits.h"
#include "gpu/elementwise.h"
#include "gpu/embedding.h"
#include "gpu/experts.h"
#include "gpu/float_few.h"
#include "gpu/integer_launches.h"

namespace karat::gpu {
namespace {

// Calls f<Fmt>() with the struct of formats.h.
template <class F>
void with_floats(Format format, const F& f) {
    switch (format) {
#define KARAT_CASE(name, ...) \
    case Format::name: return f.template operator()<name>();
        KARAT_FLOAT_FORMATS(KARAT_CASE)
#undef KARAT_CASE
        default: return;
    }
}

Format stored_as(CacheType type) {
    switch (type) {
        case CacheType::f32: return Format::F32;
        case CacheType::f16: return Format::F16;
        case CacheType::bf16: return Format::BF16;
    }
    return Format::F32;
}

template <class Item>
void for_each(Device& device, int count, const Item& item) {
    launch(device, ForEach<Item>{item, count});
}

}  // namespace

void quantise(Device& device, Activations activations, const float* x, int rows, int columns, std::uint8_t* out) {
    switch (activations) {
        case Activations::int8: return launch(device, Quantise<1>{x, rows, columns, out});
        case Activations::int16: return launch(device, Quantise<2>{x, rows, columns, out});
        case Activations::int24: return launch(device, Quantise<3>{x, rows, columns, out});
    }
}

void integer_linear(Device& device, Format format, Activations activations, const LinearShape& shape,
                    const std::uint8_t* digits, int digits_rows) {
    switch (activations) {
        case Activations::int8: return integer_linear_of<1>(device, format, shape, digits, digits_rows);
        case Activations::int16: return integer_linear_of<2>(device, format, shape, digits, digits_rows);
        case Activations::int24: return integer_linear_of<3>(device, format, shape, digits, digits_rows);
    }
}

void float_linear(Device& device, Format format, const LinearShape& shape, const float* x) {
    with_floats(format, [&]<class Fmt>() {
        if (shape.tokens == 1 || shape.chosen.matrices) launch(device, FloatFew<Fmt, 1>{shape, x});
        else launch(device, FloatFew<Fmt, 8>{shape, x});
    });
}

void embedding(Device& device, Format format, const LinearShape& shape, const std::int32_t* ids) {
    switch (format) {
#define KARAT_CASE(name, ...) \
    case Format::name: return launch(device, Embedding<name>{shape, ids});
        KARAT_FLOAT_FORMATS(KARAT_CASE)
        KARAT_BLOCK_FORMATS(KARAT_CASE)
#undef KARAT_CASE
    }
}

void select_rows(Device& device, const float* x, const std::int32_t* ids, int count, int columns, float* out) {
    launch(device, SelectRows{x, ids, count, columns, out});
}

void rms_norm(Device& device, const float* x, const float* weight, float eps, int rows, int n, float* out) {
    launch(device, RmsNorm{x, weight, eps, rows, n, out});
}
void silu_mul(Device& device, const float* gate, const float* up, int count, float* out) {
    for_each(device, count, SiluMul{gate, up, out});
}
void sigmoid_mul(Device& device, const float* x, const float* gate, int count, int columns, float* out) {
    for_each(device, count, SigmoidMul{x, gate, out, columns});
}
void add(Device& device, const float* x, const float* y, int count, float* out) {
    for_each(device, count, Add{x, y, out});
}
void scale(Device& device, const float* x, float factor, int count, float* out) {
    for_each(device, count, Scale{x, factor, out});
}
void rope(Device& device, const float* x, const std::int32_t* positions, const float* cos, const float* sin, int tokens,
          int heads, int head_dim, float* out) {
    for_each(device, tokens * heads * (head_dim / 2), Rope{x, positions, cos, sin, out, heads, head_dim / 2});
}

void route(Device& device, const float* logits, int rows, int experts, int chosen, bool renormalised, std::int32_t* ids,
           float* weights) {
    for_each(device, rows, RouteRow{logits, experts, chosen, renormalised, ids, weights});
}
void sum_of_experts(Device& device, const ExpertsShape& shape) {
    for_each(device, shape.rows * shape.columns, SumOfExperts{shape});
}

void kv_write(Device& device, const float* k, const float* v, const CacheView& cache, const std::int32_t* slots,
              int tokens, std::int32_t* lost) {
    with_floats(stored_as(cache.type),
                [&]<class Fmt>() { launch(device, KvWrite<Fmt>{k, v, cache, slots, tokens, lost}); });
}

void attention(Device& device, const AttentionShape& shape) {
    with_floats(stored_as(shape.cache.type), [&]<class Fmt>() { launch(device, AttendSplit<Fmt>{shape}); });
    launch(device, AttendMerge{shape});
}

}  // namespace karat::gpu

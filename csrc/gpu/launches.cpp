#include "gpu/launches.h"

#include "gpu/choosing.h"
#include "gpu/embedding.h"
#include "gpu/experts.h"
#include "gpu/float_few.h"
#include "gpu/float_many.h"
#include "gpu/integer_launches.h"
#include "gpu/joined.h"
#include "gpu/recurrence.h"
#include "gpu/scaled.h"

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

// Calls f<kDigits>().
template <class F>
void with_digits(Activations activations, const F& f) {
    switch (activations) {
        case Activations::int8: return f.template operator()<1>();
        case Activations::int16: return f.template operator()<2>();
        case Activations::int24: return f.template operator()<3>();
    }
}

template <class Item>
ForEach<Item> each_of(int count, const Item& item) {
    return {item, count};
}
template <class Item>
void for_each(Device& device, int count, const Item& item) {
    launch(device, each_of(count, item));
}

// A kernel whose blocks write rows of `from` in their order, `columns` each, and the digits of these, if they are
// wanted.
template <class Kernel>
void launch_with(Device& device, const DigitsToo& digits, const Kernel& kernel, const float* from, int columns,
                 int first_column = 0) {
    if (!digits.out) return launch(device, kernel);
    constexpr int kBlock = static_cast<int>(kDigitColumns);
    with_digits(digits.activations, [&]<int kDigits>() {
        launch(device, WithDigits<Kernel, kDigits>{kernel,
                                                   {from, digits.rows, digits.columns, digits.out},
                                                   first_column / kBlock,
                                                   columns / kBlock,
                                                   kernel.grid().y});
    });
}

Rope rope_of(const RopeShape& s) { return {s.x, s.positions, s.cos, s.sin, s.out, s.heads, s.half, s.head_dim}; }
int items_of(const RopeShape& s) { return s.tokens * s.heads * (s.head_dim - s.half); }

}  // namespace

void quantise(Device& device, Activations activations, const float* x, int rows, int columns, std::uint8_t* out) {
    with_digits(activations, [&]<int kDigits>() { launch(device, Quantise<kDigits>{x, rows, columns, out}); });
}

void integer_linear(Device& device, Format format, Activations activations, const LinearShape& shape,
                    const std::uint8_t* digits, int digits_rows) {
    with_digits(activations,
                [&]<int kDigits>() { integer_linear_of<kDigits>(device, format, shape, digits, digits_rows); });
}

void float_linear(Device& device, Format format, const LinearShape& shape, const float* x) {
    const auto scaled = [&]<class Fmt>() {
        if (shape.tokens == 1 || shape.chosen.matrices) launch(device, ScaledLinear<Fmt, 1>{shape, x});
        else launch(device, ScaledLinear<Fmt, 32>{shape, x});
    };
    switch (format) {
#define KARAT_CASE(name, ...) \
    case Format::name: return scaled.template operator()<name>();
        KARAT_SCALED_FORMATS(KARAT_CASE)
#undef KARAT_CASE
        default: break;
    }
    with_floats(format, [&]<class Fmt>() {
        if (shape.tokens == 1 || shape.chosen.matrices) launch(device, FloatFew<Fmt, 1>{shape, x});
        else if (shape.tokens <= kFewTokens) launch(device, FloatFew<Fmt, 8>{shape, x});
        else launch(device, FloatMany<Fmt>{shape, x});
    });
}

void embedding(Device& device, Format format, const LinearShape& shape, const std::int32_t* ids) {
    switch (format) {
#define KARAT_CASE(name, ...) \
    case Format::name: return launch(device, Embedding<name>{shape, ids});
        KARAT_FLOAT_FORMATS(KARAT_CASE)
        KARAT_SCALED_FORMATS(KARAT_CASE)
        KARAT_BLOCK_FORMATS(KARAT_CASE)
#undef KARAT_CASE
        default: return;
    }
}

void select_rows(Device& device, const float* x, const std::int32_t* ids, int count, int columns, float* out) {
    launch(device, SelectRows{x, ids, count, columns, out});
}

void rms_norm(Device& device, const float* x, const float* weight, float eps, int rows, int n, float* out,
              const DigitsToo& digits) {
    launch_with(device, digits, RmsNorm{x, {weight}, eps, rows, n, out}, out, n);
}
void l2_norm(Device& device, const float* x, float eps, float factor, int rows, int n, float* out) {
    launch(device, L2Norm{x, {nullptr, factor}, eps, rows, n, out});
}
void square_sums(Device& device, const SquareSumsShape& shape) { launch(device, SquareSums{shape}); }
void part_norm(Device& device, const float* x, const float* squares, const float* weight, float eps, int part,
               int count, int rows, int n, float* out) {
    for_each(device, rows * n, PartNorm{x, squares, weight, eps, part, count, n, out});
}
void silu_mul(Device& device, const float* gate, const float* up, int count, float* out, const DigitsToo& digits) {
    launch_with(device, digits, each_of(count, SiluMul{gate, up, out}), out, ForEach<SiluMul>::kThreads);
}
void gelu_mul(Device& device, const float* gate, const float* up, int count, float* out, const DigitsToo& digits) {
    launch_with(device, digits, each_of(count, GeluMul{gate, up, out}), out, ForEach<GeluMul>::kThreads);
}
void clamped_mul(Device& device, const float* gate, const float* up, float limit, float alpha, int count, float* out) {
    for_each(device, count, ClampedMul{gate, up, limit, alpha, out});
}
void sigmoid_mul(Device& device, const float* x, const float* gate, int count, int columns, float* out) {
    for_each(device, count, SigmoidMul{x, gate, out, columns});
}
void add(Device& device, const float* x, const float* y, int count, float* out) {
    for_each(device, count, Add{x, y, out});
}
void mul(Device& device, const float* x, const float* y, int count, float* out) {
    for_each(device, count, Mul{x, y, out});
}
void sigmoid(Device& device, const float* x, int count, float* out) { for_each(device, count, Sigmoid{x, out}); }
void scale(Device& device, const float* x, float factor, int count, float* out) {
    for_each(device, count, Scale{x, factor, out});
}
void scale_by(Device& device, const float* x, const float* factor, int count, float* out) {
    for_each(device, count, ScaleBy{x, factor, out});
}
void soft_cap(Device& device, const float* x, float cap, int count, float* out) {
    for_each(device, count, SoftCap{x, cap, out});
}
void rope(Device& device, const RopeShape& shape) { for_each(device, items_of(shape), rope_of(shape)); }
void split_part(Device& device, const float* x, int piece, int first, int share, int count, float* out) {
    for_each(device, count, SplitPart{x, out, piece, first, share});
}

void copy(Device& device, const void* from, void* to, int count) {
    for_each(device, count, Copy16{static_cast<const U4*>(from), static_cast<U4*>(to)});
}

void route(Device& device, const RouteShape& shape) {
    for_each(device, shape.rows, RouteRow{shape, shape.how.by_logit(), shape.how.over_chosen()});
}
void add_biases(Device& device, const BiasesShape& shape) {
    for_each(device, shape.num_pairs * shape.columns, AddBiases{shape});
}
void sum_of_experts(Device& device, const ExpertsShape& shape) {
    for_each(device, shape.rows * shape.columns, SumOfExperts{shape});
}

void kv_write(Device& device, const float* k, const float* v, const CacheView& cache, const std::int32_t* slots,
              int tokens, std::uint64_t* lost) {
    const int count = tokens * static_cast<int>(cache.num_kv_heads * cache.head_dim);
    with_floats(stored_as(cache.type), [&]<class Fmt>() {
        const auto keys = each_of(count, Store<Fmt, false>{k, cache, slots, count, lost});
        launch(device, Beside{keys, each_of(count, Store<Fmt, true>{v, cache, slots, count, lost})});
    });
}

void rope_kv_write(Device& device, const RopeShape& q, const RopeShape& k, const float* v, const CacheView& cache,
                   const std::int32_t* slots, int tokens, std::uint64_t* lost) {
    const int count = tokens * static_cast<int>(cache.num_kv_heads * cache.head_dim);
    with_floats(stored_as(cache.type), [&]<class Fmt>() {
        const RopeStore<Fmt> keys{rope_of(k), {nullptr, cache, slots, count, lost}};
        const auto values = each_of(count, Store<Fmt, true>{v, cache, slots, count, lost});
        launch(device, Beside{each_of(items_of(q), rope_of(q)), Beside{each_of(items_of(k), keys), values}});
    });
}

void causal_conv(Device& device, const ConvShape& shape) {
    const auto results = each_of(shape.tokens * shape.channels, CausalConv{shape});
    launch(device, Beside{results, each_of(shape.seqs * (shape.taps - 1) * shape.channels, KeepRows{shape})});
}
void decay(Device& device, const float* a, const float* bias, const float* rate, bool of_log, int rows, int n,
           float* out) {
    for_each(device, rows * n, Decay{a, bias, rate, n, of_log, out});
}
void delta_rule(Device& device, const DeltaRuleShape& shape) {
    for_each(device, shape.seqs * shape.heads * shape.v_dim, DeltaRule{shape});
}

void attention(Device& device, const AttentionShape& shape, const DigitsToo& digits) {
    with_floats(stored_as(shape.cache.type), [&]<class Fmt>() {
        if (shape.cap > 0) launch_splits<Fmt, true>(device, shape);
        else launch_splits<Fmt, false>(device, shape);
    });
    const int row = shape.num_heads * shape.head_dim();
    launch_with(device, digits, AttendMerge{shape}, shape.out, shape.head_dim(), shape.first_token * row);
}

void finite_argmax(Device& device, const float* logits, int rows, int columns, std::uint64_t* tops) {
    launch(device, FiniteArgmax{logits, rows, columns, tops});
}
void largest(Device& device, const LargestShape& shape) { launch(device, Largest{shape}); }

}  // namespace karat::gpu

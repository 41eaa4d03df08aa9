// What a device is asked for: one launch a function, or few. A Device is what the build has (simt.h): the emulation.
#pragma once

#include "gpu/shapes.h"

namespace karat::gpu {

struct Device;

// Where the digits of a result go too, as linear layers on blocks read them (contract/activations.h), or nowhere: they
// are then made with the result, of [rows, columns]. columns is a multiple of 32.
struct DigitsToo {
    std::uint8_t* out = nullptr;
    Activations activations{};
    int rows = 0, columns = 0;
};

// Rows of x [rows, columns] as digits.
void quantise(Device& device, Activations activations, const float* x, int rows, int columns, std::uint8_t* out);

// Block formats, one for all layers; `digits` are of digits_rows rows, of which the first are those of the tokens.
void integer_linear(Device& device, Format format, Activations activations, const LinearShape& shape,
                    const std::uint8_t* digits, int digits_rows);

// Stored floats, one format for all layers; x is [tokens, columns].
void float_linear(Device& device, Format format, const LinearShape& shape, const float* x);

// `shape` has the table, tokens and out.
void embedding(Device& device, Format format, const LinearShape& shape, const std::int32_t* ids);
void select_rows(Device& device, const float* x, const std::int32_t* ids, int count, int columns, float* out);

// With digits a row is of n columns.
void rms_norm(Device& device, const float* x, const float* weight, float eps, int rows, int n, float* out,
              const DigitsToo& digits);
void l2_norm(Device& device, const float* x, float eps, float factor, int rows, int n, float* out);
void square_sums(Device& device, const SquareSumsShape& shape);
// x [rows, n], a part of rows of `count` numbers; squares [rows, 2].
void part_norm(Device& device, const float* x, const float* squares, const float* weight, float eps, int part,
               int count, int rows, int n, float* out);
void silu_mul(Device& device, const float* gate, const float* up, int count, float* out, const DigitsToo& digits);
void gelu_mul(Device& device, const float* gate, const float* up, int count, float* out, const DigitsToo& digits);
void clamped_mul(Device& device, const float* gate, const float* up, float limit, float alpha, int count, float* out);
void sigmoid_mul(Device& device, const float* x, const float* gate, int count, int columns, float* out);
void add(Device& device, const float* x, const float* y, int count, float* out);
void mul(Device& device, const float* x, const float* y, int count, float* out);
void sigmoid(Device& device, const float* x, int count, float* out);
void scale(Device& device, const float* x, float factor, int count, float* out);
void scale_by(Device& device, const float* x, const float* factor, int count, float* out);
void soft_cap(Device& device, const float* x, float cap, int count, float* out);
void rope(Device& device, const RopeShape& shape);
// out [count / share, share] = columns first … first + share - 1 of pieces of x.
void split_part(Device& device, const float* x, int piece, int first, int share, int count, float* out);

// `count` pieces of 16 bytes.
void copy(Device& device, const void* from, void* to, int count);

void route(Device& device, const RouteShape& shape);
void add_biases(Device& device, const BiasesShape& shape);
void sum_of_experts(Device& device, const ExpertsShape& shape);

// k and v [tokens, kv_heads, head_dim] into the cache; *lost as Store has it (gpu/cache.h).
void kv_write(Device& device, const float* k, const float* v, const CacheView& cache, const std::int32_t* slots,
              int tokens, std::uint64_t* lost);
// The same of k before RoPE, and q, of [tokens, heads, head_dim], after it.
void rope_kv_write(Device& device, const RopeShape& q, const RopeShape& k, const float* v, const CacheView& cache,
                   const std::int32_t* slots, int tokens, std::uint64_t* lost);
// The state after the step goes where `writes` says.
void causal_conv(Device& device, const ConvShape& shape);
void decay(Device& device, const float* a, const float* bias, const float* rate, bool of_log, int rows, int n,
           float* out);
void delta_rule(Device& device, const DeltaRuleShape& shape);

// With digits head_dim is a multiple of 32.
void attention(Device& device, const AttentionShape& shape, const DigitsToo& digits);

// Of each row of logits [rows, columns]: what FiniteArgmax tells (gpu/choosing.h); tops [rows] begin with all bits set.
void finite_argmax(Device& device, const float* logits, int rows, int columns, std::uint64_t* tops);

// One step to the `kept` largest of each row (gpu/choosing.h): the last one where the row's ranks are one piece.
void largest(Device& device, const LargestShape& shape);

}  // namespace karat::gpu

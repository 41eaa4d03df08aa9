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
void silu_mul(Device& device, const float* gate, const float* up, int count, float* out, const DigitsToo& digits);
void sigmoid_mul(Device& device, const float* x, const float* gate, int count, int columns, float* out);
void add(Device& device, const float* x, const float* y, int count, float* out);
void mul(Device& device, const float* x, const float* y, int count, float* out);
void sigmoid(Device& device, const float* x, int count, float* out);
void scale(Device& device, const float* x, float factor, int count, float* out);
void rope(Device& device, const RopeShape& shape);

// `count` pieces of 16 bytes.
void copy(Device& device, const void* from, void* to, int count);

// The experts of each row of logits [rows, experts]: ids and weights [rows, chosen].
void route(Device& device, const float* logits, int rows, int experts, int chosen, bool renormalised, std::int32_t* ids,
           float* weights);
void sum_of_experts(Device& device, const ExpertsShape& shape);

// k and v [tokens, kv_heads, head_dim] into the cache; *lost as Store has it (gpu/cache.h).
void kv_write(Device& device, const float* k, const float* v, const CacheView& cache, const std::int32_t* slots,
              int tokens, std::uint64_t* lost);
// The same of k before RoPE, and q, of [tokens, heads, head_dim], after it.
void rope_kv_write(Device& device, const RopeShape& q, const RopeShape& k, const float* v, const CacheView& cache,
                   const std::int32_t* slots, int tokens, std::uint64_t* lost);
// With digits head_dim is a multiple of 32.
void attention(Device& device, const AttentionShape& shape, const DigitsToo& digits);

// Of each row of logits [rows, columns]: what FiniteArgmax tells (gpu/choosing.h); tops [rows] begin with all bits set.
void finite_argmax(Device& device, const float* logits, int rows, int columns, std::uint64_t* tops);

// One step to the `kept` largest of each row (gpu/choosing.h): the last one where the row's ranks are one piece.
void largest(Device& device, const LargestShape& shape);

}  // namespace karat::gpu

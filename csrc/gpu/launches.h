// What a device is asked for: one launch a function, or few. A Device is what the build has (simt.h): the emulation.
#pragma once

#include "gpu/shapes.h"

namespace karat::gpu {

struct Device;

// Rows of x [rows, columns] as digits (contract/activations.h).
void quantise(Device& device, Activations activations, const float* x, int rows, int columns, std::uint8_t* out);

// Block formats; `digits` are of digits_rows rows, of which the first are those of the layer's tokens.
void integer_linear(Device& device, Format format, Activations activations, const LinearShape& shape,
                    const std::uint8_t* digits, int digits_rows);

// Stored floats; x is [tokens, columns].
void float_linear(Device& device, Format format, const LinearShape& shape, const float* x);

// `shape` has the table, tokens and out.
void embedding(Device& device, Format format, const LinearShape& shape, const std::int32_t* ids);
void select_rows(Device& device, const float* x, const std::int32_t* ids, int count, int columns, float* out);

void rms_norm(Device& device, const float* x, const float* weight, float eps, int rows, int n, float* out);
void silu_mul(Device& device, const float* gate, const float* up, int count, float* out);
void sigmoid_mul(Device& device, const float* x, const float* gate, int count, int columns, float* out);
void add(Device& device, const float* x, const float* y, int count, float* out);
void scale(Device& device, const float* x, float factor, int count, float* out);
void rope(Device& device, const float* x, const std::int32_t* positions, const float* cos, const float* sin, int tokens,
          int heads, int head_dim, float* out);

// The experts of each row of logits [rows, experts]: ids and weights [rows, chosen].
void route(Device& device, const float* logits, int rows, int experts, int chosen, bool renormalised, std::int32_t* ids,
           float* weights);
void sum_of_experts(Device& device, const ExpertsShape& shape);

// *lost, in the memory of the device, becomes the least index (over k, then v) of a number that is finite and becomes
// infinite; else it stays as it is.
void kv_write(Device& device, const float* k, const float* v, const CacheView& cache, const std::int32_t* slots,
              int tokens, std::int32_t* lost);
void attention(Device& device, const AttentionShape& shape);

}  // namespace karat::gpu

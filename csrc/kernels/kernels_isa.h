// Declares the kernels of one instruction set. Each is defined in the source of its name; table.cpp puts them into a
// table.
//
// A build may be another arrangement of an instruction set (KARAT_ARRANGES names that set): it has linear layers of its
// own, or passes of a few tokens on integers (integer_few.cpp), and takes the other kernels from that set.
#pragma once

#include "contract/kernels.h"

#if !defined(KARAT_ARRANGES)
#define KARAT_ARRANGES KARAT_ISA_NAMESPACE
#endif

namespace karat::KARAT_ARRANGES {

std::size_t attention_scratch_floats(std::size_t head_dim);

void embedding(const Matrix& table, const std::int32_t* ids, std::size_t tokens, float* out);
void rms_norm(const float* x, const float* weight, double eps, float* out, std::size_t rows, std::size_t n);
void silu_mul(const float* gate, const float* up, float* out, std::size_t n);
void sigmoid_mul(const float* x, const float* gate, float* out, std::size_t n, std::size_t columns);
void add(const float* x, const float* y, float* out, std::size_t n);
void rope(const float* x, const std::int32_t* positions, const float* cos, const float* sin, float* out,
          std::size_t tokens, std::size_t heads, std::size_t head_dim);
std::ptrdiff_t kv_write(const float* k, const float* v, const CacheView& cache, const std::int32_t* slots,
                        std::size_t tokens);
void attention(const AttentionArgs& args, std::size_t seq, std::size_t kv_head, std::size_t first, std::size_t last,
               float* scratch);
void attention_split(const AttentionArgs& args, std::size_t seq, std::size_t kv_head, std::size_t split, float* part,
                     float* scratch);
void attention_merge(const AttentionArgs& args, std::size_t seq, std::size_t kv_head, std::size_t num_splits,
                     float* parts, std::size_t part_stride);

}  // namespace karat::KARAT_ARRANGES
namespace karat::KARAT_ISA_NAMESPACE {

using namespace KARAT_ARRANGES;

std::size_t linear_scratch_floats();
void linear(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch);
void linear_both(const LinearArgs& a, const LinearArgs& b, std::size_t first, std::size_t last, float* scratch);

}  // namespace karat::KARAT_ISA_NAMESPACE

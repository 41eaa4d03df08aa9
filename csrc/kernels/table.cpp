// The table of one instruction set's kernels. Compiled once for each.
#include "kernels/kernels_isa.h"
#include "simd/tuning.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

std::size_t scratch_bytes(std::size_t head_dim) {
    const std::size_t a = linear_scratch_floats(), b = attention_scratch_floats(head_dim);
    return (a > b ? a : b) * sizeof(float);
}

}  // namespace

const Kernels kernels = {
    .attention_rows = kTuning.attention_rows,
    .scratch_bytes = scratch_bytes,
    .linear = linear,
    .linear_both = linear_both,
    .embedding = embedding,
    .rms_norm = rms_norm,
    .silu_mul = silu_mul,
    .sigmoid_mul = sigmoid_mul,
    .add = add,
    .rope = rope,
    .kv_write = kv_write,
    .attention = attention,
    .attention_split = attention_split,
    .attention_merge = attention_merge,
};

}  // namespace karat::KARAT_ISA_NAMESPACE

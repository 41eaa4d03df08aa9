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

#define KARAT_ENTRY(name) .name = name,

const Kernels kernels = {.attention_rows = kTuning.attention_rows,
                         .scratch_bytes = scratch_bytes,
                         KARAT_ARRANGED_KERNELS(KARAT_ENTRY) KARAT_KERNELS(KARAT_ENTRY)};

}  // namespace karat::KARAT_ISA_NAMESPACE

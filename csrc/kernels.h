// The kernels and their contracts.
//
// Every kernel source is compiled once for each instruction set (isa.h), into a namespace of its own, and publishes its
// functions in a table. Results do not depend on which build ran: each output is a fixed chain of IEEE operations with
// one rounding each, fused multiply-adds are written as such and nothing else is contracted or reordered.
// Kernels expect the default floating-point environment (float_env.h); their callers set it, and leave all arithmetic to
// them: a compiler may move an operation of the caller's to before the call that sets the environment.
#pragma once

#include <cstddef>

namespace karat {

// Sums over the columns of a row are kept in this many virtual lanes, whatever the width of the real ones.
inline constexpr std::size_t kLanes = 16;

// Longest row of a norm: its length is still exact in float32.
inline constexpr std::size_t kMaxColumns = std::size_t{1} << 24;

struct Kernels {
    // RMSNorm. x and out: [rows, n] float32, C-contiguous, the same memory or disjoint; weight: [n] float32;
    // 1 <= n <= kMaxColumns.
    //   lane[l]  = chain of fma(x[i], x[i], lane[l]) from 0, over i = l, l + 16, l + 32, ...
    //   total    = the lanes folded in halves: lane[l] += lane[l + 8], then + 4, + 2, + 1
    //   scale    = 1 / sqrt(total / n + float32(eps))
    //   out[i]   = (x[i] * scale) * weight[i]
    // Where a row's result is NaN it is NaN in every build; its sign and payload are not part of the contract.
    void (*rms_norm)(const float* x, const float* weight, double eps, float* out, std::size_t rows, std::size_t n);
};

namespace generic {
extern const Kernels kernels;
}
#ifdef KARAT_X86
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
#endif

}  // namespace karat

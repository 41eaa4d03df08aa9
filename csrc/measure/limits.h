// The two limits of every kernel: reading memory and fused multiply-adds, as fast as one thread of a build can do
// either.
//
// The source is compiled once for each instruction set, as the kernels are (contract/kernels.h). Kernels that only
// measure have a table of their own; models do not use it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace karat {

// Bytes that each stream of a read is a multiple of.
inline constexpr std::size_t kReadStep = 256;

struct LimitKernels {
    // The XOR of all 64-bit words of `bytes` bytes, which are read once. They are cut into `streams` equal parts that
    // are read side by side, kReadStep bytes of each in turn; bytes / streams is a multiple of kReadStep, data aligned
    // to 64. Lines `ahead` bytes further on in the part are prefetched, none if it is 0.
    std::uint64_t (*read)(const std::uint64_t* data, std::size_t bytes, std::size_t streams, std::size_t ahead);
    // `rounds` times a step of every chain x = fma(x, factor, addend); the chains are independent, and enough of them
    // to hide the latency. Returns the sum of the chains, so that none is left out.
    float (*fma)(std::size_t rounds, float factor, float addend);
    std::size_t flops_per_round;  // a multiply-add counts as two
};

namespace generic {
extern const LimitKernels limit_kernels;
}
#ifdef KARAT_X86
namespace avx2 {
extern const LimitKernels limit_kernels;
}
namespace avx512 {
extern const LimitKernels limit_kernels;
}
#endif
#ifdef KARAT_ARM
namespace neon {
extern const LimitKernels limit_kernels;
}
#endif

}  // namespace karat

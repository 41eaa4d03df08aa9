// A kernel is written once, as phases between barriers: nvcc compiles it for the GPU, g++ as an emulation.
//
//     struct Kernel {
//         static constexpr int kThreads = 256;                   // of a block, at most
//         const float* x; ...                                    // its arguments
//         Grid grid() const { ... }                              // its blocks of threads
//         template <class Cta>
//         KARAT_INLINE void run(Cta& cta) const {                // what a block of threads does
//             auto parts = cta.template shared<float>(n);        // shared memory of the block, taken in order
//             PerThread<Cta, float> sum(cta);                    // a thread's own registers, kept between phases
//             cta.each([&](int thread) { ... });                 // a phase: every thread by itself
//             cta.sync();                                        // a barrier
//         }
//     };
//
// A kernel may have `ahead`, like `run`, for what reads nothing that a launch before writes: on a GPU it runs while
// that launch still computes.
//
// On the GPU `each` runs its argument for threadIdx.x, and `sync` is __syncthreads. The emulation finds what a GPU
// leaves to chance:
//
// - `each` runs the threads of a block one after the other in a random order, and blocks come in a random order.
// - A word of shared memory that two threads touch between two barriers, one of them writing, is an error (Race),
//   whatever the values.
// - Shared memory and registers begin as NaN. A copy that was begun arrives where it is waited for; until then its
//   place is NaN, too.
// - A load or a store at an address that is not a multiple of its size is an error, in shared and in global memory.
// - A block of more threads than its kernel is compiled for is an error.
// - A sum on tensor cores that they might round is an error (Inexact). One of 16 outputs is looked at, by chance.
//
// It does not see races between blocks, nor the order of launches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/host.h"

namespace karat::gpu {

struct Grid {
    int x, y, threads;
    std::size_t shared_bytes;
};

// sum + the four products of signed bytes of `digits` and unsigned bytes of `codes`.
KARAT_INLINE std::int32_t dot4(std::uint32_t digits, std::uint32_t codes, std::int32_t sum) {
#if defined(__CUDACC__)
    std::int32_t result;
    asm("dp4a.s32.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(digits), "r"(codes), "r"(sum));
    return result;
#else
    for (int at = 0; at < 32; at += 8)
        sum += static_cast<std::int8_t>(digits >> at & 255) * static_cast<std::int32_t>(codes >> at & 255);
    return sum;
#endif
}

KARAT_INLINE float float_of_int(std::int32_t i) { return static_cast<float>(i); }

KARAT_INLINE std::int32_t nearest(float f) {  // of even ones in ties; |f| < 2^23
#if defined(__CUDACC__)
    return __float2int_rn(f);
#else
    return static_cast<std::int32_t>(__builtin_nearbyintf(f));
#endif
}

// The sum of 16 lanes, in the first one: folded in halves.
template <int kHalf = 8>
KARAT_INLINE void fold(float (&lanes)[16]) {
#pragma unroll
    for (int lane = 0; lane < kHalf; ++lane) lanes[lane] = lanes[lane] + lanes[lane + kHalf];
    if constexpr (kHalf > 1) fold<kHalf / 2>(lanes);
}

KARAT_INLINE float square_root(float f) {
#if defined(__CUDACC__)
    return __fsqrt_rn(f);
#else
    return __builtin_sqrtf(f);
#endif
}

// What a lane has of a warp's product of 16 rows and 8 tokens over 16 columns, whose sums of products are added to
// `sums` (mma.m16n8k16 of PTX). Lane 4 g + t has four columns, of rows g and g + 8 and of token g, and the sums of rows
// g, g, g + 8, g + 8 with tokens 2 t, 2 t + 1, 2 t, 2 t + 1. The order of columns is the caller's.
//
// Tensor cores cut numbers off that are far below the largest: a sum is exact, in any order, where all products are
// multiples of a number of which the sum of their magnitudes is at most 2^24.
struct FourHalves;
struct Product {
    const FourHalves &row, &row_8_on, &token;
    float (&sums)[4];
};

// What a kernel may do before the launches before it have ended, if it has something: `ahead` asks for weights.
template <class Kernel, class Cta>
KARAT_INLINE void ahead_of(const Kernel& kernel, Cta& cta) {
    if constexpr (requires { kernel.ahead(cta); }) kernel.ahead(cta);
}

// *at becomes the least of itself and `value`, whoever else does so.
KARAT_INLINE void keep_least(std::uint64_t* at, std::uint64_t value) {
#if defined(__CUDACC__)
    atomicMin(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
#else
    *at = value < *at ? value : *at;
#endif
}

}  // namespace karat::gpu

#if defined(__CUDACC__)
#include "gpu/simt_cuda.h"
#else
#include "gpu/simt_emulated.h"
#endif

// What kernels and those who launch them have in common.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/lane.h"

#if defined(__CUDACC__)
#define KARAT_HOST __host__
#else
#define KARAT_HOST
#endif

namespace karat::gpu {

struct alignas(16) U4 { std::uint32_t v[4]; };

// Multiples of `size` that hold `number`.
KARAT_HOST constexpr KARAT_INLINE int pieces(int number, int size) { return (number + size - 1) / size; }

// The pointer, of which nvcc is told that it is of global memory: its loads are then faster.
template <class T>
KARAT_INLINE T* in_global(T* p) {
#if defined(__CUDACC__)
    __builtin_assume(__isGlobal(p));
#endif
    return p;
}

}  // namespace karat::gpu

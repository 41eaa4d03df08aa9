// The search for the scales of K formats: what src/karat/quant/k_fit.py computes, operation by operation, with the same
// bits. Compiled once for each instruction set, as the kernels are (kernels.h), into a table of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace karat {

// Groups are held as they lie in a row: values and integers [groups, size], scales and minimums [groups].
struct FitKernels {
    // Groups of 32 as scale * integer - minimum, integers from 0 to largest.
    void (*with_minimum)(const float* values, std::size_t groups, float largest, float first, float step, int num_steps,
                         float* scales, float* minimums, std::int8_t* integers);
    // Groups of 16 as scale * integer, integers from -largest to largest - 1.
    void (*symmetric)(const float* values, std::size_t groups, float largest, float* scales, std::int8_t* integers);
};

namespace generic {
extern const FitKernels fit_kernels;
}
#ifdef KARAT_X86
namespace avx2 {
extern const FitKernels fit_kernels;
}
namespace avx512 {
extern const FitKernels fit_kernels;
}
#endif
#ifdef KARAT_ARM
namespace neon {
extern const FitKernels fit_kernels;
}
#endif

}  // namespace karat

// The searches for the scales of K formats and of uneven levels: what src/karat/quant/k_fit.py and level_fit.py
// compute, operation by operation, with the same bits. Compiled once for each instruction set, as the kernels are
// (kernels.h), into a table of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace karat {

// Groups are held as they lie in a row: values and integers [groups, size], scales and minimums [groups].
struct FitKernels {
    // Groups of 32, or of 16 if `absolute`, as scale * integer - minimum, integers from 0 to largest.
    void (*with_minimum)(const float* values, std::size_t groups, float largest, float first, float step, int num_steps,
                         bool absolute, float* scales, float* minimums, std::int8_t* integers);
    // Groups of 16 as scale * integer, integers from -largest to largest - 1.
    void (*symmetric)(const float* values, std::size_t groups, float largest, float* scales, std::int8_t* integers);
    // The same by another search, an integer in turn.
    void (*in_turn)(const float* values, std::size_t groups, float largest, float* scales, std::int8_t* integers);
    // Scales of groups of 32 as scale * level, of 16 rising levels.
    void (*levels)(const float* values, std::size_t groups, const float* levels, int num_steps, float* scales);
    // The number of the level that is nearest to each value times its group's inverse.
    void (*nearest_levels)(const float* values, std::size_t groups, const float* levels, const float* inverses,
                           std::int8_t* chosen);
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

// The constants that attention and the kernels of stored floats are tuned with: one header a build.
//
// None of them changes a bit of a result: they say how many values a core works on at a time, and what it reads ahead.
// Each value's comment names the measurement that chose it; benchmarks/log.md has it under that date. Layers on
// integers have constants of their own (tuning_integers.h).
#pragma once

#include <cstddef>

#include "simd/simd.h"

namespace karat::KARAT_ISA_NAMESPACE {

struct Tuning {
    // A tile multiplies unpacked weights, keys or values (tile.h).
    int tile_rows;     // rows of x, or of queries
    int tile_vectors;  // vectors of 16 outputs

    // A direct pass multiplies what is stored without unpacking it first.
    int direct_rows;     // rows of x, or of queries; 1: this build has no direct passes
    int direct_vectors;  // vectors of 16 outputs

    int exp_vectors;  // vectors of 16 values in one call of exp

    int delta_vectors;  // vectors of 16 columns of a state that the delta rule computes together: 1, 2 or 4

    std::size_t attention_rows;  // rows (query heads of tokens) that share an unpacked key
    std::size_t unpacked_keys;   // keys unpacked at a time; a multiple of 16 * tile_vectors
    std::size_t near_bytes;      // bytes of K or V that several direct passes find in the first-level cache

    std::size_t few_float_tokens;   // tokens up to which layers of stored floats take direct passes; 0: none
    std::size_t float_bytes_ahead;  // bytes from what one token multiplies to the line that is prefetched; 0: none

    bool two_streams;         // one token reads two panels side by side, and pages are announced
    bool first_tile_unpacks;  // of many tokens the first tile of a chunk unpacks it, in wide panels
    bool tile_fetches_next;   // a tile of many tokens prefetches the next one's rows of x and sums
};

}  // namespace karat::KARAT_ISA_NAMESPACE

#if defined(KARAT_OF_INTEL)
#include "simd/tuning_avx512_intel.h"
#elif defined(KARAT_AVX512)
#include "simd/tuning_avx512.h"
#elif defined(KARAT_AVX2)
#include "simd/tuning_avx2.h"
#elif defined(KARAT_NEON)
#include "simd/tuning_neon.h"
#else
#include "simd/tuning_generic.h"
#endif

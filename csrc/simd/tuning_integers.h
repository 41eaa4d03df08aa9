// The constants that linear layers on integers (kernels/integer*) are tuned with: one header a build. A header states
// its build's figures, or by how much they differ from those of another. None of them changes a bit of a result.
//
// A figure is of the processors that choose the build by themselves (runtime/isa.cpp): avx2 is chosen by AMD's up to
// Zen 3 and Intel's up to Comet Lake, avx512-vnni by AMD's from Zen 4 on, the others by Intel's alone.
#pragma once

#include <cstddef>

#include "simd/simd.h"

namespace karat::KARAT_ISA_NAMESPACE {

inline constexpr std::size_t kNever = static_cast<std::size_t>(-1);

// Arrays go by the digits of a column: [1] int8, [2] int16, [3] int24.
struct IntegerTuning {
    // A tile of many tokens multiplies unpacked codes: as many accumulators as the registers hold.
    int tile_tokens;
    int tile_groups;

    // A pass multiplies codes as they are read.
    int pass_tokens[4];    // tokens at a time; 0: this build has no passes
    int direct_tokens[4];  // tokens up to which layers take passes
    int pass_groups;       // groups of 16 rows at a time, where all tokens' sums are at most `pass_sums`; else half
    int pass_sums;
    int long_pass_groups;  // groups at a time, of one token in blocks of more than 32 bytes

    // Layers of more rows multiply q as it is, in words of 16 bits (dot.h), instead of its digits.
    std::size_t rows_of_digits[4];

    // What a pass reads ahead: of blocks of 32 columns so many bytes, of blocks of 256 so many blocks, and so many
    // bytes into the second-level cache besides, or 0.
    Into short_into;
    std::size_t short_bytes_ahead;
    std::size_t byte_scaled_far;  // of MXFP4 instead: bytes into the second-level cache; 0: as others
    Into long_into;
    std::size_t long_blocks_ahead;
    std::size_t long_bytes_far;
};

}  // namespace karat::KARAT_ISA_NAMESPACE

#if defined(KARAT_AVX512) && defined(KARAT_OF_INTEL)
#include "simd/tuning_integers_avx512_intel.h"
#define KARAT_INTEGER_TUNING kIntegerTuningAvx512Intel
#elif defined(KARAT_AVX512) && defined(__AVX512VNNI__)
#include "simd/tuning_integers_avx512_vnni.h"
#define KARAT_INTEGER_TUNING kIntegerTuningAvx512Vnni
#elif defined(KARAT_AVX512)
#include "simd/tuning_integers_avx512.h"
#define KARAT_INTEGER_TUNING kIntegerTuningAvx512
#elif defined(KARAT_AVX2) && defined(__AVXVNNI__)
#include "simd/tuning_integers_avx2_vnni.h"
#define KARAT_INTEGER_TUNING kIntegerTuningAvx2Vnni
#elif defined(KARAT_AVX2)
#include "simd/tuning_integers_avx2.h"
#define KARAT_INTEGER_TUNING kIntegerTuningAvx2
#elif defined(KARAT_NEON) && defined(__ARM_FEATURE_DOTPROD)
#include "simd/tuning_integers_neon_dotprod.h"
#define KARAT_INTEGER_TUNING kIntegerTuningNeonDotprod
#else
#include "simd/tuning_integers_generic.h"
#define KARAT_INTEGER_TUNING kIntegerTuningGeneric
#endif

namespace karat::KARAT_ISA_NAMESPACE {

inline constexpr IntegerTuning kIntegerTuning = KARAT_INTEGER_TUNING;

}  // namespace karat::KARAT_ISA_NAMESPACE

// Integers of the build avx2-vnni: as avx2, but with VNNI. Only Intel's cores have that without AVX-512.
#pragma once

#include "simd/tuning_integers_avx2.h"

namespace karat::KARAT_ISA_NAMESPACE {

constexpr IntegerTuning kIntegerTuningAvx2Vnni = [] {
    IntegerTuning tuning = kIntegerTuningAvx2;
    // VNNI leaves digits a shift and a zero point a sub-block, words take twice the time to unpack: 16 tokens 0.98
    // times as fast by words, 24 tokens 1.01 (25 November, night, with AVX-512).
    tuning.rows_of_digits[2] = 16;
    return tuning;
}();

}  // namespace karat::KARAT_ISA_NAMESPACE

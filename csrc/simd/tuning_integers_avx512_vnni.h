// Integers of the build avx512-vnni: as avx512, but with VNNI, and on AMD's cores. Measured on Zen 5.
#pragma once

#include "simd/tuning_integers_avx512.h"

namespace karat::KARAT_ISA_NAMESPACE {

constexpr IntegerTuning kIntegerTuningAvx512Vnni = [] {
    IntegerTuning tuning = kIntegerTuningAvx512;
    // VNNI leaves digits a shift and a zero point a sub-block, words take twice the time to unpack: 16 tokens 0.98
    // times as fast by words, 24 tokens 1.01 (25 November, night).
    tuning.rows_of_digits[2] = 16;
    // Past the second-level cache, whose own reading ahead these lines disturb: 2 KiB ahead into the first-level cache
    // -> 4 KiB ahead past the second: Q4_0 75 -> 82 GB/s; 6 KiB: Q5_0 70 -> 82, Q8_0 75 -> 80; 8 KiB: 78 (26 November).
    tuning.short_into = Into::first_level_once;
    return tuning;
}();

}  // namespace karat::KARAT_ISA_NAMESPACE

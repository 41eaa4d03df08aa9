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
    // Zen 4 multiplies MXFP4 as fast as memory gives it, at 27.7 GB/s a thread, and waits least for lines that are in
    // the second-level cache already: one thread 23.8 -> 26.9, two 46.5 -> 51.2. IQ4_NL (41.8), Q4_1, Q5_0, Q5_1 and
    // Q8_0 are slower so (28 November). Never measured on Zen 5.
    tuning.byte_scaled_far = 32768;
    // Zen 4 reads no further ahead by itself, and what the first-level cache may wait for does not hide memory: one
    // thread's Q4_K 14.5 -> 26.5 GB/s, Q6_K 13.6 -> 25.5, two threads' Q4_K 28 -> 51 where memory gave 54 and 25 -> 31
    // where it gave 34; 16 and 64 KiB are the same within 3 % (28 November). Never measured on Zen 5.
    tuning.long_bytes_far = 32768;
    return tuning;
}();

}  // namespace karat::KARAT_ISA_NAMESPACE

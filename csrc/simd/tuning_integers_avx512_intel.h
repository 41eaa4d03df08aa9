// Integers of the build avx512-intel: as avx512, but with VNNI. It shares the kernel of many tokens with avx512-vnni,
// so it differs from that in what passes read ahead and in nothing else.
#pragma once

#include "simd/tuning_integers_avx512_vnni.h"

namespace karat::KARAT_ISA_NAMESPACE {

constexpr IntegerTuning kIntegerTuningAvx512Intel = [] {
    IntegerTuning tuning = kIntegerTuningAvx512Vnni;
    tuning.short_into = kIntegerTuningAvx512.short_into;
    tuning.byte_scaled_far = kIntegerTuningAvx512.byte_scaled_far;
    tuning.long_bytes_far = kIntegerTuningAvx512.long_bytes_far;
    return tuning;
}();

}  // namespace karat::KARAT_ISA_NAMESPACE

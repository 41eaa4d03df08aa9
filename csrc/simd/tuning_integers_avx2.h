// Integers of the build avx2: 16 registers of 8 lanes, sums of 16 bits. Measured on Zen 5 unless it says otherwise.
#pragma once

namespace karat::KARAT_ISA_NAMESPACE {

constexpr IntegerTuning kIntegerTuningAvx2 = {
    // 10 of 16 registers accumulate. Never measured apart.
    .tile_tokens = 5,
    .tile_groups = 1,
    // Registers for no more.
    .pass_tokens = {0, 3, 3, 1},
    .direct_tokens = {0, 3, 3, 1},
    .pass_groups = 1,
    .pass_sums = 24,
    .long_pass_groups = 1,
    // Digits only while a pass reads them: above, words need no sums of digits (25 November).
    .rows_of_digits = {kNever, kNever, 3, kNever},
    // Zen 3 is indifferent: past the second-level cache or into it, 2, 4 or 6 KiB ahead are the same within 2 %, for
    // one
    // token and for three of Q4_0, Q8_0, Q5_0; without any, Q8_0 has 0.4 times. Intel's cores are not: past it, a token
    // of Q4_0 takes 1.4 times as long (both 26 November; the latter with AVX-512).
    .short_into = Into::second_level,
    .short_bytes_ahead = 6144,
    .byte_scaled_far = 0,
    // Zen 3 is as indifferent (26 November).
    .long_into = Into::first_level,
    .long_blocks_ahead = 2,
    .long_bytes_far = 0,
};

}  // namespace karat::KARAT_ISA_NAMESPACE

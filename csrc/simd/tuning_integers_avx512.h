// Integers of the build avx512: 32 registers of 16 lanes, sums of 16 bits. Without VNNI only Intel's cores choose it;
// measured on Zen 5, but for what is said to be Intel's.
#pragma once

namespace karat::KARAT_ISA_NAMESPACE {

constexpr IntegerTuning kIntegerTuningAvx512 = {
    // 24 of 32 registers accumulate. Never measured apart.
    .tile_tokens = 6,
    .tile_groups = 4,
    // Q4_0, 4 to 9 tokens: a fourth token at a time helps one digit and not two (24 November).
    .pass_tokens = {0, 4, 3, 1},
    .direct_tokens = {0, 8, 6, 1},
    .pass_groups = 4,
    .pass_sums = 24,
    // One token waits for memory, which gives more where long blocks are read group by group: Q4_K 39.5 -> 46.6 GB/s,
    // Q5_K 60 -> 75, Q8_0 65 -> 73; Q4_0 72 -> 67 (two cores, 25 November, night).
    .long_pass_groups = 1,
    // Digits only while a pass reads them, as avx2.
    .rows_of_digits = {kNever, kNever, 6, kNever},
    // Intel's cores: decode of the 0.5B in Q4_0 50 -> 70 tok/s beside past the second-level cache, which is 0.49 and
    // 0.7
    // to 0.8 of reading (26 November, with VNNI). Their own prefetcher reads ahead in that cache.
    .short_into = Into::second_level,
    .short_bytes_ahead = 6144,
    .byte_scaled_far = 0,
    // Instead of the second-level cache: Q4_K 74 -> 85 GB/s, Q6_K 77 -> 87; one block ahead is the same (26 November).
    .long_into = Into::first_level,
    .long_blocks_ahead = 2,
    .long_bytes_far = 0,
};

}  // namespace karat::KARAT_ISA_NAMESPACE

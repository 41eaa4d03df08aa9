// Integers of the builds neon-dotprod and neon-i8mm: 32 registers of 4 lanes. Nothing was measured: the bits were
// compared in an emulator.
#pragma once

namespace karat::KARAT_ISA_NAMESPACE {

constexpr IntegerTuning kIntegerTuningNeonDotprod = {
    // 16 of 32 registers accumulate; with 24 of them codes and digits are spilled.
    .tile_tokens = 4,
    .tile_groups = 1,
    .pass_tokens = {0, 3, 2, 1},
    .direct_tokens = {0, 3, 2, 1},
    .pass_groups = 1,
    .pass_sums = 24,
    .long_pass_groups = 1,
    .rows_of_digits = {kNever, kNever, kNever, kNever},
    .short_into = Into::second_level,
    .short_bytes_ahead = 6144,
    .byte_scaled_far = 0,
    .long_into = Into::first_level,
    .long_blocks_ahead = 2,
    .long_bytes_far = 0,
};

}  // namespace karat::KARAT_ISA_NAMESPACE

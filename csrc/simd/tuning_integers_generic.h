// Integers of the builds generic and neon: loops. Nothing was measured.
#pragma once

namespace karat::KARAT_ISA_NAMESPACE {

constexpr IntegerTuning kIntegerTuningGeneric = {
    .tile_tokens = 1,
    .tile_groups = 1,
    .pass_tokens = {},  // a pass is compiled for half a minute
    .direct_tokens = {},
    .pass_groups = 1,
    .pass_sums = 1,
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

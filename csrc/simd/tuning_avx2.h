// Tuning of the build avx2: 16 registers of 8 floats, two for each vector of 16, measured on Zen 4.
#pragma once

namespace karat::KARAT_ISA_NAMESPACE {

constexpr Tuning kTuning = {
    // 12 of 16 registers accumulate. Never measured apart.
    .tile_rows = 6,
    .tile_vectors = 1,
    // As a tile. F16 of four tokens 59 -> 95 GFLOP/s, attention of one token 5.6 -> 10.8 GB/s (23 and 24 November).
    .direct_rows = 6,
    .direct_vectors = 1,
    // Registers for no more. Attention of 512 tokens 75 -> 83 GFLOP/s (22 November).
    .exp_vectors = 2,
    // 14 of 16 registers; 2 would keep sums in memory.
    .delta_vectors = 1,
    // As avx512, whose measurement this is.
    .attention_rows = 128,
    // Instead of 64: 1.01 times as fast; 256 the same (25 November, night, on Zen 5).
    .unpacked_keys = 128,
    // Half of the first-level cache, as avx512 (24 November).
    .near_bytes = 16384,
    // Two direct passes: the 0.5B in f16 135 -> 153 to 176 tok/s; three gain nothing (23 November).
    .few_float_tokens = 12,
    // As avx512, whose measurement this is.
    .float_bytes_ahead = 3072,
    // As avx512, whose measurements these are.
    .two_streams = false,
    .first_tile_unpacks = false,
    .tile_fetches_next = false,
};

}  // namespace karat::KARAT_ISA_NAMESPACE

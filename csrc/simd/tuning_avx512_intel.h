// Tuning of the build avx512-intel: linear layers on cores whose 512-bit arithmetic shares two ports, measured on
// Sapphire Rapids. Its attention is that of the build avx512, whose figures stand below for what this build does not
// use.
#pragma once

namespace karat::KARAT_ISA_NAMESPACE {

constexpr Tuning kTuning = {
    // 24 of 32 registers accumulate. At most 87 % of the peak; 9 x 48 85, 13 x 32 83, 8 x 48 84 (22 November).
    .tile_rows = 6,
    .tile_vectors = 4,
    .direct_rows = 8,
    .direct_vectors = 2,
    .exp_vectors = 4,
    // As for avx512; not measured apart.
    .delta_vectors = 4,
    .attention_rows = 128,
    .unpacked_keys = 128,
    .near_bytes = 16384,
    // The first tile of a chunk unpacks it and multiplies at once, also for a few tokens: no direct passes
    // (22 November).
    .few_float_tokens = 0,
    // F16: 38.5 -> 33.1 ms a step; 1, 3 and 4 KiB are the same within 2 % (23 November).
    .float_bytes_ahead = 2048,
    // Two streams are read faster than one (22 November, pages).
    .two_streams = true,
    // A few tokens would wait for an unpacking of its own, whose ports multiply-adds share (22 November).
    .first_tile_unpacks = true,
    // What else comes from the third-level cache: 69 -> 81 % of the peak with x, and with sums (22 November).
    .tile_fetches_next = true,
};

}  // namespace karat::KARAT_ISA_NAMESPACE

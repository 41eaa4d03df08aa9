// Tuning of the build avx512: 32 registers of 16 floats, measured on Zen 4.
#pragma once

namespace karat::KARAT_ISA_NAMESPACE {

constexpr Tuning kTuning = {
    // 24 of 32 registers accumulate. GFLOP/s of a tile: 6 x 64 104.5 and 5 x 64 as many, 4 x 64 91 (24 November,
    // night);
    // 3 x 64 88 of 110 (21 November).
    .tile_rows = 6,
    .tile_vectors = 4,
    // 16 registers accumulate, the others hide the reading. Batch 16: 72 -> 86 GFLOP/s (21 November).
    .direct_rows = 8,
    .direct_vectors = 2,
    // A chain of 60 cycles: four side by side fill the scheduler. Attention of 512 tokens 111 -> 130 GFLOP/s
    // (22 November).
    .exp_vectors = 4,
    // 12 of 32 registers are sums and changes. 1, 2 and 4: 89, 67 and 50 us a token of 32 heads (26 November).
    .delta_vectors = 4,
    // Instead of 96: a part of 110 -> 130 GFLOP/s; 192: 1.01 times 128 (22 November).
    .attention_rows = 128,
    // Two tiles of keys. Instead of 64: attention of 4,096 keys 1.035 times as fast with heads of 64, 1.01 with 80, the
    // same with 128; 256 the same (25 November, night, on Zen 5).
    .unpacked_keys = 128,
    // Half of the first-level cache. Whole splits of 256 keys instead: 0.86 times (24 November).
    .near_bytes = 16384,
    // Two direct passes. Batch 16: 72 -> 86 GFLOP/s (21 November, of Q4_0).
    .few_float_tokens = 16,
    // None: the core reads ahead of loads in one stream by itself, and prefetches disturb it. 3 KiB -> none, one
    // thread's
    // BF16 29.8 -> 33.7 GB/s, F16 29.5 -> 33.6, F32 32.3 -> 33.2 where reading alone has 34.5 (28 November).
    .float_bytes_ahead = 0,
    // Two panels at a time: the same (23 November).
    .two_streams = false,
    // Never measured apart.
    .first_tile_unpacks = false,
    // 0.98 to 1.0 times (23 November).
    .tile_fetches_next = false,
};

}  // namespace karat::KARAT_ISA_NAMESPACE

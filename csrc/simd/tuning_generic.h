// Tuning of the build generic: vectors of 16 are arrays. Nothing was measured: it runs where no other build does.
#pragma once

namespace karat::KARAT_ISA_NAMESPACE {

constexpr Tuning kTuning = {
    .tile_rows = 6,
    .tile_vectors = 1,
    .direct_rows = 1,
    .direct_vectors = 1,
    .exp_vectors = 2,
    // Never measured.
    .delta_vectors = 1,
    .attention_rows = 128,
    .unpacked_keys = 64,
    .near_bytes = 16384,
    .few_float_tokens = 0,
    .float_bytes_ahead = 3072,
    .two_streams = false,
    .first_tile_unpacks = false,
    .tile_fetches_next = false,
};

}  // namespace karat::KARAT_ISA_NAMESPACE

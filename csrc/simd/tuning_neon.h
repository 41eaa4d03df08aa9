// Tuning of the build neon: 32 registers of 4 floats, four for each vector of 16. Nothing was measured there: the bits
// were compared in an emulator.
#pragma once

namespace karat::KARAT_ISA_NAMESPACE {

constexpr Tuning kTuning = {
    .tile_rows = 6,
    .tile_vectors = 1,
    .direct_rows = 1,
    .direct_vectors = 1,
    .exp_vectors = 2,
    // 24 of 32 registers; never measured.
    .delta_vectors = 2,
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

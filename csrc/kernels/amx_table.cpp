// The table of linear layers of integers by tiles (kernels.h, IntegerKernels), and a trial of tiles. Layers of a few
// rows, which a tile would be mostly empty for, are those of another build.
#include "kernels/amx_rows.h"
#include "simd/tiles.h"

#if !defined(KARAT_FEW_ROWS)
#define KARAT_FEW_ROWS avx512_vnni_intel
#endif

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

const IntegerKernels& few_rows = KARAT_FEW_ROWS::integer_kernels;

bool by_tiles(Activations activations, std::size_t rows) {
    return rows > kMostRowsWithoutTiles[static_cast<int>(activations)];
}

std::size_t any_scratch_bytes() {
    const std::size_t few = few_rows.scratch_bytes(), many = tile_scratch_bytes();
    return few > many ? few : many;
}

std::size_t row_bytes(Activations activations, std::size_t columns) {
    constexpr std::size_t kBlock[] = {0, kTileBlockBytes<1>, kTileBlockBytes<2>, kTileBlockBytes<3>};
    return columns / kDigitColumns * kBlock[static_cast<int>(activations)] + kTileRowBytes;
}

void quantise_any(Activations activations, const float* x, std::size_t rows, std::size_t columns, std::size_t first,
                  std::size_t last, std::uint8_t* out) {
    (by_tiles(activations, rows) ? quantise_for_tiles : few_rows.quantise)(activations, x, rows, columns, first, last,
                                                                           out);
}

void linear_of_integers(const LinearArgs& a, std::size_t first, std::size_t last, float* scratch) {
    (by_tiles(a.activations, a.digits_rows) ? many_tokens_by_tiles : few_rows.linear)(a, first, last, scratch);
}

}  // namespace

const IntegerKernels integer_kernels = {
    .scratch_bytes = any_scratch_bytes,
    .panels_at_once = kPanelsAtOnce,
    .row_bytes = row_bytes,
    .quantise = quantise_any,
    .linear = linear_of_integers,
};

bool tiles_multiply() {
    alignas(64) std::uint16_t ones[512];
    alignas(64) float sums[256];
    for (std::uint16_t& one : ones) one = 0x3f80;
    Tiles<32, 6> tiles;
    tiles.zero<0>();
    tiles.load_x<4>(reinterpret_cast<const std::uint8_t*>(ones));
    tiles.load_codes<6>(reinterpret_cast<const std::uint8_t*>(ones));
    tiles.multiply<0, 4, 6>();
    tiles.store<0>(sums);
    tiles.release();
    for (const float sum : sums)
        if (sum != 32) return false;
    return true;
}

}  // namespace karat::KARAT_ISA_NAMESPACE

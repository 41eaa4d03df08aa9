// The table of linear layers of integers by tiles (kernels.h, IntegerKernels), and a trial of tiles. Layers of a few
// rows, which a tile would be mostly empty for, are those of another build, and so are rows with powers that are too
// large to be in x.
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
    if (!by_tiles(activations, rows)) return few_rows.quantise(activations, x, rows, columns, first, last, out);
    quantise_for_tiles(activations, x, rows, columns, first, last, out);
    if (activations != Activations::int16) return;
    const RowsOfTiles<2> to(out, rows, columns);
    for (std::size_t row = first; row < last; ++row)
        if (to.is_large(row)) few_rows.quantise(activations, x + row * columns, 1, columns, 0, 1, to.by_itself(row));
}

// Tokens first … last - 1 of a layer.
LinearArgs some_tokens(LinearArgs a, std::size_t first, std::size_t last) {
    a.tokens = last - first;
    return from_token(a, first);
}

void quantise_row_any(Activations activations, const float* x, std::size_t columns, DigitsPlace* places,
                      std::size_t count) {
    std::size_t num_tiles = 0;  // places of layers by tiles, which go to the front
    for (std::size_t i = 0; i < count; ++i)
        if (by_tiles(activations, places[i].rows)) {
            const DigitsPlace place = places[i];
            places[i] = places[num_tiles];
            places[num_tiles++] = place;
        }
    if (num_tiles > 0) quantise_row_for_tiles(activations, x, columns, places, num_tiles);
    for (std::size_t i = 0; i < num_tiles && activations == Activations::int16; ++i) {
        const RowsOfTiles<2> to(places[i].out, places[i].rows, columns);
        if (to.is_large(places[i].row))
            few_rows.quantise(activations, x, 1, columns, 0, 1, to.by_itself(places[i].row));
    }
    if (num_tiles < count) few_rows.quantise_row(activations, x, columns, places + num_tiles, count - num_tiles);
}

void linear_of_integers(const LinearArgs& a, std::size_t first, std::size_t last, float* scratch) {
    if (!by_tiles(a.activations, a.digits_rows)) return few_rows.linear(a, first, last, scratch);
    if (a.activations != Activations::int16) return many_tokens_by_tiles(a, first, last, scratch);
    const RowsOfTiles<2> x(const_cast<std::uint8_t*>(a.digits), a.digits_rows, a.weight->columns);
    for (std::size_t token = 0, end; token < a.tokens; token = end) {
        end = token + 1;
        if (x.is_large(a.first_row + token)) {
            LinearArgs some = some_tokens(a, token, end);
            some.digits = x.by_itself(some.first_row);
            some.digits_rows = 1, some.first_row = 0;
            few_rows.linear(some, first, last, scratch);
        } else {
            while (end < a.tokens && !x.is_large(a.first_row + end)) ++end;
            many_tokens_by_tiles(some_tokens(a, token, end), first, last, scratch);
        }
    }
}

}  // namespace

const IntegerKernels integer_kernels = {
    .scratch_bytes = any_scratch_bytes,
    .panels_at_once = kPanelsAtOnce,
    .row_bytes = row_bytes,
    .quantise = quantise_any,
    .quantise_row = quantise_row_any,
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

// The kernels with tiles, emulated where the processor has none, for integer_digest: no call may leave tiles in use.
#include "amx_emulator.h"
#include "check.h"
#include "contract/kernels.h"

namespace karat::avx512_amx_released {
namespace {

[[maybe_unused]] const bool begun = [] {
    CHECK(emulated::begin());
    return true;
}();

void linear(const LinearArgs& args, std::size_t first, std::size_t last, float* scratch) {
    avx512_amx::integer_kernels.linear(args, first, last, scratch);
    CHECK(!emulated::in_use());
}

std::size_t scratch_bytes() { return avx512_amx::integer_kernels.scratch_bytes(); }
std::size_t row_bytes(Activations activations, std::size_t columns) {
    return avx512_amx::integer_kernels.row_bytes(activations, columns);
}
void quantise(Activations activations, const float* x, std::size_t rows, std::size_t columns, std::size_t first,
              std::size_t last, std::uint8_t* out) {
    avx512_amx::integer_kernels.quantise(activations, x, rows, columns, first, last, out);
}
void quantise_row(Activations activations, const float* x, std::size_t columns, DigitsPlace* places,
                  std::size_t count) {
    avx512_amx::integer_kernels.quantise_row(activations, x, columns, places, count);
}

}  // namespace

extern const IntegerKernels integer_kernels = {scratch_bytes, 1, row_bytes, quantise, quantise_row, linear};

}  // namespace karat::avx512_amx_released

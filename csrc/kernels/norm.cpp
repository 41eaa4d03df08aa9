// Norms of rows: RMSNorm and that of Euclid (kernels.h). Compiled once for each instruction set: KARAT_ISA_NAMESPACE is
// set by the build.
#include "kernels/kernels_isa.h"
#include "simd/simd.h"

namespace karat::KARAT_ISA_NAMESPACE {

float square_sum(const float* x, std::size_t n) {
    float lane[kLanes] = {};
    const std::size_t whole = n - n % kLanes;
    for (std::size_t i = 0; i < whole; i += kLanes)
        for (std::size_t l = 0; l < kLanes; ++l) lane[l] = __builtin_fmaf(x[i + l], x[i + l], lane[l]);
    for (std::size_t l = 0; l < n - whole; ++l) lane[l] = __builtin_fmaf(x[whole + l], x[whole + l], lane[l]);
    for (std::size_t half = kLanes / 2; half > 0; half /= 2)
        for (std::size_t l = 0; l < half; ++l) lane[l] = lane[l] + lane[l + half];
    return lane[0];
}

void part_norm(const float* x, const float* weight, float total, std::size_t count, double eps, float* out,
               std::size_t n) {
    const float scale = 1.0f / __builtin_sqrtf(total / static_cast<float>(count) + static_cast<float>(eps));
    for (std::size_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

void rms_norm(const float* x, const float* weight, double eps, float* out, std::size_t rows, std::size_t n) {
    for (std::size_t row = 0; row < rows; ++row, x += n, out += n)
        part_norm(x, weight, square_sum(x, n), n, eps, out, n);
}

void l2_norm(const float* x, double eps, float factor, float* out, std::size_t rows, std::size_t n) {
    for (std::size_t row = 0; row < rows; ++row, x += n, out += n) {
        const float scale = 1.0f / __builtin_sqrtf(square_sum(x, n) + static_cast<float>(eps));
        for (std::size_t i = 0; i < n; ++i) out[i] = x[i] * scale * factor;
    }
}

}  // namespace karat::KARAT_ISA_NAMESPACE

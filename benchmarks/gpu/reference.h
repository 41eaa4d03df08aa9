// The contract's own loop, on the host: one leaf of one output. For the driver; test_emulated.py holds it to
// karat.ops.integers. The matrix has wide panels only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

inline float half_value(std::uint16_t h) {
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    const float value = exponent ? std::ldexp(1024.0f + static_cast<float>(mantissa), exponent - 25)
                                 : std::ldexp(static_cast<float>(mantissa), -24);
    return h & 0x8000 ? -value : value;
}

inline float leaf_of_contract(const std::uint8_t* w, const float* x, int columns, int row, int first_block,
                              int last_block) {
    float sum = 0;
    for (int block = first_block; block < last_block; ++block) {
        const float* const xs = x + block * 32;
        float largest = 0;
        for (int k = 0; k < 32; ++k) largest = std::max(largest, std::fabs(xs[k]));
        int e;
        (void)std::frexp(largest, &e);
        e -= 15;
        if (std::nearbyint(std::ldexp(static_cast<double>(largest), -e)) > 32639) ++e;
        e = std::max(e, -102);
        const std::uint8_t* const at = w + (static_cast<std::size_t>(row / 64) * (columns / 32) + block) * 1152;
        long long exact = 0;
        bool any = false;
        for (int k = 0; k < 32; ++k) {
            const int q = static_cast<int>(std::nearbyint(std::ldexp(static_cast<double>(xs[k]), -e)));
            any |= q != 0;
            const std::uint8_t byte = at[128 + 256 * (k % 16 / 4) + 4 * (row % 64) + k % 4];
            exact += ((k < 16 ? byte & 15 : byte >> 4) - 8) * static_cast<long long>(q);
        }
        std::uint16_t h;
        std::memcpy(&h, at + 2 * (row % 64), 2);
        sum = std::fmaf(static_cast<float>(exact), half_value(h) * (any ? std::ldexp(1.0f, e) : 1.0f), sum);
    }
    return sum;
}

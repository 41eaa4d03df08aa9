#include "kernels/sampling.h"

#include <algorithm>
#include <cstring>

namespace karat {
namespace {

constexpr std::size_t kStep = 16;                      // values looked at together
typedef float Lanes __attribute__((vector_size(16)));  // a register of any CPU

template <class To, class From>
To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// exp(x) for x <= 0, within an ulp: x = k ln 2 + r, the Taylor series of r, and two powers of two, since one has no
// subnormal results. Only operations that IEEE defines to the bit.
inline double exp_of(double x) {
    constexpr double kLog2E = 0x1.71547652b82fep+0, kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;
    constexpr double kRound = 0x1.8p52;  // adding it leaves an integer in the low bits
    constexpr double kLowest = -746;     // its exponential is 0
    x = x < kLowest ? kLowest : x;
    const double rounded = x * kLog2E + kRound, count = rounded - kRound;
    const double r = (x - count * kLn2High) - count * kLn2Low;
    double sum = 1.0 / 6227020800;
    sum = sum * r + 1.0 / 479001600;
    sum = sum * r + 1.0 / 39916800;
    sum = sum * r + 1.0 / 3628800;
    sum = sum * r + 1.0 / 362880;
    sum = sum * r + 1.0 / 40320;
    sum = sum * r + 1.0 / 5040;
    sum = sum * r + 1.0 / 720;
    sum = sum * r + 1.0 / 120;
    sum = sum * r + 1.0 / 24;
    sum = sum * r + 1.0 / 6;
    sum = sum * r + 0.5;
    sum = sum * r + 1.0;
    sum = sum * r + 1.0;
    const std::int32_t k = static_cast<std::int32_t>(bits_as<std::int64_t>(rounded)), half = k >> 1;
    const auto power = [](std::int32_t n) { return bits_as<double>(static_cast<std::int64_t>(n + 1023) << 52); };
    return sum * power(half) * power(k - half);
}

struct Largest {
    std::size_t index;
    bool is_finite;  // all values; true where nobody asked
};

// Finds the first of the largest values. With kCheck the same pass finds whether any value is not finite: x - x is 0
// for all others.
template <bool kCheck>
Largest first_largest(const float* x, std::size_t n) {
    constexpr std::size_t kBlock = 1024;
    std::size_t best = 0;  // where the block begins that had the largest value first
    float top = x[0];
    Lanes odd[4] = {};
    float odd_rest = 0;
    for (std::size_t start = 0; start < n; start += kBlock) {
        const std::size_t end = std::min(n, start + kBlock);
        Lanes tops[4];
        for (Lanes& lanes : tops) lanes = Lanes{} + x[start];
        std::size_t i = start;
        for (; i + kStep <= end; i += kStep) {
            __builtin_prefetch(x + i + kBlock);  // of a step's logits little is in this core's caches
            for (std::size_t j = 0; j < std::size(tops); ++j) {
                Lanes values;
                std::memcpy(&values, x + i + j * 4, sizeof values);
                tops[j] = values > tops[j] ? values : tops[j];
                if constexpr (kCheck) odd[j] += values - values;
            }
        }
        float largest = x[start];
        for (const Lanes& lanes : tops)
            for (int lane = 0; lane < 4; ++lane) largest = std::max(largest, lanes[lane]);
        for (; i < end; ++i) {
            largest = std::max(largest, x[i]);
            if constexpr (kCheck) odd_rest += x[i] - x[i];
        }
        if (top < largest) {
            top = largest;
            best = start;
        }
    }
    for (const Lanes& lanes : odd)
        for (int lane = 0; lane < 4; ++lane) odd_rest += lanes[lane];
    if (odd_rest != 0) return {0, false};  // NaN
    return {static_cast<std::size_t>(std::find(x + best, x + n, top) - x), true};
}

}  // namespace

std::size_t argmax(const float* x, std::size_t n) { return first_largest<false>(x, n).index; }

std::ptrdiff_t finite_argmax(const float* x, std::size_t n) {
    const Largest largest = first_largest<true>(x, n);
    return largest.is_finite ? static_cast<std::ptrdiff_t>(largest.index) : -1;
}

template <class T>
std::vector<std::int64_t> largest(const T* x, std::size_t n, std::size_t k) {
    struct Entry {
        T value;
        std::int64_t index;
    };
    const auto is_before = [](const Entry& a, const Entry& b) {
        return a.value > b.value || (a.value == b.value && a.index < b.index);
    };
    const std::size_t room = 2 * k + 1024;
    std::vector<Entry> kept;
    kept.reserve(room);
    T bound{};
    bool is_bounded = false;  // from when on k values are at least `bound`, so that a later one must be larger
    const auto shrink = [&] {
        std::nth_element(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(k - 1), kept.end(), is_before);
        kept.resize(k);
        bound = kept[k - 1].value;
        is_bounded = true;
    };
    for (std::size_t start = 0; start < n; start += kStep) {
        const std::size_t end = std::min(n, start + kStep);
        if (is_bounded && end - start == kStep) {
            bool any = false;
            for (std::size_t j = 0; j < kStep; ++j) any |= x[start + j] > bound;
            if (!any) continue;
        }
        for (std::size_t i = start; i < end; ++i) {
            if (is_bounded && !(x[i] > bound)) continue;
            kept.push_back({x[i], static_cast<std::int64_t>(i)});
            if (kept.size() == room) shrink();
        }
    }
    shrink();
    std::vector<std::int64_t> indices;
    indices.reserve(k);
    for (const Entry& entry : kept) indices.push_back(entry.index);
    std::sort(indices.begin(), indices.end());
    return indices;
}

template std::vector<std::int64_t> largest(const float*, std::size_t, std::size_t);
template std::vector<std::int64_t> largest(const double*, std::size_t, std::size_t);

template <class T>
void exp_weights(const T* x, std::size_t n, double top, double temperature, double* out) {
    for (std::size_t i = 0; i < n; ++i) out[i] = exp_of((static_cast<double>(x[i]) - top) / temperature);
}

template void exp_weights(const float*, std::size_t, double, double, double*);
template void exp_weights(const double*, std::size_t, double, double, double*);

double exp_sum(const float* x, std::size_t n, double top) {
    double sums[kExpSums] = {};
    std::size_t i = 0;
    for (; i + kExpSums <= n; i += kExpSums)
        for (std::size_t j = 0; j < kExpSums; ++j) sums[j] += exp_of(static_cast<double>(x[i + j]) - top);
    for (std::size_t j = 0; i + j < n; ++j) sums[j] += exp_of(static_cast<double>(x[i + j]) - top);
    for (std::size_t half = kExpSums / 2; half > 0; half /= 2)
        for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
    return sums[0];
}

}  // namespace karat

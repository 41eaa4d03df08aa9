// Sums and searches over a row of logits, for sampling: the same bits on every machine.
//
// karat.ops.rows says what each function gives and does the same in NumPy, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace karat {

// The first of the largest of n > 0 values, none of them NaN.
std::size_t argmax(const float* x, std::size_t n);

// The same of any values; -1 unless all are finite.
std::ptrdiff_t finite_argmax(const float* x, std::size_t n);

// The indices of the k largest of n >= k > 0 values, ascending; of equal ones the first. T is float or double.
template <class T>
std::vector<std::int64_t> largest(const T* x, std::size_t n, std::size_t k);

// out[i] = exp((x[i] - top) / temperature), for values up to `top`.
template <class T>
void exp_weights(const T* x, std::size_t n, double top, double temperature, double* out);

// The sum of exp(x[i] - top): eight partial sums of every eighth value, folded in halves.
inline constexpr std::size_t kExpSums = 8;
double exp_sum(const float* x, std::size_t n, double top);

}  // namespace karat

// The searches for the scales of K formats, sixteen groups at a time: see fit_isa.h.
#include "search/fit_isa.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

// To the nearest whole number, ties to even; of numbers below 2^22.
KARAT_INLINE f32x16 rounded(f32x16 a) {
    const f32x16 shift = set1(12582912.0f);
    return (a + shift) - shift;
}

KARAT_INLINE f32x16 square_root(f32x16 a) {
    alignas(64) float lanes[kLanes];
    store(lanes, a);
    for (float& lane : lanes) lane = __builtin_sqrtf(lane);
    return load(lanes);
}

template <int kSize, bool kAbsolute>
void sixteen_with_minimum(const float* values, std::size_t groups, float largest, float first, float step,
                          int num_steps, float* scales, float* minimums, std::int8_t* integers) {
    const Columns<kSize> x(values, groups);
    const f32x16 zero = set1(0.0f), one = set1(1.0f), top = set1(largest);
    f32x16 low = x[0], high = x[0], squares = x[0] * x[0];
    for (int i = 1; i < kSize; ++i) {
        low = least(low, x[i]);
        high = most(high, x[i]);
        squares = squares + x[i] * x[i];
    }
    low = least(low, zero);
    const mask16 has_range = low < high;  // never high < low
    high = select(has_range, high, low + one);
    const f32x16 root = kAbsolute ? zero : square_root(squares / set1(static_cast<float>(kSize)));
    alignas(64) float weights[kSize * kLanes], quants[kSize * kLanes];
    f32x16 sum_w = zero, sum_x = zero;
    for (int i = 0; i < kSize; ++i) {
        const f32x16 w = magnitude(x[i]) + root;
        store(weights + i * kLanes, w);
        sum_w = sum_w + w;
        sum_x = sum_x + w * x[i];
    }
    const auto quantised = [&](int i, f32x16 inverse, f32x16 minimum) {
        return most(least(rounded((x[i] - minimum) * inverse), top), zero);
    };
    const auto error = [&](f32x16 scale, f32x16 minimum) {
        f32x16 total = zero;
        for (int i = 0; i < kSize; ++i) {
            const f32x16 difference = load(quants + i * kLanes) * scale + minimum - x[i];
            const f32x16 counted = kAbsolute ? magnitude(difference) : difference * difference;
            total = total + load(weights + i * kLanes) * counted;
        }
        return total;
    };

    f32x16 inverse = top / (high - low), scale = one / inverse, minimum = low;
    f32x16 best_inverse = inverse, best_low = low;
    for (int i = 0; i < kSize; ++i) store(quants + i * kLanes, quantised(i, inverse, low));
    f32x16 best = error(scale, low);
    for (int number = 0; number <= num_steps; ++number) {
        const float steps = first + step * static_cast<float>(number) + largest;
        inverse = set1(steps) / (high - minimum);
        f32x16 sum_l = zero, sum_l2 = zero, sum_xl = zero;
        for (int i = 0; i < kSize; ++i) {
            const f32x16 q = quantised(i, inverse, minimum), product = load(weights + i * kLanes) * q;
            store(quants + i * kLanes, q);
            sum_l = sum_l + product;
            sum_l2 = sum_l2 + product * q;
            sum_xl = sum_xl + product * x[i];
        }
        const f32x16 determinant = sum_w * sum_l2 - sum_l * sum_l;
        const f32x16 free_minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        const f32x16 free_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        const f32x16 own_scale = select(zero < free_minimum, sum_xl / sum_l2, free_scale);
        const f32x16 own_minimum = least(free_minimum, zero);
        const f32x16 found = error(own_scale, own_minimum);
        const f32x16 limit = select(zero < determinant, best, set1(-1.0f));  // an error is never below zero
        const mask16 better = found < limit;
        best_inverse = select(better, inverse, best_inverse);
        best_low = select(better, minimum, best_low);
        scale = select(better, own_scale, scale);
        minimum = select(better, own_minimum, minimum);
        best = select(better, found, best);
    }
    for (int i = 0; i < kSize; ++i)
        put(select(has_range, quantised(i, best_inverse, best_low), zero), i, kSize, groups, integers);
    put(select(has_range, scale, zero), groups, scales);
    put(zero - select(has_range, minimum, low), groups, minimums);
}

void sixteen_symmetric(const float* values, std::size_t groups, float largest, float* scales, std::int8_t* integers) {
    constexpr int kSize = 16;
    const Columns<kSize> x(values, groups);
    const f32x16 zero = set1(0.0f), top = set1(largest - 1.0f), bottom = set1(-largest);
    f32x16 extreme = x.extreme();
    const mask16 is_zero = counts_as_zero(extreme);
    extreme = select(is_zero, set1(1.0f), extreme);
    const auto quantised = [&](int i, f32x16 inverse) { return most(least(rounded(x[i] * inverse), top), bottom); };
    f32x16 scale = zero, best = zero, best_inverse = zero;
    for (int step = 0; step < 19; ++step) {
        const int number = step == 0 ? 0 : step < 10 ? step - 10 : step - 9;  // 0, then -9 to -1 and 1 to 9
        const f32x16 inverse = set1(-(largest + 0.1f * static_cast<float>(number))) / extreme;
        f32x16 sum_xl = zero, sum_l2 = zero;
        for (int i = 0; i < kSize; ++i) {
            const f32x16 q = quantised(i, inverse), weight = x[i] * x[i];
            sum_xl = sum_xl + weight * x[i] * q;
            sum_l2 = sum_l2 + weight * q * q;
        }
        const mask16 is_fitted = zero < sum_l2;
        const f32x16 own = select(is_fitted, sum_xl / sum_l2, zero), gain = sum_xl * sum_xl;
        const f32x16 limit = best * sum_l2;
        const mask16 better = select(is_fitted, limit, gain) < gain;
        const auto taken = [&](f32x16 new_one, f32x16 old) {
            return step == 0 ? new_one : select(better, new_one, old);
        };
        best = taken(own * sum_xl, best);
        scale = taken(own, scale);
        best_inverse = taken(inverse, best_inverse);
    }
    for (int i = 0; i < kSize; ++i)
        put(select(is_zero, bottom, quantised(i, best_inverse)), i, kSize, groups, integers);
    put(select(is_zero, zero, scale), groups, scales);
}

void sixteen_in_turn(const float* values, std::size_t groups, float largest, float* scales, std::int8_t* integers) {
    constexpr int kSize = 16, kRounds = 5;
    const Columns<kSize> x(values, groups);
    const f32x16 zero = set1(0.0f), top = set1(largest - 1.0f), bottom = set1(-largest);
    f32x16 extreme = x.extreme();
    const mask16 is_zero = counts_as_zero(extreme);
    extreme = select(is_zero, set1(1.0f), extreme);
    alignas(64) float quants[kSize * kLanes];
    f32x16 sum_xl = zero, sum_l2 = zero;
    const f32x16 inverse = bottom / extreme;
    for (int i = 0; i < kSize; ++i) {
        const f32x16 q = most(least(rounded(x[i] * inverse), top), bottom), weight = x[i] * x[i];
        store(quants + i * kLanes, q);
        sum_xl = sum_xl + weight * x[i] * q;
        sum_l2 = sum_l2 + weight * q * q;
    }
    for (int round = 0; round < kRounds; ++round)
        for (int i = 0; i < kSize; ++i) {
            const f32x16 weight = x[i] * x[i], q = load(quants + i * kLanes);
            const f32x16 rest_xl = sum_xl - weight * x[i] * q, rest_l2 = sum_l2 - weight * q * q;
            const f32x16 own = rounded(most(least(x[i] * rest_l2 / rest_xl, top), bottom));
            const f32x16 new_xl = rest_xl + weight * x[i] * own, new_l2 = rest_l2 + weight * own * own;
            const f32x16 gain = new_xl * new_xl * sum_l2;
            f32x16 limit = sum_xl * sum_xl * new_l2;  // to be exceeded; no gain exceeds itself
            limit = select(zero < new_l2, limit, gain);
            limit = select(zero < rest_xl, limit, gain);
            limit = select(own < q, limit, select(q < own, limit, gain));
            const mask16 better = limit < gain;
            store(quants + i * kLanes, select(better, own, q));
            sum_xl = select(better, new_xl, sum_xl);
            sum_l2 = select(better, new_l2, sum_l2);
        }
    for (int i = 0; i < kSize; ++i) put(select(is_zero, bottom, load(quants + i * kLanes)), i, kSize, groups, integers);
    put(select(is_zero, zero, select(zero < sum_l2, sum_xl / sum_l2, zero)), groups, scales);
}

template <int kSize, bool kAbsolute>
void with_minimum_of(const float* values, std::size_t groups, float largest, float first, float step, int num_steps,
                     float* scales, float* minimums, std::int8_t* integers) {
    by_sixteen(groups, [&](std::size_t group, std::size_t count) {
        sixteen_with_minimum<kSize, kAbsolute>(values + group * kSize, count, largest, first, step, num_steps,
                                               scales + group, minimums + group, integers + group * kSize);
    });
}

void with_minimum(const float* values, std::size_t groups, float largest, float first, float step, int num_steps,
                  bool absolute, float* scales, float* minimums, std::int8_t* integers) {
    const auto search = absolute ? with_minimum_of<16, true> : with_minimum_of<32, false>;
    search(values, groups, largest, first, step, num_steps, scales, minimums, integers);
}

void symmetric(const float* values, std::size_t groups, float largest, float* scales, std::int8_t* integers) {
    by_sixteen(groups, [&](std::size_t group, std::size_t count) {
        sixteen_symmetric(values + group * 16, count, largest, scales + group, integers + group * 16);
    });
}

void in_turn(const float* values, std::size_t groups, float largest, float* scales, std::int8_t* integers) {
    by_sixteen(groups, [&](std::size_t group, std::size_t count) {
        sixteen_in_turn(values + group * 16, count, largest, scales + group, integers + group * 16);
    });
}

}  // namespace

const FitKernels fit_kernels = {.with_minimum = with_minimum,
                                .symmetric = symmetric,
                                .in_turn = in_turn,
                                .levels = fit_levels,
                                .nearest_levels = nearest_levels};

}  // namespace karat::KARAT_ISA_NAMESPACE

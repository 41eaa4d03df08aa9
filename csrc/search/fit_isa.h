// Shared by the searches for scales: they work on sixteen groups at a time, a group in a lane. Multiplication and
// addition are not fused: ggml's searches round twice.
#pragma once

#include "search/k_fit.h"
#include "simd/simd.h"

namespace karat::KARAT_ISA_NAMESPACE {

// Defined in level_fit.cpp, for the table in k_fit.cpp.
void fit_levels(const float* values, std::size_t groups, const float* levels, int num_steps, float* scales);
void nearest_levels(const float* values, std::size_t groups, const float* levels, const float* inverses,
                    std::int8_t* chosen);

KARAT_INLINE f32x16 magnitude(f32x16 a) { return as_float(as_int(a) & iset1(0x7fffffff)); }
KARAT_INLINE f32x16 least(f32x16 a, f32x16 b) { return select(b < a, b, a); }
KARAT_INLINE f32x16 most(f32x16 a, f32x16 b) { return larger(b, a); }

// Sixteen groups [groups, size], transposed: a vector for each place. Missing groups are zero.
template <int kSize>
struct Columns {
    alignas(64) float at[kSize * kLanes];

    KARAT_INLINE Columns(const float* values, std::size_t groups) {
        for (int place = 0; place < kSize; ++place)
            for (std::size_t group = 0; group < kLanes; ++group)
                at[place * kLanes + static_cast<int>(group)] = group < groups ? values[group * kSize + place] : 0.0f;
    }
    KARAT_INLINE f32x16 operator[](int place) const { return load(at + place * kLanes); }

    // The value of largest magnitude, the first of equals.
    KARAT_INLINE f32x16 extreme() const {
        f32x16 found = (*this)[0];
        for (int i = 1; i < kSize; ++i) found = select(magnitude(found) < magnitude((*this)[i]), (*this)[i], found);
        return found;
    }
};

// Whether a group with this extreme counts as zero.
KARAT_INLINE mask16 counts_as_zero(f32x16 extreme) { return magnitude(extreme) < set1(1e-15f); }

// Stores the integers of one place of all groups.
KARAT_INLINE void put(f32x16 quants, int place, int size, std::size_t groups, std::int8_t* integers) {
    alignas(64) float lanes[kLanes];
    store(lanes, quants);
    for (std::size_t group = 0; group < groups; ++group)
        integers[group * static_cast<std::size_t>(size) + static_cast<std::size_t>(place)] =
            static_cast<std::int8_t>(lanes[group]);
}

KARAT_INLINE void put(f32x16 numbers, std::size_t groups, float* out) {
    alignas(64) float lanes[kLanes];
    store(lanes, numbers);
    for (std::size_t group = 0; group < groups; ++group) out[group] = lanes[group];
}

// Calls f(first group, number of groups) for sixteen groups at a time, and for the rest.
template <class F>
KARAT_INLINE void by_sixteen(std::size_t groups, const F& f) {
    for (std::size_t group = 0; group < groups; group += kLanes)
        f(group, groups - group < kLanes ? groups - group : kLanes);
}

}  // namespace karat::KARAT_ISA_NAMESPACE

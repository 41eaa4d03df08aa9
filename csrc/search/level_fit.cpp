// The search for the scales of uneven levels: what src/karat/quant/level_fit.py computes, with the same bits.
#include "search/fit_isa.h"

namespace karat::KARAT_ISA_NAMESPACE {
namespace {

constexpr int kSize = 32, kLevels = 16;

// Sixteen rising levels, and what lies in the middle between neighbours.
struct Levels {
    f32x16 at[kLevels], middle[kLevels - 1];

    explicit Levels(const float* levels) {
        for (int i = 0; i < kLevels; ++i) at[i] = set1(levels[i]);
        for (int i = 0; i + 1 < kLevels; ++i) middle[i] = set1((levels[i] + levels[i + 1]) / 2.0f);
    }
    KARAT_INLINE f32x16 nearest(f32x16 x) const {
        f32x16 found = at[0];
        for (int i = 0; i + 1 < kLevels; ++i) found = select(x < middle[i], found, at[i + 1]);
        return found;
    }
    KARAT_INLINE f32x16 number_of_nearest(f32x16 x) const {
        f32x16 found = zero();
        for (int i = 0; i + 1 < kLevels; ++i) found = select(x < middle[i], found, set1(static_cast<float>(i + 1)));
        return found;
    }
};

void fit_sixteen(const float* values, std::size_t groups, const Levels& levels, float first, int num_steps,
                 float* scales) {
    const Columns<kSize> x(values, groups);
    f32x16 extreme = x.extreme();
    const mask16 is_zero = counts_as_zero(extreme);
    extreme = select(is_zero, set1(1.0f), extreme);
    f32x16 sum_xl, sum_l2;
    const auto fit = [&](f32x16 inverse) {
        sum_xl = sum_l2 = zero();
        for (int i = 0; i < kSize; ++i) {
            const f32x16 level = levels.nearest(x[i] * inverse), product = x[i] * x[i] * level;
            sum_xl = sum_xl + product * x[i];
            sum_l2 = sum_l2 + product * level;
        }
    };
    fit(set1(1.0f) / ((zero() - extreme) / set1(first)));
    f32x16 scale = sum_xl / sum_l2, best = scale * sum_xl;
    for (int number = -num_steps; number <= num_steps; ++number) {
        fit(set1(static_cast<float>(number) + first) / extreme);
        const f32x16 gain = sum_xl * sum_xl, limit = best * sum_l2, own = sum_xl / sum_l2;
        const mask16 better = select(zero() < sum_l2, limit, gain) < gain;
        scale = select(better, own, scale);
        best = select(better, own * sum_xl, best);
    }
    put(select(is_zero, zero(), scale), groups, scales);
}

}  // namespace

void fit_levels(const float* values, std::size_t groups, const float* levels, int num_steps, float* scales) {
    const Levels known(levels);
    by_sixteen(groups, [&](std::size_t group, std::size_t count) {
        fit_sixteen(values + group * kSize, count, known, levels[0], num_steps, scales + group);
    });
}

void nearest_levels(const float* values, std::size_t groups, const float* levels, const float* inverses,
                    std::int8_t* chosen) {
    const Levels known(levels);
    alignas(64) float lanes[kLanes];
    for (std::size_t group = 0; group < groups; ++group)
        for (std::size_t place = group * kSize; place < (group + 1) * kSize; place += kLanes) {
            store(lanes, known.number_of_nearest(load(values + place) * set1(inverses[group])));
            for (std::size_t i = 0; i < kLanes; ++i) chosen[place + i] = static_cast<std::int8_t>(lanes[i]);
        }
}

}  // namespace karat::KARAT_ISA_NAMESPACE

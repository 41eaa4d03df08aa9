// Which experts a row goes to, and what they weigh (`route` in contract/kernels.h): one source for CPUs and GPUs.
#pragma once

#include "contract/kernels.h"
#include "simd/exp.h"

namespace karat::KARAT_ISA_NAMESPACE {

// Whether a number comes before another; a NaN comes after every number.
KARAT_INLINE bool comes_before(float a, float b) { return a > b || (a == a && b != b); }

KARAT_INLINE float first_of(const float* x, std::size_t n) {
    float first = x[0];
    for (std::size_t i = 1; i < n; ++i)
        if (comes_before(x[i], first)) first = x[i];
    return first;
}

// scores[e] as the contract has them, of n experts.
KARAT_INLINE void score(const float* logits, std::size_t n, const Routing& how, float* scores) {
    const f32x16 top = set1(how.by_sigmoid ? 0 : first_of(logits, n));
    for (std::size_t i = 0; i < n; i += kLanes) {
        const int count = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
        const f32x16 x = load_first(logits + i, count);
        f32x16 lanes[] = {how.by_sigmoid ? zero() - x : x - top};
        exp(lanes);
        store_first(scores + i, how.by_sigmoid ? set1(1.0f) / (set1(1.0f) + lanes[0]) : lanes[0], count);
    }
    if (how.by_sigmoid) return;
    float total = 0;
    for (std::size_t id = 0; id < n; ++id) total += scores[id];
    for (std::size_t id = 0; id < n; ++id) scores[id] = scores[id] / total;
}

// The experts that are in none of the first groups are ranked `outside`. sums: [groups]
KARAT_INLINE void leave_groups_out(float* ranked, std::size_t experts, const Routing& how, float* sums) {
    const std::size_t size = experts / how.groups;
    for (std::size_t group = 0; group < how.groups; ++group) {
        const float* of = ranked + group * size;
        float first = of[0], second = 0;
        for (std::size_t i = 1; i < size; ++i) {
            const bool leads = comes_before(of[i], first);
            if (leads || i == 1 || comes_before(of[i], second)) second = leads ? first : of[i];
            if (leads) first = of[i];
        }
        sums[group] = first + second;
    }
    for (std::size_t group = 0; group < how.groups; ++group) {
        std::size_t before = 0;
        for (std::size_t other = 0; other < how.groups; ++other)
            before +=
                comes_before(sums[other], sums[group]) || (other < group && !comes_before(sums[group], sums[other]));
        if (before >= how.chosen_groups)
            for (std::size_t i = 0; i < size; ++i) ranked[group * size + i] = how.outside;
    }
}

// The ids of the first `chosen` of the ranked experts, in order. largest: [chosen], what they are ranked by
KARAT_INLINE void choose(const float* ranked, std::size_t experts, std::size_t chosen, std::int32_t* ids,
                         float* largest) {
    std::size_t kept = 0;
    for (std::size_t id = 0; id < experts; ++id) {
        if (kept == chosen && !comes_before(ranked[id], largest[kept - 1])) continue;
        std::size_t at = kept < chosen ? kept++ : kept - 1;
        for (; at > 0 && comes_before(ranked[id], largest[at - 1]); --at) {
            largest[at] = largest[at - 1];
            ids[at] = ids[at - 1];
        }
        largest[at] = ranked[id];
        ids[at] = static_cast<std::int32_t>(id);
    }
}

// The experts of one row of logits. `by_logit` and `over_chosen` are what `how` says; scores and ranked: [experts],
// sums: [groups].
KARAT_INLINE void route_row(const float* logits, std::size_t experts, const Routing& how, bool by_logit,
                            bool over_chosen, std::int32_t* ids, float* weights, float* scores, float* ranked,
                            float* sums) {
    if (over_chosen) {  // the powers of others are not asked for
        choose(logits, experts, how.chosen, ids, weights);
        const f32x16 top = set1(weights[0]);
        for (std::size_t i = 0; i < how.chosen; i += kLanes) {
            const int count = how.chosen - i < kLanes ? static_cast<int>(how.chosen - i) : kLanes;
            f32x16 power[] = {load_first(weights + i, count) - top};
            exp(power);
            store_first(weights + i, power[0], count);
        }
    } else {
        score(logits, experts, how, scores);
        if (!by_logit) {
            for (std::size_t id = 0; id < experts; ++id) ranked[id] = scores[id] + (how.bias ? how.bias[id] : 0.0f);
            if (how.groups > 1) leave_groups_out(ranked, experts, how, sums);
        }
        choose(by_logit ? logits : ranked, experts, how.chosen, ids, weights);
        for (std::size_t i = 0; i < how.chosen; ++i) weights[i] = scores[ids[i]];
    }
    float divisor = 0;
    for (std::size_t i = 0; i < how.chosen; ++i) divisor += weights[i];
    divisor += how.plus;
    if (divisor < how.least) divisor = how.least;
    for (std::size_t i = 0; i < how.chosen; ++i) {
        if (how.renormalised) weights[i] = weights[i] / divisor;
        weights[i] *= how.scale;
        if (how.scales) weights[i] *= how.scales[ids[i]];
    }
}

}  // namespace karat::KARAT_ISA_NAMESPACE

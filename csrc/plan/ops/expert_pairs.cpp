#include "plan/ops/expert_pairs.h"

#include <algorithm>
#include <cstring>

#include "plan/step.h"

namespace karat {

void Sorted::reserve(std::size_t most) {
    starts.resize(num_experts + 1);
    groups.resize(num_experts);
    rows.resize(most * chosen);
    weights.resize(most * chosen);
    experts.resize(most * chosen);
    places.resize(most * chosen);
    counts.resize(most);
}

void Sorted::sort(const std::int32_t* ids, const float* by, std::size_t count) {
    const auto held = [&](std::size_t pair) { return static_cast<std::size_t>(ids[pair]) - first; };
    std::fill(starts.begin(), starts.end(), 0);
    std::fill(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(count), 0);
    for (std::size_t pair = 0; pair < count * chosen; ++pair)
        if (const std::size_t expert = held(pair); expert < num_experts) ++starts[expert + 1];
    num_groups = 0;
    for (std::size_t expert = 0; expert < num_experts; ++expert) {
        if (starts[expert + 1] > 0) groups[num_groups++] = static_cast<std::uint32_t>(expert);
        starts[expert + 1] += starts[expert];
    }
    num_pairs = starts[num_experts];
    for (std::size_t pair = 0; pair < count * chosen; ++pair)  // each start moves to the end of its expert
        if (const std::size_t expert = held(pair); expert < num_experts) {
            const std::size_t place = starts[expert]++;
            rows[place] = static_cast<std::uint32_t>(pair / chosen);
            weights[place] = by[pair];
            experts[place] = static_cast<std::uint32_t>(expert);
        }
    for (std::size_t expert = num_experts; expert > 0; --expert) starts[expert] = starts[expert - 1];
    starts[0] = 0;
    for (std::size_t place = 0; place < num_pairs; ++place) {
        const std::size_t row = rows[place];
        places[row * chosen + counts[row]++] = static_cast<std::uint32_t>(place);
    }
}

void SortOp::run(StepContext& s, int thread) {
    if (thread != 0) return;
    sorted->sort(s.ids(ids), s.data(weights), s.rows(ids));
    for (std::size_t group = 0; group < sorted->num_groups; ++group)
        for (const auto& matrices : mapped) {
            const Matrix& matrix = matrices[sorted->groups[group]]->matrix;
            read_ahead(matrix.data, matrix.packed_bytes());
        }
}

Registers GatherOp::writes() const {
    Registers found;
    for (const auto& reg : {gathered, digits})
        if (reg) found.push_back(*reg);
    return found;
}

void GatherOp::run(StepContext& s, int thread) {
    const std::size_t columns = s.width(x), chosen = sorted->chosen;
    if (s.rows(x) == 1) {  // all experts read the same
        if (thread != 0) return;
        if (gathered) std::memcpy(s.data(*gathered), s.data(x), columns * sizeof(float));
        if (digits) s.integers.quantise(activations, s.data(x), 1, columns, 0, 1, s.bytes(*digits));
        return;
    }
    const std::size_t row_bytes = s.integers.row_bytes(activations, columns);
    const auto to = reinterpret_cast<DigitsPlace*>(s.scratch(thread));
    const auto range = s.share(s.rows(x), thread);
    for (std::size_t row = range.first; row < range.last; ++row) {
        const float* const from = s.data(x) + row * columns;
        const std::size_t count = sorted->counts[row];
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t place = sorted->places[row * chosen + i], expert = sorted->experts[place];
            const std::size_t begin = sorted->starts[expert], end = sorted->starts[expert + 1];
            if (gathered) std::memcpy(s.data(*gathered) + place * columns, from, columns * sizeof(float));
            if (digits) to[i] = {s.bytes(*digits) + begin * row_bytes, end - begin, place - begin};
        }
        if (digits && count > 0) s.integers.quantise_row(activations, from, columns, to, count);
    }
}

void QuantisePairsOp::run(StepContext& s, int thread) {
    const auto range = s.share(sorted->num_pairs, thread);
    for (std::size_t group = 0; group < sorted->num_groups; ++group) {
        const std::size_t expert = sorted->groups[group];
        const std::size_t begin = sorted->starts[expert], end = sorted->starts[expert + 1];
        const std::size_t first = std::max(begin, range.first), last = std::min(end, range.last);
        if (first < last)
            s.integers.quantise(activations, s.data(x) + begin * columns, end - begin, columns, first - begin,
                                last - begin, s.bytes(digits) + begin * s.integers.row_bytes(activations, columns));
    }
}

}  // namespace karat

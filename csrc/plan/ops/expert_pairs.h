// Pairs of a row and an expert that it chose: in what order they lie, and what the experts' matrices read of them
// (experts.cpp).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "plan/op.h"
#include "plan/weights.h"

namespace karat {

// What a step's rows chose, for all threads. Memory is there for the largest step.
struct Sorted {
    const std::size_t num_experts, first, chosen;  // held: ids from `first` on

    std::vector<std::uint32_t> starts;   // [experts + 1]: where each expert's pairs begin
    std::vector<std::uint32_t> groups;   // the experts that have pairs, in order
    std::vector<std::uint32_t> rows;     // by place: of which row a pair is
    std::vector<float> weights;          // by place
    std::vector<std::uint32_t> experts;  // by place: whose it is
    std::vector<std::uint32_t> places;   // [rows, chosen]: where the row's pairs are, in order of id
    std::vector<std::uint32_t> counts;   // [rows]: how many these are
    std::size_t num_groups = 0, num_pairs = 0;

    Sorted(std::size_t num_experts, std::size_t first, std::size_t chosen)
        : num_experts(num_experts), first(first), chosen(chosen) {}
    void reserve(std::size_t most);
    // ids and `by`, their weights: [count, chosen]
    void sort(const std::int32_t* ids, const float* by, std::size_t count);
};

struct SortOp final : Op {
    Register ids, weights;
    std::shared_ptr<Sorted> sorted;
    std::vector<std::vector<MatrixRef>> mapped;  // matrices of each expert, if they lie in a file
    Rows rows;

    const char* name() const override { return "experts_sort"; }
    Registers reads() const override { return {ids, weights}; }
    void finish(Finishing& finishing) override { sorted->reserve(finishing.limits.of(rows)); }
    void run(StepContext& s, int thread) override;
};

// Digits of an expert's pairs lie as those of a layer with as many rows, so that an expert with one pair is multiplied
// like a layer of one token.
struct GatherOp final : Op {
    Register x;
    std::optional<Register> gathered, digits;  // for matrices of stored floats, in blocks
    Activations activations;
    std::shared_ptr<const Sorted> sorted;

    const char* name() const override { return "experts_gather"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override;
    void finish(Finishing& finishing) override { finishing.ask_for_scratch(sorted->chosen * sizeof(DigitsPlace)); }
    void run(StepContext& s, int thread) override;
};

struct QuantisePairsOp final : Op {
    Register x, digits;
    std::size_t columns;
    Activations activations;
    std::shared_ptr<const Sorted> sorted;

    const char* name() const override { return "experts_quantise"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {digits}; }
    void run(StepContext& s, int thread) override;
};

}  // namespace karat

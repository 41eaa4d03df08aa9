// The ops of a plan: each says how its work is shared out among threads, and leaves the arithmetic to the kernels.
#pragma once

#include "plan.h"

namespace karat {

// What a thread sees while it runs a step.
class StepContext {
public:
    StepContext(Plan& plan, const StepInput& input, int num_threads)
        : plan(plan), kernels(plan.kernels_), input(input), num_threads(static_cast<std::size_t>(num_threads)) {}

    Plan& plan;
    const Kernels& kernels;
    const StepInput& input;
    const std::size_t num_threads;
    float* scores = nullptr;  // for an observer of attention
    std::size_t score_seq = 0;
    std::atomic_flag overflow_taken;
    Plan::Overflow overflow;

    float* data(Plan::Register reg) const { return plan.data(reg); }
    std::size_t width(Plan::Register reg) const { return plan.width(reg); }
    std::size_t rows(Plan::Register reg) const { return plan.rows(reg); }
    float* scratch(int thread) const {
        return plan.scratch_.floats() + static_cast<std::size_t>(thread) * plan.scratch_stride_;
    }
    const std::vector<Plan::Item>& items() const { return plan.items_; }
    float* part(std::size_t index) const { return plan.parts_.floats() + index * plan.part_floats_; }
    std::size_t part_floats() const { return plan.part_floats_; }

    // A thread's share of `count` rows.
    struct Range {
        std::size_t first, last;
        std::size_t size() const { return last - first; }
    };
    Range share(std::size_t count, int thread) const {
        const std::size_t t = static_cast<std::size_t>(thread);
        return {count * t / num_threads, count * (t + 1) / num_threads};
    }

    // Items of work handed out as threads ask, some at a time; false when there are none left.
    bool take(std::size_t op, std::size_t count, Range& range) const {
        const std::size_t size = 1 + count / (8 * num_threads);
        const std::size_t first = plan.counters_[op].fetch_add(size, std::memory_order_relaxed);
        range = {first, first + size < count ? first + size : count};
        return first < count;
    }
};

struct RowOp : Op {
    bool by_rows() const override { return true; }
};

struct EmbeddingOp final : RowOp {
    MatrixRef table;
    Plan::Register out;
    void run(StepContext& s, int thread) override;
};

// Sums over 16 columns, for weights with minima.
struct SumsOp final : RowOp {
    Plan::Register x, out;
    void run(StepContext& s, int thread) override;
};

struct NormOp final : RowOp {
    Plan::Register x, out;
    VectorRef weight;
    double eps;
    void run(StepContext& s, int thread) override;
};

struct AddOp final : RowOp {
    Plan::Register x, y, out;
    void run(StepContext& s, int thread) override;
};

struct RopeOp final : RowOp {
    Plan::Register x, out;
    RopeRef table;
    void run(StepContext& s, int thread) override;
};

struct CacheWriteOp final : RowOp {
    Plan::Register k, v;
    CacheRef cache;
    std::size_t layer;
    void run(StepContext& s, int thread) override;
};

struct SiluMulOp final : RowOp {
    Plan::Register gate, up, out;
    void run(StepContext& s, int thread) override;
};

struct SelectOp final : Op {
    Plan::Register x, out;
    void run(StepContext& s, int thread) override;
};

// One matrix or several over the same input. What follows may be taken in: the residual of `add`, or silu_mul of both.
struct LinearOp final : Op {
    std::size_t index;  // of the op, for its counter of items
    Plan::Register x;
    std::vector<Plan::Register> out;
    std::vector<MatrixRef> weights;
    std::vector<VectorRef> biases;  // each may be null
    std::vector<std::uint32_t> leaf_ends;
    Plan::Register residual = -1, act = -1, x_sums = -1;
    void run(StepContext& s, int thread) override;

private:
    void panels(StepContext& s, std::size_t which, StepContext::Range range, float* scratch) const;
};

struct AttentionOp : Op {
    std::size_t index;
    Plan::Register q, out;
    CacheRef cache;
    std::size_t layer, window;
    float scale;

protected:
    AttentionArgs args(const StepContext& s) const;
};

struct AttendOp final : AttentionOp {
    void run(StepContext& s, int thread) override;
};

// Puts together the splits of sequences with one token.
struct MergeOp final : AttentionOp {
    void run(StepContext& s, int thread) override;
};

}  // namespace karat

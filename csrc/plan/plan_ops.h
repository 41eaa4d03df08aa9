// The ops of a plan: each says how its work is shared out among threads, and leaves the arithmetic to the kernels.
#pragma once

#include <algorithm>

#include "plan/plan.h"

namespace karat {

// The state of a step, shared by all threads.
class StepContext {
public:
    StepContext(Plan& plan, const StepInput& input, int num_threads)
        : plan(plan), kernels(plan.kernels_), integers(plan.integers_), input(input),
          num_threads(static_cast<std::size_t>(num_threads)) {}

    Plan& plan;
    const Kernels& kernels;
    const IntegerKernels& integers;
    const StepInput& input;
    const std::size_t num_threads;
    float* scores = nullptr;  // for an observer of attention
    std::size_t score_seq = 0;
    std::uint32_t first_collective = 0;
    std::atomic<bool> stopped{false};  // the step was abandoned: threads go through the rest without working
    std::atomic_flag overflow_taken;
    Plan::Overflow overflow;

    float* data(Register reg) const { return plan.data(reg); }
    std::size_t width(Register reg) const { return plan.width(reg); }
    std::size_t rows(Register reg) const { return plan.rows(reg); }
    float* scratch(int thread) const {
        return plan.scratch_.floats() + static_cast<std::size_t>(thread) * plan.scratch_stride_;
    }
    // Room for the digits of one row, behind the scratch of a thread's kernels.
    std::uint8_t* own_digits(int thread) const {
        return reinterpret_cast<std::uint8_t*>(scratch(thread) + plan.own_digits_);
    }
    // Where a rank's part of the plan's collective lies.
    float* slot(int rank, std::uint32_t collective) const {
        const Transport& group = *plan.group_;
        return reinterpret_cast<float*>(group.slot(group.self, rank, first_collective + collective));
    }
    int num_ranks() const { return plan.group_->size; }
    float* own_slot(std::uint32_t collective) const { return slot(plan.group_->rank, collective); }
    // Called by all threads, after a barrier. Shows this rank's part to the others and waits for theirs. False if the
    // step was abandoned.
    bool exchange(std::uint32_t collective, int thread);
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

    // Takes the next items of work for a thread; false when none are left. A thread takes items from the front of its
    // own share, so that it reads one stream of memory. When its share is used up, it takes from the back of another's.
    // Each time it takes a third of what is left of that share, an even number where possible (kernels read two panels
    // at once).
    bool take(std::size_t op, std::size_t count, int thread, Range& range) const {
        for (std::size_t i = 0; i < num_threads; ++i) {
            const std::size_t owner = (static_cast<std::size_t>(thread) + i) % num_threads;
            const Range all = share(count, static_cast<int>(owner));
            auto& taken = plan.counters_[owner * plan.ops_.size() + op];  // from the front + (from the back << 32)
            std::uint64_t seen = taken.load(std::memory_order_relaxed);
            for (;;) {
                const std::size_t front = seen & 0xffffffff, back = seen >> 32, left = all.size() - front - back;
                if (left == 0) break;
                const std::size_t third = 1 + (left - 1) / 3, size = std::min(left, third + third % 2);
                if (!taken.compare_exchange_weak(seen, seen + (i == 0 ? size : size << 32), std::memory_order_relaxed))
                    continue;
                if (plan.group_) plan.group_->stir(plan.group_->self);
                range.first = i == 0 ? all.first + front : all.last - back - size;
                range.last = range.first + size;
                return true;
            }
        }
        return false;
    }
};

struct RowOp : Op {
    bool by_rows() const override { return true; }
};

struct EmbeddingOp final : RowOp {
    MatrixRef table;
    Register out;
    const char* name() const override { return "embedding"; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override;
};

// An op in which all ranks take part. Threads share its rows.
struct CollectiveOp : RowOp {
    std::uint32_t collective = 0;  // of the plan
    bool needs_barrier_before() const override { return true; }
};

// Writes the rows of those tokens that this rank's part of the table has into this rank's slot.
struct OwnRowsOp final : RowOp {
    MatrixRef table;
    std::uint32_t first, collective;
    Register out;
    const char* name() const override { return "own_rows"; }
    void run(StepContext& s, int thread) override;
};

// Copies each token's row from the slot of the rank that has it. Rank r has the rows before ends[r]. As it is recorded
// it has this rank's table, too; `lower` gives that to an OwnRowsOp before it.
struct FetchRowsOp final : CollectiveOp {
    MatrixRef table;
    std::uint32_t first = 0;  // row of the vocabulary that this rank's table begins with
    std::vector<std::uint32_t> ends;
    Register out;
    const char* name() const override { return "fetch_rows"; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override;
};

// out = ((tree over ranks of their slots) + bias) + residual.
struct AllReduceOp final : CollectiveOp {
    Register out;
    VectorRef bias;          // may be null
    Register residual = -1;  // taken in from `add` (fuse.h)
    const char* name() const override { return "all_reduce"; }
    Registers reads() const override { return residual < 0 ? Registers{} : Registers{residual}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override;
};

// Writes this rank's columns into the whole result; ArriveOp then waits for the columns of the others.
struct GatherOp final : RowOp {
    Register x, out;
    std::size_t first;
    std::uint32_t collective;  // of the ArriveOp after it
    const char* name() const override { return "gather"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override;
};
struct ArriveOp final : CollectiveOp {
    const char* name() const override { return "arrive"; }
    void run(StepContext& s, int thread) override;
};

// Rows as integers (activations.h), for weights in block formats.
struct QuantiseOp final : RowOp {
    Register x, out;
    Activations activations;
    const LinearOp* reader;
    const char* name() const override { return "quantise"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    bool is_idle(const StepContext& s) const override;
    void run(StepContext& s, int thread) override;
};

struct NormOp final : RowOp {
    Register x, out;
    VectorRef weight;
    double eps;
    const char* name() const override { return "rms_norm"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override;
};

struct AddOp final : RowOp {
    Register x, y, out;
    const char* name() const override { return "add"; }
    Registers reads() const override { return {x, y}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override;
};

struct RopeOp final : RowOp {
    Register x, out;
    RopeRef table;
    const char* name() const override { return "rope"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override;
};

struct CacheWriteOp final : RowOp {
    Register k, v;
    CacheRef cache;
    std::size_t layer;
    const char* name() const override { return "kv_write"; }
    Registers reads() const override { return {k, v}; }
    void run(StepContext& s, int thread) override;
};

struct SiluMulOp final : RowOp {
    Register gate, up, out;
    const char* name() const override { return "silu_mul"; }
    Registers reads() const override { return {gate, up}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override;
};

struct SelectOp final : Op {
    Register x, out;
    const char* name() const override { return "select"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override;
};

// One matrix or several over the same input. `fuse` joins it with what follows: the residual of `add`, or silu_mul of
// both.
struct LinearOp final : Op {
    std::size_t index = 0;  // of the op, for its counter of items
    Register x;
    Registers out;
    std::vector<MatrixRef> weights;
    std::vector<VectorRef> biases;  // each may be null
    std::vector<std::uint32_t> leaf_ends;
    Register residual = -1, act = -1;
    Activations activations;
    Register digits = -1;          // of the QuantiseOp that `lower` puts before it, if it needs one
    bool only_for_act = false;     // nothing but silu_mul reads `out`
    std::int64_t collective = -1;  // the sums go into this rank's slot, and an AllReduceOp comes after it

    bool needs_digits() const {
        return std::any_of(weights.begin(), weights.end(),
                           [](const auto& weight) { return weight->matrix.in_blocks(); });
    }
    // Whether each thread makes the digits for itself: of one row that takes less than a barrier.
    bool makes_digits(const StepContext& s) const { return needs_digits() && s.rows(x) == 1; }
    const char* name() const override { return "linear"; }
    Registers reads() const override;
    Registers writes() const override;
    void run(StepContext& s, int thread) override;

private:
    void one_after_another(StepContext& s, int thread, StepContext::Range panels, StepContext::Range rows) const;
    void gate_and_up(StepContext& s, int thread, StepContext::Range panels, StepContext::Range rows,
                     std::size_t most_rows) const;
    LinearArgs args(const StepContext& s, std::size_t which, StepContext::Range tokens, int thread) const;
    void compute(const StepContext& s, const LinearArgs& args, std::size_t first, std::size_t last, int thread) const;
};

struct AttentionOp : Op {
    std::size_t index = 0;
    Register q, out;
    CacheRef cache;
    std::size_t layer, window, group_heads, first_head;
    float scale;

protected:
    AttentionArgs args(const StepContext& s) const;
};

// Attention of tokens, and of splits of sequences with one token; `lower` puts a MergeOp after it.
struct AttendOp final : AttentionOp {
    const char* name() const override { return "attend"; }
    Registers reads() const override { return {q}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override;
};

// Merges the splits of sequences with one token.
struct MergeOp final : AttentionOp {
    explicit MergeOp(const AttentionOp& attention) : AttentionOp(attention) {}
    const char* name() const override { return "merge"; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override;
};

}  // namespace karat

// Linear layers. Only `plan/fuse.cpp` needs more of them than what records one.
#pragma once

#include <optional>

#include "plan/step.h"
#include "plan/weights.h"

namespace karat {

// One matrix or several over the same input. `fuse` joins it with what follows: the residual of `add`, or a gated
// unit of both.
struct LinearOp final : Op {
    Register x;
    Registers out;
    std::vector<MatrixRef> weights;
    std::vector<VectorRef> biases;  // each may be null
    std::vector<std::uint32_t> leaf_ends;
    Activations activations;
    std::optional<Register> residual, act;
    GatedUnit Kernels::* act_kernel = nullptr;  // of `act`
    bool only_for_act = false;                  // nothing but that reads `out`
    std::optional<std::uint32_t> collective;    // the sums go into this rank's slot, and an AllReduceOp comes after it

    const char* name() const override { return "linear"; }
    Registers reads() const override;
    Registers writes() const override;
    void lower(Lowering& lowering) override;
    void finish(Finishing& finishing) override;
    void run(StepContext& s, int thread) override;

private:
    // Whether each thread makes the digits for itself: QuantiseOp has none of a single row.
    bool makes_digits(const StepContext& s) const;
    std::uint8_t* own_digits(const StepContext& s, int thread) const;
    void one_after_another(StepContext& s, int thread, StepContext::Range panels, StepContext::Range rows) const;
    void gate_and_up(StepContext& s, int thread, StepContext::Range panels, StepContext::Range rows,
                     std::size_t most_rows) const;
    LinearArgs args(const StepContext& s, std::size_t which, StepContext::Range tokens, int thread) const;
    void compute(const StepContext& s, const LinearArgs& args, std::size_t first, std::size_t last, int thread) const;

    std::optional<Register> digits_;  // of x, if weights are in blocks
    // Where a thread's scratch has room for the digits of one row, behind what the kernels need.
    std::size_t digits_at_ = 0, digit_bytes_ = 0;
};

}  // namespace karat

// The sums of ranks, each of some columns of a layer, added along the fixed tree of leaves.
#pragma once

#include <optional>

#include "plan/ops/collective.h"
#include "plan/weights.h"

namespace karat {

// out = ((tree over ranks of their slots) + bias) + residual.
struct AllReduceOp final : CollectiveOp {
    Register out;
    VectorRef bias;  // may be null
    std::optional<Register> residual;
    Rows rows;
    std::size_t width;

    const char* name() const override { return "all_reduce"; }
    Registers reads() const override { return residual ? Registers{*residual} : Registers{}; }
    Registers writes() const override { return {out}; }
    void finish(Finishing& finishing) override { require_room_in_slots(finishing, rows, width); }
    void run(StepContext& s, int thread) override;
};

}  // namespace karat

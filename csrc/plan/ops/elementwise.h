// Ops on elements, which a linear layer before them may take in (plan/fuse.h).
#pragma once

#include "plan/op.h"

namespace karat {

struct AddOp final : RowOp {
    Register x, y, out;
    const char* name() const override { return "add"; }
    Registers reads() const override { return {x, y}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override;
};

struct SiluMulOp final : RowOp {
    Register gate, up, out;
    const char* name() const override { return "silu_mul"; }
    Registers reads() const override { return {gate, up}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override;
};

}  // namespace karat

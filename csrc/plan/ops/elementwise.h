// Ops on elements. A linear layer before a sum or a gated unit may take it in (plan/fuse.h).
#pragma once

#include "plan/op.h"

namespace karat {

// An op on the elements of two registers with the same rows. The result is like x.
struct PairOp : RowOp {
    Register x, y, out;
    Registers reads() const override { return {x, y}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override;

private:
    // Some rows: n elements of x and of out.
    virtual void compute(const Kernels& kernels, const float* x, const float* y, float* out, std::size_t n) const = 0;
};

struct AddOp final : PairOp {
    const char* name() const override { return "add"; }
    void compute(const Kernels& kernels, const float* x, const float* y, float* out, std::size_t n) const override;
};

// An activation of the gate times up, by the kernel of its name. x is the gate, y is up.
struct GatedUnitOp final : PairOp {
    GatedUnit Kernels::* kernel;
    const char* label;

    GatedUnitOp(GatedUnit Kernels::* kernel, const char* label) : kernel(kernel), label(label) {}
    const char* name() const override { return label; }
    void compute(const Kernels& kernels, const float* x, const float* y, float* out, std::size_t n) const override;
};

}  // namespace karat

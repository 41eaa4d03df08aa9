#include "plan/ops/elementwise.h"

#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {

void PairOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(x), thread);
    const std::size_t first = range.first * s.width(x);
    compute(s.kernels, s.data(x) + first, s.data(y) + range.first * s.width(y), s.data(out) + first,
            range.size() * s.width(x));
}

void AddOp::compute(const Kernels& kernels, const float* x, const float* y, float* out, std::size_t n) const {
    kernels.add(x, y, out, n);
}

void GatedUnitOp::compute(const Kernels& kernels, const float* gate, const float* up, float* out, std::size_t n) const {
    (kernels.*kernel)(gate, up, out, n);
}

namespace {

struct MulOp final : PairOp {
    const char* name() const override { return "mul"; }
    void compute(const Kernels& kernels, const float* x, const float* y, float* out, std::size_t n) const override {
        kernels.mul(x, y, out, n);
    }
};

struct SoftCapOp final : RowOp {
    Register x, out;
    float cap;

    const char* name() const override { return "soft_cap"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(x), thread);
        const std::size_t width = s.width(x), first = range.first * width;
        s.kernels.soft_cap(s.data(x) + first, cap, s.data(out) + first, range.size() * width);
    }
};

struct SigmoidOp final : RowOp {
    Register x, out;

    const char* name() const override { return "sigmoid"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(x), thread);
        const std::size_t width = s.width(x), first = range.first * width;
        s.kernels.sigmoid(s.data(x) + first, s.data(out) + first, range.size() * width);
    }
};

// y is the gate.
struct SigmoidMulOp final : PairOp {
    std::size_t columns;  // of x, for each number of the gate

    const char* name() const override { return "sigmoid_mul"; }
    void compute(const Kernels& kernels, const float* x, const float* gate, float* out, std::size_t n) const override {
        kernels.sigmoid_mul(x, gate, out, n, columns);
    }
};

Register append(Plan& plan, std::unique_ptr<PairOp> op, Register x, Register y) {
    const RegisterInfo info = plan.info(x);
    op->x = x;
    op->y = y;
    op->out = plan.new_register({.width = info.width, .rows = info.rows});
    return plan.append(std::move(op)).out;
}

Register gated_unit(Plan& plan, Register gate, Register up, GatedUnit Kernels::* kernel, const char* label) {
    require(plan.info(up).is_like(plan.info(gate)), "gate and up of different shapes");
    return append(plan, std::make_unique<GatedUnitOp>(kernel, label), gate, up);
}

}  // namespace

Register record::add(Plan& plan, Register x, Register y) {
    require(plan.info(y).is_like(plan.info(x)), "a sum of different shapes");
    return append(plan, std::make_unique<AddOp>(), x, y);
}

Register record::mul(Plan& plan, Register x, Register y) {
    require(plan.info(y).is_like(plan.info(x)), "a product of different shapes");
    return append(plan, std::make_unique<MulOp>(), x, y);
}

Register record::sigmoid(Plan& plan, Register x) {
    const RegisterInfo info = plan.info(x);
    auto op = std::make_unique<SigmoidOp>();
    op->x = x;
    op->out = plan.new_register({.width = info.width, .rows = info.rows});
    return plan.append(std::move(op)).out;
}

Register record::soft_cap(Plan& plan, Register x, double cap) {
    require(static_cast<float>(cap) > 0, "a cap that is not above 0");
    const RegisterInfo info = plan.info(x);
    auto op = std::make_unique<SoftCapOp>();
    op->x = x;
    op->cap = static_cast<float>(cap);
    op->out = plan.new_register({.width = info.width, .rows = info.rows});
    return plan.append(std::move(op)).out;
}

Register record::silu_mul(Plan& plan, Register gate, Register up) {
    return gated_unit(plan, gate, up, &Kernels::silu_mul, "silu_mul");
}

Register record::gelu_mul(Plan& plan, Register gate, Register up) {
    return gated_unit(plan, gate, up, &Kernels::gelu_mul, "gelu_mul");
}

Register record::sigmoid_mul(Plan& plan, Register x, Register gate) {
    const RegisterInfo of = plan.info(x), by = plan.info(gate);
    require(by.width > 0 && of.width % by.width == 0 && by.is_like({.width = by.width, .rows = of.rows}),
            "a gate of " + std::to_string(by.width) + " for rows of " + std::to_string(of.width));
    auto op = std::make_unique<SigmoidMulOp>();
    op->columns = of.width / by.width;
    return append(plan, std::move(op), x, gate);
}

}  // namespace karat

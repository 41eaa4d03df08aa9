#include "plan/ops/elementwise.h"

#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {

void AddOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(x), thread);
    const std::size_t width = s.width(x), first = range.first * width;
    s.kernels.add(s.data(x) + first, s.data(y) + first, s.data(out) + first, range.size() * width);
}

void SiluMulOp::run(StepContext& s, int thread) {
    const auto range = s.share(s.rows(gate), thread);
    const std::size_t width = s.width(gate), first = range.first * width;
    s.kernels.silu_mul(s.data(gate) + first, s.data(up) + first, s.data(out) + first, range.size() * width);
}

Register record::add(Plan& plan, Register x, Register y) {
    const RegisterInfo info = plan.info(x);
    require(plan.info(y).is_like(info), "a sum of different shapes");
    auto op = std::make_unique<AddOp>();
    op->x = x;
    op->y = y;
    op->out = plan.new_register({.width = info.width, .rows = info.rows});
    return plan.append(std::move(op)).out;
}

Register record::silu_mul(Plan& plan, Register gate, Register up) {
    const RegisterInfo info = plan.info(gate);
    require(plan.info(up).is_like(info), "gate and up of different shapes");
    auto op = std::make_unique<SiluMulOp>();
    op->gate = gate;
    op->up = up;
    op->out = plan.new_register({.width = info.width, .rows = info.rows});
    return plan.append(std::move(op)).out;
}

}  // namespace karat

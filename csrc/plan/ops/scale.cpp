// Rows times a number, or times that of a weight.
#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

struct ScaleOp final : RowOp {
    Register x, out;
    float factor;

    const char* name() const override { return "scale"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(x), thread);
        const std::size_t width = s.width(x), first = range.first * width;
        s.kernels.scale(s.data(x) + first, factor, s.data(out) + first, range.size() * width);
    }
};

}  // namespace

Register record::scale_by(Plan& plan, Register x, VectorRef weight) {
    require(weight->values.size() == 1, "a factor of " + std::to_string(weight->values.size()) + " numbers");
    return scale(plan, x, weight->values.front());
}

Register record::scale(Plan& plan, Register x, double factor) {
    const RegisterInfo info = plan.info(x);
    auto op = std::make_unique<ScaleOp>();
    op->x = x;
    op->factor = static_cast<float>(factor);
    op->out = plan.new_register({.width = info.width, .rows = info.rows});
    return plan.append(std::move(op)).out;
}

}  // namespace karat

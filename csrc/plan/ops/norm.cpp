// RMSNorm of rows, or of each head of a row.
#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

struct NormOp final : RowOp {
    Register x, out;
    VectorRef weight;
    double eps;

    const char* name() const override { return "rms_norm"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(x), thread);
        const std::size_t width = s.width(x), n = weight->values.size();  // several norms a row: one for each head
        s.kernels.rms_norm(s.data(x) + range.first * width, weight->values.data(), eps,
                           s.data(out) + range.first * width, range.size() * (width / n), n);
    }
};

}  // namespace

Register record::rms_norm(Plan& plan, Register x, VectorRef weight, double eps) {
    const RegisterInfo info = plan.info(x);
    require(!weight->values.empty() && weight->values.size() <= kMaxColumns && info.width % weight->values.size() == 0,
            "a norm weight of " + std::to_string(weight->values.size()) + " for rows of " + std::to_string(info.width));
    auto op = std::make_unique<NormOp>();
    op->x = x;
    op->out = plan.new_register({.width = info.width, .rows = info.rows});
    op->weight = std::move(weight);
    op->eps = eps;
    return plan.append(std::move(op)).out;
}

}  // namespace karat

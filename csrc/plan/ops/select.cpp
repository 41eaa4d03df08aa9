// The rows whose logits are wanted.
#include <cstring>

#include "plan/ops/check.h"
#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

struct SelectOp final : Op {
    Register x, out;

    const char* name() const override { return "select"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    void check(const StepInput& input) const override {
        require_below(input.logit_rows, input.num_wanted, input.num_tokens, "a wanted row outside the step");
    }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(out), thread);
        const std::size_t width = s.width(x);
        for (std::size_t row = range.first; row < range.last; ++row)
            std::memcpy(s.data(out) + row * width,
                        s.data(x) + static_cast<std::size_t>(s.input.logit_rows[row]) * width, width * sizeof(float));
    }
};

}  // namespace

Register record::select_rows(Plan& plan, Register x) {
    const RegisterInfo info = plan.info(x);
    require(info.rows == Rows::tokens, "rows are selected once");
    auto op = std::make_unique<SelectOp>();
    op->x = x;
    op->out = plan.new_register({.width = info.width, .rows = Rows::wanted});
    return plan.append(std::move(op)).out;
}

}  // namespace karat

// Rotary embedding of the heads of each row, or of their first elements.
#include "plan/ops/check.h"
#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

struct RopeOp final : RowOp {
    Register x, out;
    RopeRef table;
    std::size_t head_dim;

    const char* name() const override { return "rope"; }
    Registers reads() const override { return {x}; }
    Registers writes() const override { return {out}; }
    void check(const StepInput& input) const override {
        require_below(input.positions, input.num_tokens, table->positions, "a position beyond the rotary table");
    }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(x), thread);
        const std::size_t width = s.width(x), first = range.first * width;
        s.kernels.rope(s.data(x) + first, s.input.positions + range.first, table->cos.data(), table->sin.data(),
                       s.data(out) + first, range.size(), width / head_dim, head_dim, table->head_dim / 2);
    }
};

}  // namespace

Register record::rope(Plan& plan, Register x, RopeRef table, std::size_t head_dim) {
    const RegisterInfo info = plan.info(x);
    require(
        info.rows == Rows::tokens && table->head_dim > 0 && table->head_dim <= head_dim && info.width % head_dim == 0,
        "a rotary table that does not fit");
    auto op = std::make_unique<RopeOp>();
    op->x = x;
    op->out = plan.new_register({.width = info.width, .rows = info.rows});
    op->table = std::move(table);
    op->head_dim = head_dim;
    return plan.append(std::move(op)).out;
}

}  // namespace karat

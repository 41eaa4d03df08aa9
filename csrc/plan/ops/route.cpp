// Which experts of a mixture each row goes to.
#include "plan/ops/ops.h"
#include "plan/step.h"

namespace karat {
namespace {

struct RouteOp final : RowOp {
    Register logits, ids, weights;
    bool renormalised;

    const char* name() const override { return "route"; }
    Registers reads() const override { return {logits}; }
    Registers writes() const override { return {ids, weights}; }
    void finish(Finishing& finishing) override { finishing.ask_for_scratch(num_experts * sizeof(float)); }
    void run(StepContext& s, int thread) override {
        const auto range = s.share(s.rows(logits), thread);
        const std::size_t chosen = s.width(ids);
        s.kernels.route(s.data(logits) + range.first * num_experts, range.size(), num_experts, chosen, renormalised,
                        s.ids(ids) + range.first * chosen, s.data(weights) + range.first * chosen, s.scratch(thread));
    }

    std::size_t num_experts;
};

}  // namespace

std::pair<Register, Register> record::route(Plan& plan, Register logits, std::size_t chosen, bool renormalised) {
    const RegisterInfo info = plan.info(logits);
    require(chosen > 0 && chosen <= info.width, "more experts chosen than there are, or none");
    auto op = std::make_unique<RouteOp>();
    op->logits = logits;
    op->renormalised = renormalised;
    op->num_experts = info.width;
    op->ids = plan.new_register({.width = chosen, .rows = info.rows, .element = Element::i32});
    op->weights = plan.new_register({.width = chosen, .rows = info.rows});
    const RouteOp& recorded = plan.append(std::move(op));
    return {recorded.ids, recorded.weights};
}

}  // namespace karat
